"""The files that a corpus and the official questions come in: JSON arrays and JSON lines, compressed or not.

A corpus is a file of passages, or an official question file, whose contexts are taken as passages. A passage is an
object with

- ``title``: of the page; HTML entities are resolved;
- ``sentences``: a list of strings which, joined without anything between them, are its text;
- ``aliases``: optional, a list of other titles that lead to it (redirects).

Other fields are ignored. Of several passages with the same title, the first one counts.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from agentgym_tlm.envs.hotpotqa.actions import encodable
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.wiki import clean_title
from agentgym_tlm.errors import DataError

_CHUNK = 1 << 20
_BLANK = re.compile(r"[\s\ufeff]*")
_GRAMMAR: dict[str, dict[str, str]] = {
    "start": {"[": "first", "value": "lines"},
    "lines": {"value": "lines"},
    "first": {"value": "after", "]": "end"},
    "after": {",": "next", "]": "end"},
    "next": {"value": "after"},
    "end": {},
}
"""What may follow on what, and leads where, in a JSON array and in JSON lines."""
HUGGING_FACE = (
    "this is the layout of the Hugging Face data set hotpot_qa (a list of titles beside one of sentences), not that of "
    "the official files"
)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a ``.json`` array or of ``.jsonl`` lines, either with ``.gz``, read piece by piece.

    Raises DataError, naming the record, when the file cannot be read, is damaged, or holds something else.
    """
    count = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for record in _objects(file):
                if not isinstance(record, dict):
                    raise DataError(f"{path}: record {count + 1} is no JSON object but {str(record)[:40]!r}")
                yield record
                count += 1
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise DataError(f"{path} cannot be read after record {count}: {type(error).__name__} {error}") from error
    if not count:
        raise DataError(f"{path} is empty: fetch it again")


def _objects(file: IO[str]) -> Iterator[Any]:
    """The values of one JSON array, or of JSON lines. Raises ValueError for anything else."""
    state = "start"
    for token, value in _tokens(file):
        try:
            state = _GRAMMAR[state][token]
        except KeyError:
            raise ValueError(f"{token!r} stands where {' or '.join(_GRAMMAR[state]) or 'the end'} should") from None
        if token == "value":
            yield value
    if state not in ("start", "lines", "end"):
        raise ValueError("the array is not closed")


def _tokens(file: IO[str]) -> Iterator[tuple[str, Any]]:
    """JSON values, each as ``("value", it)``, and the brackets and commas around them, read piece by piece."""
    decode = json.JSONDecoder().raw_decode
    buffer, at, wanted = "", 0, _CHUNK
    while True:
        piece = file.read(wanted)
        buffer, at = buffer[at:] + piece, 0
        while (at := _BLANK.match(buffer, at).end()) < len(buffer):  # type: ignore[union-attr]
            if buffer[at] in "[],":
                at += 1
                yield buffer[at - 1], None
                continue
            try:
                value, at = decode(buffer, at)
            except ValueError:
                if not piece:
                    raise
                break
            yield "value", value
        if not piece:
            return
        wanted = max(_CHUNK, len(buffer) - at)


def read_pages(paths: Iterable[Path]) -> Iterator[Page]:
    """Pages of corpus files; see the module docstring for what they hold. Raises DataError for anything else."""
    for path in paths:
        for number, record in enumerate(read_records(path), start=1):
            try:
                yield from _pages(record)
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{path}: record {number} is neither a passage (title, sentences) nor a question with its context: "
                    f"{type(error).__name__} {error}"
                ) from error


def _pages(record: dict[str, Any]) -> list[Page]:
    if isinstance(record.get("context"), dict):
        raise ValueError(HUGGING_FACE)
    if "context" in record:
        return [_page(title, sentences) for title, sentences in record["context"]]
    return [_page(record["title"], record["sentences"], record.get("aliases", ()))]


def _page(title: Any, sentences: Any, aliases: Any = ()) -> Page:
    if not (isinstance(title, str) and clean_title(title)):
        raise ValueError(f"the title is {title!r}")
    for strings in (sentences, aliases):
        if isinstance(strings, str) or not all(isinstance(each, str) for each in strings):
            raise ValueError(f"{title!r} has {str(strings)[:40]!r} where a list of strings should be")
    return Page(clean_title(title), tuple(map(encodable, sentences)), tuple(clean_title(alias) for alias in aliases))
