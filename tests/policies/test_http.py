"""What happens on the way to a server: retries, pauses, failures, and what must not be retried or shown."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import pytest

from agentgym_tlm.errors import AgentGymError, ConfigError, PolicyFailureError
from agentgym_tlm.policies.http import JsonServer, Request, RequestError
from tests.policies.model_server import Reply, in_turn, serving

OK = Reply({"n": 1})
KEY = "sk-very-secret"


def read(reply: dict[str, Any]) -> int:
    if "n" not in reply:
        raise RequestError("no n", passing=True)
    return int(reply["n"])


def client(url: str, **options: Any) -> JsonServer:
    return JsonServer(url, api_key=KEY, **{"backoff": 0.01, "max_retries": 2, "timeout": 5.0, **options})


def post(server: JsonServer, count: int = 1) -> list[int | RequestError]:
    return server.post_all("/ask", [Request({"i": i}, i) for i in range(count)], read)


@pytest.mark.parametrize(
    "passing",
    [
        Reply(status=500),
        Reply("<html>bad gateway</html>", status=502),
        Reply({"error": {"message": "slow down"}}, status=429),
        Reply({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.01"}),
        Reply({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": formatdate(usegmt=True)}),
        Reply("{"),
        Reply([1]),
        Reply({"m": 1}),
        Reply("no gzip", headers={"Content-Encoding": "gzip"}),
        Reply("[" * 100_000),
        Reply("[" * 100_000, status=503),
    ],
    ids=[
        *("500", "502", "429", "retry-after", "retry-date", "torn", "list", "unreadable"),
        *("no gzip", "bottomless", "bottomless 503"),
    ],
)
def test_what_may_pass_is_tried_again(passing: Reply) -> None:
    with serving(in_turn(passing, passing, OK)) as server:
        assert post(client(server.url)) == [1]
        assert len(server.asked) == 3


def test_retry_after_is_obeyed() -> None:
    """A client that comes back early is sent away for longer."""
    with serving(in_turn(Reply(status=429, headers={"Retry-After": "0.3"}), OK)) as server:
        start = time.monotonic()
        assert post(client(server.url)) == [1]
        assert time.monotonic() - start >= 0.3


def test_a_server_that_wants_hours_is_not_waited_for() -> None:
    with serving(in_turn(Reply(status=429, headers={"Retry-After": "7200"}))) as server:
        with pytest.raises(PolicyFailureError, match="7200 s"):
            post(client(server.url))
        assert len(server.asked) == 1


def test_one_failure_is_the_answer_to_one_request() -> None:
    """The other episodes must not be lost with it."""

    def answer(asked: Any) -> Reply:
        return Reply({"error": "out of cheese"}, status=500) if asked.body["i"] == 1 else OK

    with serving(answer) as server:
        first, failed, last = post(client(server.url), 3)
    assert (first, last) == (1, 1)
    assert isinstance(failed, RequestError)
    assert "answers 500: out of cheese (attempts: 3)" in str(failed)


def test_timeout_and_refused_connection_are_failures_of_the_request() -> None:
    with serving(in_turn(OK, Reply({"n": 1}, delay=0.6))) as server:
        asking = client(server.url, timeout=0.1, max_retries=1)
        assert post(asking) == [1]
        [late] = post(asking)
    assert "does not answer in time" in str(late)
    [refused] = post(asking)
    assert "cannot be reached" in str(refused)


def test_a_server_that_never_answers_is_given_up_at_once() -> None:
    """A mistyped address should not be asked for every episode."""
    with serving(in_turn(OK)) as server:
        url = server.url
    with pytest.raises(PolicyFailureError, match="cannot be reached"):
        post(client(url))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({"error": {"message": f"Incorrect API key provided: {KEY}"}}, status=401), "OPENAI_API_KEY"),
        (Reply({"error": {"message": "no"}}, status=403), "OPENAI_API_KEY"),
        (Reply({"error": {"message": "The model `x` does not exist"}}, status=404), "`x` does not exist.*base_url"),
        (Reply(status=301, headers={"Location": "/v2"}), "base_url"),
        (Reply({"error": {"message": "pay", "code": "insufficient_quota"}}, status=429), "quota is exhausted"),
    ],
    ids=["401", "403", "404", "301", "quota"],
)
def test_what_cannot_pass_is_not_retried_and_says_what_to_do(reply: Reply, message: str) -> None:
    with serving(in_turn(reply)) as server:
        with pytest.raises(PolicyFailureError, match=message) as raised:
            post(client(server.url))
        assert len(server.asked) == 1
    assert KEY not in str(raised.value)


def test_a_wrong_request_is_not_retried() -> None:
    with serving(in_turn(Reply({"error": {"message": "bad temperature"}}, status=400))) as server:
        [error] = post(client(server.url))
        assert len(server.asked) == 1
    assert "bad temperature" in str(error)
    assert not (isinstance(error, RequestError) and error.too_long)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too many tokens", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"},
    ],
)
def test_a_prompt_that_is_too_long_is_recognised(error: dict[str, str]) -> None:
    """It is the end of an episode's budget, not a broken server: however many there are."""
    with serving(in_turn(Reply({"error": error}, status=400))) as server:
        answers = post(client(server.url, max_failures=2), 3)
    assert all(isinstance(answer, RequestError) and answer.too_long for answer in answers)


def test_failures_in_a_row_are_the_servers() -> None:
    """An evaluation of a server that has died must end, not write a thousand failures."""
    with serving(in_turn(OK, *[Reply(status=500)] * 3, OK, Reply(status=500))) as server:
        asking = client(server.url, max_retries=0, max_failures=4)
        failed = [isinstance(post(asking)[0], RequestError) for _ in range(8)]
        assert failed == [False, *[True] * 3, False, *[True] * 3]
        with pytest.raises(PolicyFailureError, match=r"no answer to 4 requests in a row, lastly: .* answers 500"):
            post(asking)


def test_requests_run_at_once_up_to_the_limit() -> None:
    """One after the other, 32 episodes would take 32 times as long."""
    with serving(in_turn(Reply({"n": 1}, delay=0.1))) as server:
        assert post(client(server.url, concurrency=6), 12) == [1] * 12
        assert server.most_at_once == 6


def test_key_goes_to_the_server_and_nowhere_else() -> None:
    with serving(in_turn(Reply({"error": {"message": f"I saw {KEY}"}}, status=422))) as server:
        asking = client(server.url)
        [error] = post(asking)
        assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
    assert KEY not in str(error)
    assert KEY not in repr(vars(asking) | {"_key": ""})


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("localhost:8000", {}),
        ("ftp://localhost", {}),
        ("", {}),
        ("http://user:hunter2@localhost/v1", {}),
        ("http://localhost/v1", {"timeout": 0}),
        ("http://localhost/v1", {"concurrency": 0}),
        ("http://localhost/v1", {"api_key": "sk-\u2026"}),
    ],
)
def test_refuses_what_cannot_be(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        JsonServer(url, **options)
    assert "hunter2" not in str(raised.value)


def test_errors_are_ours() -> None:
    assert issubclass(RequestError, PolicyFailureError)
    assert issubclass(PolicyFailureError, AgentGymError)
