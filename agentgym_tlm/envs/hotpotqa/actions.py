"""What an agent wrote, as an action.

The first ``Search[...]``, ``Lookup[...]``, ``Finish[...]`` or ``Think[...]`` in the text counts, as far as the protocol
has them, in any case, whatever stands before or after it. The argument goes to the bracket that closes it, so it may
hold brackets of its own; if none does, it goes to the last closing bracket of the line, or else to the next one. It has
single blanks and no control characters. An action without a closing bracket, or with an argument longer than
``MAX_ARGUMENT_CHARS``, is none. Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple, cast, get_args

Kind = Literal["search", "lookup", "finish", "think"]
MAX_ARGUMENT_CHARS = 1000

_OPENING = re.compile(r"\b(search|lookup|finish|think)\s{0,4}\[", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Action(NamedTuple):
    """One action; the argument may be empty."""

    kind: Kind
    argument: str


def parse_action(text: str, kinds: Collection[Kind] = get_args(Kind)) -> Action | None:
    """The first action of these kinds in ``text``; None when there is none."""
    opening = next((found for found in _OPENING.finditer(text) if found[1].lower() in kinds), None)
    if opening is None:
        return None
    start = opening.end()
    end = _closing_bracket(text, start)
    if end == -1 or end - start > MAX_ARGUMENT_CHARS:
        return None
    return Action(cast(Kind, opening[1].lower()), printable(text[start:end]))


def printable(text: str) -> str:
    """``text`` with single blanks, without control characters and lone surrogates."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def encodable(text: str) -> str:
    """``text`` with a question mark for each lone surrogate, which can neither be printed nor stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _closing_bracket(text: str, start: int) -> int:
    """Where the bracket that was opened before ``start`` is closed; -1 if nowhere."""
    depth = 1
    for bracket in re.finditer(r"[\[\]]", text[start:]):
        depth += 1 if bracket[0] == "[" else -1
        if depth == 0:
            return start + bracket.start()
    line = text.find("\n", start)
    last = text.rfind("]", start, len(text) if line == -1 else line)
    return text.find("]", start) if last == -1 else last
