"""What HotpotQA is made of: questions, and the pages that answer them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """A page of an encyclopedia. ``sentences`` joined without anything between them are its text."""

    title: str
    sentences: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    """Other titles that lead here."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer takes facts of several pages."""

    id: str
    question: str
    answer: str
    type: str
    """``bridge`` or ``comparison``."""
    level: str
    """``easy``, ``medium`` or ``hard``; empty where the file does not say."""
    supporting_facts: tuple[tuple[str, int], ...]
    """Title and sentence index of every fact that is needed."""
