"""What the environment asks of an encyclopedia, whichever it is."""

from __future__ import annotations

import html
import unicodedata
from dataclasses import dataclass
from typing import Protocol

from agentgym_tlm.envs.hotpotqa.actions import printable
from agentgym_tlm.envs.hotpotqa.question import Page

SIMILAR = 5
"""Titles that are offered instead of a page that there is not."""

_STOP_WORDS = (
    "a an and are as at be between both but by did do does for from had has have he her his how in into is it its many "
    "no not of on or she than that the their they this to was were what when where which who whom whose why with yes "
    "you"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that say nothing about what a text is about."""


@dataclass(frozen=True, slots=True)
class Suggestions:
    """No page, but titles of pages that might be meant, the best first."""

    titles: tuple[str, ...]
    ambiguous: bool = False
    """The name exists and has several meanings, which the titles are."""


class Encyclopedia(Protocol):
    """Pages that can be opened by title and found by words. Must be picklable, and usable by many threads.

    A failure of the machinery behind it is an EnvironmentFailureError, never an answer.
    """

    @property
    def description(self) -> str:
        """Which encyclopedia it is, for people."""
        ...

    def search(self, entity: str) -> Page | Suggestions:
        """The page with exactly that title or alias, whatever the case; else what might be meant. Never a guess."""
        ...

    def retrieve(self, query: str, limit: int) -> tuple[Page, ...]:
        """The pages whose text fits the words of ``query`` best, the best first."""
        ...

    def mentions(self, text: str) -> tuple[str, ...]:
        """Titles of pages that ``text`` names, in its order, each once."""
        ...


def clean_title(title: str) -> str:
    """A title as people write it: HTML entities resolved, underscores as blanks, composed Unicode, single blanks."""
    return printable(unicodedata.normalize("NFC", html.unescape(title.replace("_", " "))))


def title_key(title: str) -> str:
    """What titles that differ only in case and spelling of characters have in common."""
    return unicodedata.normalize("NFC", clean_title(title).casefold())


def plain_key(title: str) -> str:
    """:func:`title_key` without accents and curly apostrophes: what a keyboard without them writes."""
    decomposed = unicodedata.normalize("NFKD", title_key(title)).replace("\u2019", "'")
    return "".join(character for character in decomposed if not unicodedata.combining(character))
