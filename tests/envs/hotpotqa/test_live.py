"""The live Wikipedia, against a server that answers and fails as it does. The client is the real one."""

import json
import multiprocessing
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

pytest.importorskip("wikipediaapi", reason="the live Wikipedia needs the hotpotqa extra")

from agentgym_tlm.envs.hotpotqa.env import HotpotQAEnv
from agentgym_tlm.envs.hotpotqa.live import ATTEMPTS, LiveWikipedia
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.wiki import Suggestions
from agentgym_tlm.errors import ConfigError, EnvironmentFailureError
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.prompt import ReactFormat
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import StopReason
from tests.envs.hotpotqa.mediawiki import Failure, Loopback, MediaWiki, failure, serve

BRANDT = (
    "Orla Brandt is a painter of the U.S. Navy.",
    " She writes.",
    " She cooks.",
    "\nShe was born in Tarnwick.",
    " She sails.",
    "\nShe kept bees.",
    " Mr. Lind helped.",
    "\nOne was for honey.",
)


@pytest.fixture
def server() -> Iterator[MediaWiki]:
    """A fresh server."""
    with serve() as wiki:
        yield wiki


@pytest.fixture
def make(server: MediaWiki, tmp_path: Path) -> Callable[..., LiveWikipedia]:
    """Clients of the server, with short pauses."""

    def make(**options: Any) -> LiveWikipedia:
        settings = {"retry_pause": 0.001, "max_pause": 0.01, "transport": Loopback(server.port), **options}
        return LiveWikipedia("test@example.org", tmp_path / "answers.sqlite", **settings)

    return make


def test_pages_are_read(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """Section titles and appendices are no sentences; one request, which says who asks."""
    assert make().search("Orla Brandt") == Page("Orla Brandt", BRANDT)
    [request] = server.requests
    assert (request["path"], request["titles"], request["prop"]) == ("/w/api.php", "Orla Brandt", "extracts")
    assert server.headers[0]["Host"] == "en.wikipedia.org"
    assert "(test@example.org)" in server.headers[0]["User-Agent"]


def test_redirects_are_followed(make: Callable[..., LiveWikipedia]) -> None:
    """The page that a redirect leads to, under its own title."""
    found = make().search("O. Brandt")
    assert isinstance(found, Page)
    assert found.title == "Orla Brandt"


def test_case_is_forgiven_and_nothing_else(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """What Wikipedia's "Go" opens is opened; otherwise titles are offered, none is guessed."""
    found = make().search("orla brandt")
    assert isinstance(found, Page)
    assert server.requests[1]["srwhat"] == "nearmatch"
    assert make().search("Orla") == Suggestions(("Orla Brandt", "Orla Kiely"))
    assert make().search("Nobody at all") == Suggestions(())


def test_pages_with_several_meanings_are_offered(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """Articles only, in the order of the page; a page that merely says "refers to" is a page."""
    meanings = ("Mercury (planet)", "Mercury (element)", "Freddie Mercury", "Zinc")
    assert make().search("Mercury") == Suggestions(meanings, ambiguous=True)
    found = make().search("Reference work")
    assert isinstance(found, Page)


@pytest.mark.parametrize(
    "title",
    ["C#", "A|B", "<b>", "[x]", "{{x}}", ":Foo", "Special:Search", "User talk:Foo", "File:X.png", "é" * 128],
)
def test_impossible_titles_are_searched_for(server: MediaWiki, make: Callable[..., LiveWikipedia], title: str) -> None:
    """Titles that the API takes for two, for a section, or for another namespace are never asked for as titles."""
    assert make().search(title) == Suggestions(())
    assert all("titles" not in request for request in server.requests)
    assert server.requests[-1]["srsearch"] == title


def test_other_wikis_are_not_asked(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """`de:Foo` is a link to another language, and ends in a KeyError inside the package."""
    assert make().search("de:Foo") == Suggestions(())


@pytest.mark.parametrize("entity", ["", "  ", "\0", "_"])
def test_nothing_is_not_asked_for(server: MediaWiki, make: Callable[..., LiveWikipedia], entity: str) -> None:
    """An empty title is an API error."""
    wiki = make()
    assert wiki.search(entity) == Suggestions(())
    assert wiki.retrieve(entity, 3) == ()
    assert server.requests == []


def test_special_characters_arrive(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """ReAct encodes blanks only, so that it asks for "Heron " here."""
    found = make().search("Heron & Sons")
    assert isinstance(found, Page)
    assert server.requests[0]["titles"] == "Heron & Sons"
    assert make().search("50% + 1?") == Suggestions(())
    assert server.requests[-1]["srsearch"] == "50% + 1?"


def test_long_queries_are_cut(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """Wikipedia answers queries of more than 300 characters with an error."""
    assert make().search("word " * 200) == Suggestions(())
    assert {len(request["srsearch"]) for request in server.requests} == {300}


def test_passages_leave_out_what_is_no_page(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """Full-text search, with the text of each result."""
    found = make().retrieve("writer of novels", 3)
    assert [page.title for page in found] == ["Orla Brandt", "Heron & Sons"]


def test_names_are_recognised_by_their_capitals(make: Callable[..., LiveWikipedia]) -> None:
    """There is no list of titles, so every capitalised name may be one."""
    text = "Was Orla Brandt of Tarnwick, the painter, in the Isle of Man in 1931? Orla Brandt."
    assert make().mentions(text) == ("Was Orla Brandt of Tarnwick", "Isle of Man in 1931", "Orla Brandt")


PASSING: dict[str, Failure] = {
    "throttled": failure(429, Retry_After="0"),
    "throttled for a day": failure(429, Retry_After="86400"),
    "throttled until a date": failure(429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"),
    "overloaded": failure(503, "busy"),
    "HTML": failure(200, "<html>Our servers are experiencing a problem</html>"),
    "lagging": failure(200, json.dumps({"error": {"code": "maxlag", "info": "Waiting for a database"}})),
    "dropped": lambda: None,
}
FINAL = {
    "forbidden": (failure(403, "blocked"), "403"),
    "moved": (failure(301, Location="https://example.org"), "301"),
    "API error": (failure(200, json.dumps({"error": {"code": "badvalue", "info": "Unrecognized"}})), "badvalue"),
    "no answer": (failure(200, "{}"), "no answer"),
    "error that is a text": (failure(200, '{"error": "oops"}'), "oops"),
    "query that is a list": (failure(200, '{"query": [1]}'), "no answer"),
    "query about something else": (failure(200, '{"query": {"foo": 1}}'), "no answer"),
    "pages that are none": (failure(200, '{"query": {"pages": [1], "search": [1]}}'), "no answer"),
    "pages that are nothing": (failure(200, '{"query": {"pages": 7, "search": 7}}'), "is not understood"),
    "deeply nested": (failure(200, '{"query": ' + "[" * 100_000), "is not understood"),
}


@pytest.mark.parametrize("name", PASSING)
def test_passing_failures_are_tried_again(server: MediaWiki, make: Callable[..., LiveWikipedia], name: str) -> None:
    """A few times, never for as long as the server pleases, and then it is a failure, not a missing page."""
    server.failures = [PASSING[name]] * (ATTEMPTS - 1)
    assert isinstance(make().search("Orla Brandt"), Page)
    assert len(server.requests) == ATTEMPTS
    server.failures = [PASSING[name]] * ATTEMPTS
    with pytest.raises(EnvironmentFailureError, match=rf"Wikipedia could not be asked \(attempt {ATTEMPTS}\)"):
        make().search("O. Brandt")
    assert len(server.requests) == 2 * ATTEMPTS


@pytest.mark.parametrize("name", FINAL)
@pytest.mark.parametrize("call", ["search", "retrieve"])
def test_final_failures_are_not_repeated(
    server: MediaWiki, make: Callable[..., LiveWikipedia], name: str, call: str
) -> None:
    """The package makes an empty result of some of these, which an agent would read as "could not find"."""
    reply, reason = FINAL[name]
    server.failures = [reply]
    wiki = make()
    with pytest.raises(EnvironmentFailureError, match=reason):
        wiki.search("Orla Brandt") if call == "search" else wiki.retrieve("Orla", 3)
    assert len(server.requests) == 1
    assert wiki.search("Orla Brandt") == Page("Orla Brandt", BRANDT), "a failure must not be kept"


def test_slow_answers_time_out(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """ReAct waits for ever."""
    released = threading.Event()
    server.failures = [lambda: (released.wait(30), None)[1]] * ATTEMPTS
    with pytest.raises(EnvironmentFailureError, match="WikiHttpTimeoutError"):
        make(timeout=0.05).search("Orla Brandt")
    released.set()


def test_unreachable_is_a_failure(server: MediaWiki, make: Callable[..., LiveWikipedia], tmp_path: Path) -> None:
    """No network is not "no such page"."""
    with serve() as gone:
        port = gone.port
    with pytest.raises(EnvironmentFailureError, match="WikiConnectionError"):
        make(transport=Loopback(port)).search("Orla Brandt")


def test_pauses_are_capped(
    server: MediaWiki, make: Callable[..., LiveWikipedia], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package itself sleeps for as long as Retry-After says, be it a day."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    server.failures = [failure(429, Retry_After="86400"), failure(503), failure(429, Retry_After="2")]
    make(retry_pause=0.5, max_pause=60).search("Orla Brandt")
    assert pauses == [60, 1, 2]


def test_answers_are_kept(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """The same run again asks nothing and reads the same, in another process as well."""

    def play(wiki: LiveWikipedia) -> list[Any]:
        return [*(wiki.search(entity) for entity in ("Orla Brandt", "Orla", "Mercury")), wiki.retrieve("Orla", 2)]

    first = play(make())
    asked = len(server.requests)
    server.failures = [failure(500)] * 100
    assert play(make()) == first
    assert play(pickle.loads(pickle.dumps(make()))) == first
    assert len(server.requests) == asked


def test_unusable_cache_is_a_failure(make: Callable[..., LiveWikipedia], tmp_path: Path) -> None:
    """Asking again and again, unnoticed, is what Wikipedia blocks for."""
    (tmp_path / "answers.sqlite").write_text("no database " * 200)
    with pytest.raises(EnvironmentFailureError, match=r"answers\.sqlite cannot be used"):
        make().search("Orla Brandt")


@pytest.mark.parametrize(
    "value", ["", "{", "7", "{}", '{"title": 1, "sentences": []}', '{"titles": [1]}', "[" * 100_000]
)
def test_damaged_cache_is_a_failure(make: Callable[..., LiveWikipedia], tmp_path: Path, value: str) -> None:
    """Half-written answers end the episode as env_error, not the run with a traceback."""
    wiki = make()
    wiki.search("Orla Brandt")
    wiki.retrieve("writer of novels", 3)
    with closing(sqlite3.connect(tmp_path / "answers.sqlite")) as cache, cache:
        cache.execute("UPDATE answer SET value = ?", [value])
    with pytest.raises(EnvironmentFailureError, match=r"answers\.sqlite is damaged .*delete it"):
        wiki.search("Orla Brandt")
    with pytest.raises(EnvironmentFailureError, match=r"answers\.sqlite is damaged"):
        wiki.retrieve("writer of novels", 3)


def test_threads_ask_one_after_another(server: MediaWiki, make: Callable[..., LiveWikipedia]) -> None:
    """Rollouts with many slots make no bursts, and all get their answers."""
    wiki = make()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(wiki.search, ["Orla Brandt", "O. Brandt", "Mercury", "Orla"] * 4))
    assert [type(each) for each in found] == [Page, Page, Suggestions, Suggestions] * 4


def _search(wiki: LiveWikipedia, pipe: Connection) -> None:
    pipe.send(wiki.search("O. Brandt"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_connect_anew(make: Callable[..., LiveWikipedia], method: str) -> None:
    """A worker that shared its parent's sockets would read answers that are not its own, or wait for ever."""
    wiki = make()
    wiki.search("Orla Brandt")
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    with wiki._lock:  # as if another thread were asking at the moment of the fork
        process = context.Process(target=_search, args=(wiki, there))  # type: ignore[attr-defined]
        process.start()
    assert here.poll(30), "the worker hangs"
    assert here.recv() == Page("Orla Brandt", BRANDT)
    process.join()


@pytest.mark.parametrize("contact", [None, "", "me", "a\n@b", "jörg@example.org", 5])
def test_contact_is_required(contact: str | None, tmp_path: Path) -> None:
    """There is no default: requests that name nobody are throttled for all who make them."""
    with pytest.raises(ConfigError, match="needs contact="):
        LiveWikipedia(contact, tmp_path / "cache")


def test_failures_reach_the_rollout_as_failures(
    server: MediaWiki, make: Callable[..., LiveWikipedia], library: Path
) -> None:
    """An episode whose encyclopedia fails is `env_error`; it stands as before, and no reward is made up."""
    env = gym.make("HotpotQA-v0", split="dev", data_dir=library, wikipedia=make()).unwrapped
    env.reset(options={"task_id": "q4"})
    env.step("Search[Orla Brandt]")
    before = env.snapshot()  # type: ignore[attr-defined]
    server.failures = [failure(403)]
    with pytest.raises(EnvironmentFailureError):
        env.step("Search[Mercury]")
    assert env.snapshot() == before  # type: ignore[attr-defined]
    observation, *_ = env.step("Search[Mercury]")
    assert observation.startswith("Could not find Mercury. Similar: ['Mercury (planet)'")


class Searcher:
    """A policy that searches for one thing."""

    name, version, fingerprint, format = "searcher", "0", "", ReactFormat()

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        return [Generation("Action: Search[Mercury]") for _ in conversations]

    def end(self, conversation: Conversation) -> None:
        pass


def test_rollout_records_the_failure(server: MediaWiki, make: Callable[..., LiveWikipedia], library: Path) -> None:
    """The trajectory ends as `env_error`, with the reason, and its last turn is not trained on."""
    server.failures = [failure(403)]
    options = {"data_dir": library, "wikipedia": make()}
    failed, played = rollout(Searcher(), "HotpotQA-v0", ["q3", "q4"], split="dev", n_slots=1, env_kwargs=options)
    assert (failed.stop_reason, failed.score, len(failed.turns)) == (StopReason.ENV_ERROR, 0, 1)
    assert "403" in str(failed.error)
    assert not failed.turns[0].trainable
    assert (played.stop_reason, len(played.turns)) == (StopReason.MAX_STEPS, 7)


def test_the_package_is_needed_only_for_live(tmp_path: Path) -> None:
    """Without the extra everything else works, and the error names the extra."""
    code = (
        "import sys; sys.modules['wikipediaapi'] = None\n"
        "import gymnasium, agentgym_tlm, agentgym_tlm.envs.hotpotqa\n"
        "from agentgym_tlm.errors import DependencyError\n"
        "try: import agentgym_tlm.envs.hotpotqa.live\n"
        "except DependencyError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'agentgym-tlm[hotpotqa]'" in result.stdout


def test_cache_of_an_interrupted_run_is_complete(make: Callable[..., LiveWikipedia], tmp_path: Path) -> None:
    """Each answer is written at once, as a whole."""
    make().search("Orla Brandt")
    with sqlite3.connect(tmp_path / "answers.sqlite") as cache:
        [(key, value)] = cache.execute("SELECT * FROM answer").fetchall()
    assert key == "search Orla Brandt"
    assert json.loads(value)["title"] == "Orla Brandt"


def test_expert_does_not_play_on_live_pages(make: Callable[..., LiveWikipedia], library: Path) -> None:
    """However the live Wikipedia is given: the facts that the expert knows are those of other pages."""
    env = HotpotQAEnv("dev", data_dir=library, wikipedia=make())
    env.reset(seed=0)
    assert env.version()["engine"] == "live"
    with pytest.raises(ConfigError, match="live ones are no longer"):
        env.expert()
