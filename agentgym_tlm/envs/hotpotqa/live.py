"""The English Wikipedia of today, through the ``wikipedia-api`` package.

Searching for an entity opens the page of that title, redirects followed; if there is none, the page that Wikipedia's
own "Go" leads to, which forgives case; else it offers the titles that a full-text search finds. A disambiguation page
is no page: its meanings are offered. Every answer is kept in a file and not asked for again, so a run that is repeated
reads the same pages.

Requests are made one at a time. Throttling, server errors, time-outs and dropped connections are tried again a few
times, with pauses that are never longer than ``max_pause``; whatever then remains is an EnvironmentFailureError.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from agentgym_tlm import __version__
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.sentences import split_sentences
from agentgym_tlm.envs.hotpotqa.wiki import SIMILAR, Suggestions, clean_title
from agentgym_tlm.errors import ConfigError, DependencyError, EnvironmentFailureError

try:
    import httpx
    import wikipediaapi
except ImportError as error:
    raise DependencyError(
        "wikipedia='live' needs the wikipedia-api package: pip install 'agentgym-tlm[hotpotqa]'"
    ) from error

T = TypeVar("T")

ATTEMPTS = 4
MAX_QUERY_CHARS = 300
"""Wikipedia's search refuses longer queries."""

_MAX_TITLE_BYTES = 255
_IMPOSSIBLE_IN_TITLE = re.compile(r"[#<>\[\]{}|]")
_OTHER_NAMESPACE = re.compile(
    r":|(?:talk|user|wikipedia|wp|project|file|image|media|mediawiki|template|help|category|portal|draft|timedtext|"
    r"module|special)(?: talk)?\s*:",
    re.IGNORECASE,
)
_SEVERAL_MEANINGS = re.compile(r"\brefers? to\b")
_DISAMBIGUATION = "Category:All disambiguation pages"
_APPENDICES = ("Bibliography", "External links", "Further reading", "Notes", "References", "See also", "Sources")
_PASSING_API_ERRORS = ("maxlag", "ratelimited", "readonly")
_NAME = re.compile(r"[A-Z0-9À-Þ][\w'\u2019.&-]*(?:\s+(?:(?:of|the|and|de|in|on)\s+){0,2}[A-Z0-9À-Þ][\w'\u2019.&-]*)*")


class _ApiError(httpx.RequestError):
    """Wikipedia answered with an error although the HTTP status says that all is well."""

    def __init__(self, code: str, text: str, request: httpx.Request) -> None:
        super().__init__(f"{code}: {text}", request=request)
        self.code = code


class _ElsewhereError(httpx.RequestError):
    """The title belongs to another wiki."""


class LiveWikipedia:
    """Wikipedia as it is now. ``contact`` is the operator's e-mail or page, which goes into the User-Agent.

    ``cache`` is the file in which answers are kept. ``retry_pause`` (s) is the first pause after a failure, later ones
    double it; ``max_pause`` (s) caps them and what the server asks for. ``transport`` replaces the network's. Can be
    pickled, and used by many threads.
    """

    def __init__(
        self,
        contact: str | None,
        cache: Path,
        *,
        timeout: float = 10.0,
        retry_pause: float = 1.0,
        max_pause: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if (
            not isinstance(contact, str)
            or not re.search(r"\w@\w|https?://\w", contact)
            or not (contact.isascii() and contact.isprintable())
        ):
            raise ConfigError(
                f"wikipedia='live' needs contact=, your e-mail or web address in ASCII, not {contact!r}: Wikipedia "
                "asks who operates a program, and throttles those that do not say"
            )
        self.contact = contact
        self.cache = cache.expanduser().resolve()
        self.timeout = timeout
        self.retry_pause = retry_pause
        self.max_pause = max_pause
        self._transport = transport
        self._connect()

    def _connect(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._client: wikipediaapi.Wikipedia | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_process", "_lock", "_client")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    @property
    def description(self) -> str:
        """The encyclopedia and where its answers are kept."""
        return f"live English Wikipedia, answers kept in {self.cache}"

    def search(self, entity: str) -> Page | Suggestions:
        """The page of that title; the meanings if it has several, or titles that a search finds if there is none."""
        entity = clean_title(entity)
        if not entity:
            return Suggestions(())
        answer = self._kept(f"search {entity}", lambda: _as_json(self._search(entity)))
        match answer:
            case {"title": str(title), "sentences": list(sentences)} if _are_texts(sentences):
                return Page(title, tuple(sentences))
            case {"titles": list(titles), "ambiguous": bool(ambiguous)} if _are_texts(titles):
                return Suggestions(tuple(titles), ambiguous)
        raise self._damage(str(answer)[:80])

    def retrieve(self, query: str, limit: int) -> tuple[Page, ...]:
        """The pages that Wikipedia's full-text search finds; pages with several meanings are left out."""
        query = clean_title(query)
        if not query:
            return ()
        titles = self._kept(f"retrieve {limit} {query}", lambda: self._titles(query, limit))
        if not (isinstance(titles, list) and _are_texts(titles)):
            raise self._damage(str(titles)[:80])
        pages = (self.search(title) for title in titles)
        return tuple(page for page in pages if isinstance(page, Page))

    def mentions(self, text: str) -> tuple[str, ...]:
        """Capitalised names in ``text``, whether there is a page of that title or not."""
        return tuple(dict.fromkeys(name[0].rstrip(".'\u2019-&") for name in _NAME.finditer(text)))

    def _search(self, entity: str) -> Page | Suggestions:
        page = self._open(entity)
        if page is None:
            near = self._titles(entity, 1, what="nearmatch")
            page = self._open(near[0]) if near else None
        if page is None:
            return Suggestions(tuple(self._titles(entity, SIMILAR)))
        if _SEVERAL_MEANINGS.search(page.summary.partition("\n")[0]) and self._is_disambiguation(page.title):
            return Suggestions(self._meanings(page), ambiguous=True)
        return Page(page.title, tuple(_sentences(page)))

    def _open(self, title: str) -> wikipediaapi.WikipediaPage | None:
        if (
            _IMPOSSIBLE_IN_TITLE.search(title)
            or _OTHER_NAMESPACE.match(title)
            or len(title.encode()) > _MAX_TITLE_BYTES
        ):
            return None

        def fetch(client: wikipediaapi.Wikipedia) -> wikipediaapi.WikipediaPage | None:
            page = client.page(title)
            _ = page.text  # one request, which also answers exists()
            return page if page.exists() else None

        return self._ask(fetch)

    def _titles(self, query: str, limit: int, *, what: Any = None) -> list[str]:
        query = query[:MAX_QUERY_CHARS]
        return self._ask(lambda client: list(client.search(query, limit=limit, what=what).pages)) or []

    def _is_disambiguation(self, title: str) -> bool:
        return _DISAMBIGUATION in (self._ask(lambda client: client.page(title).categories) or ())

    def _meanings(self, page: wikipediaapi.WikipediaPage) -> tuple[str, ...]:
        """Titles that the page links to, in the order of its text; those that the text does not spell out are last."""
        links = self._ask(lambda client: client.page(page.title).links) or {}
        titles = [title for title, link in links.items() if link.ns == 0 and "(disambiguation)" not in title]
        positions = {title: page.text.find(title) for title in titles}
        return tuple(sorted(titles, key=lambda title: (positions[title] < 0, positions[title])))[:SIMILAR]

    def _ask(self, request: Callable[[wikipediaapi.Wikipedia], T]) -> T | None:
        """The answer to a request, tried a few times; None when the title belongs to another wiki."""
        if self._process != os.getpid():  # a fork must not share its parent's lock and sockets
            self._connect()
        for attempt in range(ATTEMPTS):
            try:
                with self._lock:
                    return request(self._connected())
            except wikipediaapi.WikipediaException as error:
                if isinstance(error.__cause__, _ElsewhereError):
                    return None
                if attempt == ATTEMPTS - 1 or not _is_passing(error):
                    reason = f"{type(error).__name__} {error.__cause__ or error}"
                    raise EnvironmentFailureError(
                        f"Wikipedia could not be asked (attempt {attempt + 1}): {reason}"
                    ) from error
                wanted = getattr(error, "retry_after", None)
                pause = self.retry_pause * 2**attempt if wanted is None else float(wanted)
            except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
                # What the package raises for an answer of a shape that it does not expect.
                raise EnvironmentFailureError(
                    f"Wikipedia's answer is not understood: {type(error).__name__} {error}"
                ) from error
            time.sleep(min(pause, self.max_pause))
        raise AssertionError("the last attempt returns or raises")

    def _connected(self) -> wikipediaapi.Wikipedia:
        if self._client is None:
            # The package sets a transport of its own, with which httpx looks at no proxy variable.
            transport = self._transport or httpx.HTTPTransport(proxy=urllib.request.getproxies().get("https"))
            self._client = wikipediaapi.Wikipedia(
                user_agent=f"agentgym-tlm/{__version__} ({self.contact})",
                max_retries=0,
                timeout=self.timeout,
                transport=transport,
                event_hooks={"response": [_check]},
            )
        return self._client

    def _kept(self, key: str, ask: Callable[[], Any]) -> Any:
        """The answer of ``ask``, from the cache if it was asked before."""
        try:
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.cache, timeout=60)) as cache:
                cache.execute("CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, value TEXT)")
                row = cache.execute("SELECT value FROM answer WHERE key = ?", [key]).fetchone()
                if row is None:
                    kept = json.dumps(ask())
                    with cache:
                        cache.execute("INSERT OR IGNORE INTO answer VALUES (?, ?)", (key, kept))
                else:
                    kept = row[0]
        except (OSError, sqlite3.Error) as error:
            raise EnvironmentFailureError(f"the cache {self.cache} cannot be used: {error}") from error
        try:
            return json.loads(kept)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damage(str(error)) from error

    def _damage(self, what: str) -> EnvironmentFailureError:
        return EnvironmentFailureError(f"the cache {self.cache} is damaged ({what}): delete it, and ask again")


def _check(response: httpx.Response) -> None:
    """Raise for the answers of which the package makes an empty result or a KeyError."""
    if response.status_code != 200:
        return
    response.read()
    try:
        body = response.json()
    except ValueError:
        return  # the package reports it
    error, query = _object(body, "error"), _object(body, "query")
    if "interwiki" in query:
        raise _ElsewhereError("another wiki", request=response.request)
    found = [query[key] for key in ("pages", "search") if key in query]
    results = [each for some in found for each in (some.values() if isinstance(some, dict) else some)]
    if not found or not all(isinstance(result, dict) for result in results):
        code, text = str(error.get("code", "no answer")), str(error.get("info", str(body)[:80]))
        raise _ApiError(code, text, response.request)


def _object(body: Any, key: str) -> dict[str, Any]:
    """The object under a key of an answer; an empty one when there is none."""
    value = body.get(key) if isinstance(body, dict) else None
    return value if isinstance(value, dict) else {}


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_passing(error: wikipediaapi.WikipediaException) -> bool:
    """Whether trying again may help."""
    if isinstance(error.__cause__, _ApiError):
        code = error.__cause__.code
        return code in _PASSING_API_ERRORS or code.startswith("internal_api_error")
    if isinstance(error, wikipediaapi.WikiHttpError):
        return bool(error.status_code == 429 or error.status_code >= 500)
    return True


def _as_json(answer: Page | Suggestions) -> dict[str, Any]:
    if isinstance(answer, Page):
        return {"title": answer.title, "sentences": answer.sentences}
    return {"titles": answer.titles, "ambiguous": answer.ambiguous}


def _sentences(page: wikipediaapi.WikipediaPage) -> Iterator[str]:
    """Sentences of all paragraphs but those of the appendices; the first of a paragraph begins with a line break."""
    first = True
    for paragraph in _paragraphs(page):
        for number, sentence in enumerate(split_sentences(paragraph)):
            yield sentence if number or first else f"\n{sentence}"
            first = False


def _paragraphs(page: wikipediaapi.WikipediaPage) -> Iterator[str]:
    def texts(sections: list[wikipediaapi.WikipediaPageSection]) -> Iterator[str]:
        for section in sections:
            if section.title not in _APPENDICES:
                yield section.text
                yield from texts(section.sections)

    for text in (page.summary, *texts(page.sections)):
        for line in text.splitlines():
            if line.strip():
                yield line.strip()
