"""How an agent's text becomes an action of the simulator, and how well the simulator understood it."""

from __future__ import annotations

import re

from agentgym_tlm.envs.scienceworld.simulator import NO_MATCH, UNKNOWN_ACTION, State

MAX_CHARS = 1000
"""Longer texts are answered as unknown without asking the simulator, whose parser would take minutes."""

_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_STOP_WORDS = {"a", "an", "the"}  # which the simulator's parser drops


def normalize_action(action: str) -> str:
    """Single spaces, nothing unprintable, no surrounding quotes and no final period.

    Everything else is left to the simulator's parser: it ignores case and articles, and takes ``kitchen door`` and
    ``door to kitchen`` for the same thing.
    """
    action = _BLANK.sub(" ", action.encode(errors="replace").decode()).strip()
    while (shorter := action.strip(_QUOTES).removesuffix(".").strip()) != action:
        action = shorter
    return action


def is_playable(action: str) -> bool:
    """Whether a normalised action may reach the simulator.

    Not ``reset task``: it clears the score and a failure, so that failing and resetting would be worth +1.
    """
    words = [word for word in action.lower().split() if word not in _STOP_WORDS]
    return len(action) <= MAX_CHARS and words != ["reset", "task"]


def parse_status(state: State) -> str:
    """``ok``, ``unknown``, ``ambiguous``, or ``java_error`` where a part of the simulator's program failed."""
    if state.ambiguous:
        return "ambiguous"
    if state.crashed or "java." in state.observation:
        return "java_error"
    text = state.observation
    return "unknown" if text in (NO_MATCH, UNKNOWN_ACTION) or text.startswith("ERROR") else "ok"


def readings(question: str) -> list[str]:
    """What an ambiguous action could mean, from the simulator's question; it often names the same thing twice."""
    return list(dict.fromkeys(line.partition("\t")[2] for line in question.splitlines()[1:]))
