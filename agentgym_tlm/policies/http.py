"""JSON over HTTP with the patience that model servers need: many requests at once, timeouts, pauses, retries.

What may pass is tried again, ``max_retries`` times: no connection, no answer in time, status 408, 429 and 5xx, and a
reply that cannot be read. The pauses double from ``backoff`` seconds on, with jitter from the request's seed; a
Retry-After header is obeyed instead. What cannot pass (a wrong key or address, an unknown model, an exhausted quota)
raises PolicyFailureError at once. Everything else, such as a request that the server finds too long, is the answer to
that one request. So is a request that was tried in vain, unless the server has never given a usable answer, or
``max_failures`` of them in a row say that it is the server: then PolicyFailureError is raised, too.

The requests run in an event loop of their own thread. That works inside a notebook, which has a running loop, and ends
with Ctrl-C: requests in flight are cancelled, by which a server notices that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar

from agentgym_tlm.errors import ConfigError, DependencyError, PolicyFailureError
from agentgym_tlm.ranges import check_count, check_range

try:
    import httpx
except ImportError as error:
    raise DependencyError("policies behind a server need the httpx package: pip install 'agentgym-tlm[remote]'") from (
        error
    )

T = TypeVar("T")

MAX_BACKOFF = 30.0
"""Seconds; the longest pause between two tries of our own choice."""
MAX_RETRY_AFTER = 300.0
"""Seconds; a server that asks for a longer pause is not waited for."""

_PASSING = frozenset({408, 425, 429})
_FINAL = {
    401: "refuses the API key: set the right one in OPENAI_API_KEY",
    403: "does not allow this: check what the key in OPENAI_API_KEY may use",
    404: "does not know the address or the model: check base_url, which usually ends in /v1, and the model's name",
}
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context window", "maximum model length")


class RequestError(PolicyFailureError):
    """One request without a usable answer. ``passing``: it may have one if it is tried again, after ``retry_after``."""

    def __init__(
        self, message: str, *, status: int = 0, passing: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.passing = passing
        self.retry_after = retry_after

    @property
    def too_long(self) -> bool:
        """True when prompt and response do not fit into the model's context."""
        return self.status in (400, 413, 422) and any(words in str(self).lower() for words in _TOO_LONG)


class Request(NamedTuple):
    """What to post; ``seed`` that of the pauses between tries."""

    body: dict[str, Any]
    seed: int


class JsonServer:
    """A server that is asked at ``base_url`` with at most ``concurrency`` requests at once.

    ``timeout`` is in seconds, without sign of life from the server. The key is sent as a bearer token and shown
    nowhere. Raises ConfigError for an address or options that cannot be.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        concurrency: int = 32,
        timeout: float = 300.0,
        max_retries: int = 6,
        backoff: float = 0.5,
        max_failures: int = 8,
    ) -> None:
        check_count("concurrency", concurrency)
        check_range("timeout", timeout, "(0, inf)")
        check_count("max_retries", max_retries, "[0, inf)")
        check_range("backoff", backoff, "(0, inf)")
        check_count("max_failures", max_failures)
        self.base_url = _checked_url(base_url)
        self.max_retries = max_retries
        self.backoff = backoff
        self.max_failures = max_failures
        self.concurrency = concurrency
        self._key = (api_key or "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigError("OPENAI_API_KEY holds characters that no key has: copy it again")
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0), pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        )
        self._has_answered = False
        self._failed_in_a_row = 0

    def get(self, path: str, read: Callable[[dict[str, Any]], T]) -> T:
        """What ``read`` makes of the reply. Raises PolicyFailureError when there is none."""
        answer = _run(self._ask("GET", path, None, read, random.Random(0)))
        self._has_answered = True
        return answer

    def post_all(
        self, path: str, requests: Sequence[Request], read: Callable[[dict[str, Any]], T]
    ) -> list[T | RequestError]:
        """What ``read`` makes of each reply, in order, or why there is none; see the module docstring.

        ``read`` raises a RequestError for a reply that is not what it should be.
        """
        answers = _run(self._post_all(path, requests, read))
        failures = [answer for answer in answers if isinstance(answer, RequestError) and not answer.too_long]
        if len(failures) < len(answers):
            self._has_answered, self._failed_in_a_row = True, 0
            return answers
        self._failed_in_a_row += len(failures)
        never = not self._has_answered and all(failure.passing for failure in failures)
        if failures and (never or self._failed_in_a_row >= self.max_failures):
            raise PolicyFailureError(f"no answer to {self._failed_in_a_row} requests in a row, lastly: {failures[-1]}")
        return answers

    async def _post_all(
        self, path: str, requests: Sequence[Request], read: Callable[[dict[str, Any]], T]
    ) -> list[T | RequestError]:
        free = asyncio.Semaphore(self.concurrency)

        async def post(request: Request) -> T | RequestError:
            async with free:
                try:
                    return await self._ask("POST", path, request.body, read, random.Random(request.seed))
                except RequestError as error:
                    return error

        tasks = [asyncio.ensure_future(post(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _ask(
        self, method: str, path: str, body: Any, read: Callable[[dict[str, Any]], T], rng: random.Random
    ) -> T:
        """One request, tried until it has an answer or is given up."""
        for attempt in range(self.max_retries + 1):
            try:
                return read(await self._ask_once(method, path, body))
            except RequestError as error:
                if not error.passing:
                    raise
                last = error
            pause = last.retry_after
            if pause is None:
                pause = min(MAX_BACKOFF, self.backoff * 2**attempt) * (0.5 + 0.5 * rng.random())
            if pause > MAX_RETRY_AFTER:
                raise RequestError(f"{last}, and wants to be asked again in {pause:.0f} s", passing=True)
            if attempt < self.max_retries:
                await asyncio.sleep(pause)
        raise RequestError(f"{last} (attempts: {self.max_retries + 1})", passing=True)

    async def _ask_once(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """The JSON object of a reply. Raises RequestError, and PolicyFailureError for what cannot pass."""
        where = self.base_url + path
        try:
            response = await self._client.request(method, where, json=body)
        except httpx.TimeoutException as error:
            raise RequestError(f"{where} does not answer in time ({type(error).__name__})", passing=True) from error
        except httpx.DecodingError as error:
            raise RequestError(f"{where} answers what cannot be decoded ({error})", passing=True) from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise RequestError(f"{where} cannot be reached ({reason})", passing=True) from error
        status = response.status_code
        if not response.is_success:
            code, reason = self._reason(response)
            said = f"{where} answers {status}" + (f": {reason}" if reason else "")
            if "insufficient_quota" in code:
                raise PolicyFailureError(f"{said}. The quota is exhausted")
            if status in (401, 403):  # the reason often shows part of the key
                raise PolicyFailureError(f"{where} {_FINAL[status]} ({status})")
            if status in _FINAL or 300 <= status < 400:
                raise PolicyFailureError(f"{said}. The server {_FINAL.get(status, 'is elsewhere: check base_url')}")
            passing = status in _PASSING or status >= 500
            raise RequestError(said, status=status, passing=passing, retry_after=_retry_after(response))
        try:
            reply = response.json()
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} answers what is not JSON: {response.text[:80]!r}", passing=True) from error
        if not isinstance(reply, dict):
            raise RequestError(f"{where} answers no JSON object but {str(reply)[:80]!r}", passing=True)
        return reply

    def _reason(self, response: httpx.Response) -> tuple[str, str]:
        """The code and the words of an error, without the key."""
        code, reason = "", response.text
        try:
            record = response.json()
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            inner = record.get("error", record)
            if isinstance(inner, dict):
                code = " ".join(str(inner.get(name, "")) for name in ("code", "type"))
                reason = f"{inner.get('message', reason)} {code}".strip()
            else:
                reason = str(inner)
        reason = " ".join(reason.split())[:300]
        return code, reason.replace(self._key, "***") if self._key else reason


def _checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url.strip().rstrip("/"))
    except (httpx.InvalidURL, AttributeError) as error:
        raise ConfigError(f"base_url={base_url!r} is no address such as http://localhost:8000/v1") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url={base_url!r} is no address such as http://localhost:8000/v1")
    if url.userinfo:
        raise ConfigError("base_url must hold no password, it is written to logs: use OPENAI_API_KEY")
    return str(url)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait, from a number or a date."""
    value = response.headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="model servers", daemon=True).start()
    return loop


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the caller is interrupted."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    finally:
        future.cancel()
