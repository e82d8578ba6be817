"""An encyclopedia in one SQLite file: titles and aliases to open pages by, full-text indexes to find them by.

The file is built once by :func:`build_wiki` and then only read, so any number of processes and threads share it; each
opens a connection of its own. What an agent wrote is never read as query syntax: it is taken apart into words, each of
which is quoted.

Tables: ``page`` (title, sentences as JSON), ``name`` (key of a title, an alias, a title without accents, or one without
the explanation in brackets), ``words`` (FTS5 with the Porter stemmer over title and text), ``trigrams`` (FTS5 over the
characters of titles, which finds misspelt ones) and ``about``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.wiki import SIMILAR, STOP_WORDS, Suggestions, plain_key, title_key
from agentgym_tlm.errors import DataError, DependencyError, EnvironmentFailureError
from agentgym_tlm.files import replaced_file

FORMAT_VERSION = 1
BUILD_COMMAND = "agentgym-tlm data build-wiki CORPUS --output FILE"

_APPLICATION_ID = 0x77696B69
_TITLE, _ALIAS, _PLAIN, _BARE = range(4)  # ranks of names; a bare name suggests a page and does not open it
_MAX_WORDS = 32
_MAX_TRIGRAMS = 64
_MAX_NAME_WORDS = 10
_EXPLANATION = re.compile(r" \([^()]*\)$")
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE about (description TEXT);
CREATE TABLE page (id INTEGER PRIMARY KEY, title TEXT, sentences TEXT);
CREATE TABLE name (key TEXT, rank INTEGER, page INTEGER, PRIMARY KEY (key, rank, page)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(title, body, content='', tokenize="porter unicode61 remove_diacritics 2");
CREATE VIRTUAL TABLE trigrams USING fts5(title, content='', tokenize='trigram');
"""


def build_wiki(pages: Iterable[Page], path: Path) -> int:
    """Write the encyclopedia of ``pages`` to ``path``, complete or not at all; returns how many there are.

    Of several pages with the same title, the first one counts. An encyclopedia that is there already is replaced.
    Raises DataError when there is no page, when the file cannot be written, or when it is there and something else.
    """
    _require_fts5()
    if path.is_file() and not _is_wiki(path):
        raise DataError(f"{path} is there already, and is no encyclopedia: name another file, or delete it first")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as partial, closing(sqlite3.connect(partial)) as database:
            database.executescript(_SCHEMA)
            count = _fill(database, pages)
            database.commit()
    except (OSError, sqlite3.Error) as error:
        raise DataError(f"the encyclopedia {path} cannot be written: {error}") from error
    return count


def _is_wiki(path: Path) -> bool:
    """Whether a file is an encyclopedia of ours, of whatever format."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION_ID)
    except sqlite3.Error:
        return False


def _fill(database: sqlite3.Connection, pages: Iterable[Page]) -> int:
    digest = hashlib.sha256()
    titles: set[str] = set()
    for page in pages:
        if page.title in titles:
            continue
        titles.add(page.title)
        number, sentences = len(titles), json.dumps(page.sentences, ensure_ascii=False)
        digest.update(f"{page.title}\n{sentences}\n".encode())
        database.execute("INSERT INTO page VALUES (?, ?, ?)", (number, page.title, sentences))
        database.executemany("INSERT OR IGNORE INTO name VALUES (?, ?, ?)", _names(page, number))
        body = "".join(page.sentences)
        database.execute("INSERT INTO words(rowid, title, body) VALUES (?, ?, ?)", (number, page.title, body))
        database.execute("INSERT INTO trigrams(rowid, title) VALUES (?, ?)", (number, plain_key(page.title)))
    if not titles:
        raise DataError("the corpus holds no page")
    about = f"{len(titles):,} pages, sha256 {digest.hexdigest()[:12]}"
    database.execute("INSERT INTO about VALUES (?)", (about,))
    for index in ("words", "trigrams"):
        database.execute(f"INSERT INTO {index}({index}) VALUES ('optimize')")
    return len(titles)


def _names(page: Page, number: int) -> Iterator[tuple[str, int, int]]:
    title = title_key(page.title)
    yield title, _TITLE, number
    for alias in page.aliases:
        yield title_key(alias), _ALIAS, number
    if (plain := plain_key(title)) != title:
        yield plain, _PLAIN, number
    if bare := _EXPLANATION.sub("", plain):
        yield bare, _BARE, number


class _Named(NamedTuple):
    number: int
    title: str
    rank: int


class OfflineWikipedia:
    """The pages of a file that :func:`build_wiki` wrote. Safe to pickle, to fork with, and to use from any thread.

    Raises DataError when the file is missing or is not one. Damage found later is an EnvironmentFailureError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _require_fts5()
        self.path = Path(path).resolve()
        self._connections = threading.local()
        if not self.path.is_file():
            raise DataError(f"there is no encyclopedia at {self.path}: build it with `{BUILD_COMMAND}`")
        try:
            kind = [
                self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            ]
        except sqlite3.Error as error:
            raise DataError(f"{self.path} is no encyclopedia ({error}): build it with `{BUILD_COMMAND}`") from error
        if kind != [_APPLICATION_ID, FORMAT_VERSION]:
            raise DataError(
                f"{self.path} is no encyclopedia of format {FORMAT_VERSION}: build it again with `{BUILD_COMMAND}`"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    @cached_property
    def description(self) -> str:
        """Number of pages and hash of their text."""
        return f"offline encyclopedia of {self._rows('SELECT description FROM about')[0][0]}"

    def search(self, entity: str) -> Page | Suggestions:
        """The page with that title or alias; its other pages if the name has several, similar titles if it has none."""
        title, key, plain = entity.strip(), title_key(entity), plain_key(entity)
        named = self._named(key) or self._named(plain)
        best = [each for each in named if each.rank == named[0].rank]
        exact = [each for each in best if each.title == title] or best
        if len(exact) == 1:
            return self._page(exact[0].number)
        if exact:
            return Suggestions(tuple(each.title for each in exact[:SIMILAR]), ambiguous=True)
        return Suggestions(self._similar(plain))

    def retrieve(self, query: str, limit: int) -> tuple[Page, ...]:
        """The best pages by BM25, a word in the title counting five times."""
        return tuple(self._page(number) for number in self._matches(_words_query(query), limit))

    def mentions(self, text: str) -> tuple[str, ...]:
        """Titles of the pages whose titles or aliases stand in ``text``, with a capital or a digit first."""
        spans = _name_spans(text)
        keys = sorted({key for _, _, key in spans})
        pages: dict[str, dict[int, str]] = {}
        for i in range(0, len(keys), 500):
            batch = keys[i : i + 500]
            for key, number, title in self._rows(
                f"SELECT key, page.id, title FROM name JOIN page ON page.id = page WHERE rank <= {_ALIAS} "
                f"AND key IN ({', '.join('?' * len(batch))}) ORDER BY key, rank, page",
                batch,
            ):
                pages.setdefault(key, {})[number] = title
        found: dict[str, None] = {}
        taken = 0
        for start, end, key in spans:  # by start, the longest first
            if start >= taken and len(pages.get(key, ())) == 1:
                found.update(dict.fromkeys(pages[key].values()))
                taken = end
        return tuple(found)

    def check(self) -> None:
        """Read the whole file. Raises EnvironmentFailureError where it is damaged."""
        [[state], *_] = self._rows("PRAGMA quick_check")
        if state != "ok":
            raise EnvironmentFailureError(f"the encyclopedia {self.path} is damaged: {state}")
        for (number,) in self._rows("SELECT id FROM page"):
            self._page(number)

    def _named(self, key: str) -> list[_Named]:
        """Pages of which ``key`` is a name that opens them, titles before aliases."""
        rows = self._rows(
            f"SELECT page.id, title, MIN(rank) FROM name JOIN page ON page.id = page WHERE key = ? AND rank < {_BARE} "
            "GROUP BY page.id ORDER BY MIN(rank), page.id",
            [key],
        )
        return [_Named(*row) for row in rows]

    def _similar(self, plain: str) -> tuple[str, ...]:
        """Titles that are the same but for their explanation; then, in turn, such with like characters and words."""
        numbers = [row[0] for row in self._rows("SELECT page FROM name WHERE key = ? AND rank = ?", [plain, _BARE])]
        spelt, worded = self._matches(_trigrams_query(plain), SIMILAR), self._matches(_words_query(plain), SIMILAR)
        for i in range(SIMILAR):
            numbers += spelt[i : i + 1] + worded[i : i + 1]
        return tuple(self._page(number).title for number in list(dict.fromkeys(numbers))[:SIMILAR])

    def _matches(self, query: tuple[str, str], limit: int) -> list[int]:
        table, match = query
        if not match:
            return []
        rank = f"bm25({table}, 5.0, 1.0)" if table == "words" else f"bm25({table})"
        return [
            row[0]
            for row in self._rows(
                f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY {rank}, rowid LIMIT ?", [match, limit]
            )
        ]

    def _page(self, number: int) -> Page:
        rows = self._rows("SELECT title, sentences FROM page WHERE id = ?", [number])
        try:
            [(title, text)] = rows
            sentences = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            title = sentences = None
        if not (isinstance(title, str) and isinstance(sentences, list) and all(isinstance(s, str) for s in sentences)):
            raise EnvironmentFailureError(f"the encyclopedia {self.path} is damaged at page {number}: build it again")
        return Page(title, tuple(sentences))

    def _rows(self, query: str, values: Sequence[str | int] = ()) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise EnvironmentFailureError(f"the encyclopedia {self.path} cannot be read: {error}") from error

    @property
    def _database(self) -> sqlite3.Connection:
        """This process's and thread's own connection."""
        local = self._connections
        if getattr(local, "process", None) != os.getpid():
            local.database = sqlite3.connect(f"{self.path.as_uri()}?mode=ro&immutable=1", uri=True)
            local.process = os.getpid()
        database: sqlite3.Connection = local.database
        return database


@contextmanager
def temporary_wiki(pages: Iterable[Page]) -> Iterator[OfflineWikipedia]:
    """An encyclopedia that lasts as long as the ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="agentgym-tlm-") as folder:
        path = Path(folder) / "wiki.sqlite"
        build_wiki(pages, path)
        yield OfflineWikipedia(path)


def _words_query(text: str) -> tuple[str, str]:
    """Table and FTS5 query: any of the words of ``text``, without the commonest."""
    words = list(dict.fromkeys(re.findall(r"\w+", text.casefold())))
    telling = [word for word in words if word not in STOP_WORDS] or words
    return "words", " OR ".join(f'"{word}"' for word in telling[:_MAX_WORDS])


def _trigrams_query(text: str) -> tuple[str, str]:
    """Table and FTS5 query: any three characters in a row of ``text``."""
    trigrams = list(dict.fromkeys(text[i : i + 3].replace('"', '""') for i in range(len(text) - 2)))
    return "trigrams", " OR ".join(f'"{trigram}"' for trigram in trigrams[:_MAX_TRIGRAMS])


def _name_spans(text: str) -> list[tuple[int, int, str]]:
    """Start, end and key of everything in ``text`` that could be a name; by start, the longest first."""
    words = list(re.finditer(r"\w+", text))
    spans = []
    for i, first in enumerate(words):
        if not (first[0][0].isupper() or first[0][0].isdigit()):
            continue
        for last in reversed(words[i : i + _MAX_NAME_WORDS]):
            end = last.end()
            closed = end + (text[end : end + 1] in (")", ".", "!", "?"))
            for stop in sorted({closed, end}, reverse=True):
                key = title_key(text[first.start() : stop])
                if key not in STOP_WORDS:
                    spans.append((first.start(), stop, key))
    return spans


@lru_cache
def _require_fts5() -> None:
    if sqlite3.sqlite_version_info < (3, 34):
        raise DependencyError(
            f"the offline encyclopedia needs SQLite 3.34 or newer, and this Python has {sqlite3.sqlite_version}: "
            "use a newer Python"
        )
    try:
        sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE test USING fts5(text)")
    except sqlite3.OperationalError as error:
        raise DependencyError(
            f"the SQLite of this Python has no full-text search ({error}): use a Python that was built with FTS5"
        ) from error
