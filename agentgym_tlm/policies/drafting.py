"""Guessing what a model is about to write, so that one forward pass can check several tokens.

An agent says much the same turn after turn: ``Thought: ... Action: go to ...``, with names that it has just read. The
:class:`Drafter` looks up what followed the newest tokens when they last occurred (prompt lookup: Saxena 2023), in any
of the conversations that share its memory. A draft decides nothing: what a token is follows from the logits and from
the uniform number of its position, so that a wrong guess costs a little time and changes no response.
"""

from __future__ import annotations

from collections.abc import Sequence

_CONTEXTS = (8, 4, 2)  # how many newest tokens are looked up, longest first
LONGEST_CONTEXT = _CONTEXTS[0]
_MOST_CONTEXTS = 500_000  # remembered at most, some 100 MB; then all are forgotten


class Drafter:
    """Remembers the token that last followed each context of 8, 4 and 2 tokens."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}

    def learn(self, ids: Sequence[int], start: int) -> None:
        """Take in ``ids`` from position ``start`` on; what lies before it is their context."""
        if len(self._next) > _MOST_CONTEXTS:
            self._next.clear()
        for size in _CONTEXTS:
            for at in range(max(start, size), len(ids)):
                self._next[tuple(ids[at - size : at])] = ids[at]

    def draft(self, newest: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow a sequence which ends with the ``newest`` 8 (or all, if fewer)."""
        ids = list(newest[-LONGEST_CONTEXT:])
        known = len(ids)
        while len(ids) < known + limit:
            guesses = (self._next.get(tuple(ids[-size:])) for size in _CONTEXTS if size <= len(ids))
            guess = next((guess for guess in guesses if guess is not None), None)
            if guess is None:
                break
            ids.append(guess)
        return ids[known:]
