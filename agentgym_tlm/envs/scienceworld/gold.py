"""The expert: ScienceWorld's own gold paths, shortened where one may teleport, with a thought for every action.

The paths are made by the simulator with full knowledge of the world. They walk from room to room, open doors that are
open, and go on after the task is done. :func:`shorten` leaves all that out, teleports instead, and looks around where
it arrives, so that what is named next has been seen; the result counts only when a replay has won with it, since in
some tasks (the stages of a life) time itself is part of the way. For 8 of 1,232 variations tried, the simulator's path
itself does not win: the expert plays it and fails, and whoever learns from wins, as the trainers do, does not see it.
Some paths answer without having seen the evidence (allenai/ScienceWorld#81).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from agentgym_tlm.envs.scienceworld.protocols import find_protocol
from agentgym_tlm.envs.scienceworld.simplifications import for_task
from agentgym_tlm.envs.scienceworld.simulator import Simulator

_REPLAYED = find_protocol("short")
"""Every shortened path of these tasks has been replayed, and has won: it need not be replayed again."""

_LOOK = "look around"
_IDLE = re.compile(r"look around|open (?:door to .+|.+ door)")
_WALK = re.compile(r"go (?:to )?(?P<room>.+)")


def gold_actions(simulator: Simulator, task: str, variation: int, simplifications: str) -> list[str]:
    """What the expert does in a task."""
    path = simulator.gold_path(task, variation, simplifications)
    if "teleportAction" not in simplifications:
        return path
    shorter = shorten(path)
    if task in _REPLAYED.tasks and simplifications == for_task(_REPLAYED.simplifications, task):
        return shorter
    world = simulator.load(task, variation, simplifications)
    for turns, action in enumerate(shorter, start=1):
        state = simulator.step(world, action)
        if state.completed:
            return shorter[:turns]
    return path


def shorten(path: Iterable[str]) -> list[str]:
    """A path without door openings, with one jump for every walk, and a look around after each and nowhere else."""
    actions: list[str] = []
    for action in path:
        if _IDLE.fullmatch(action):
            continue
        walk = _WALK.fullmatch(action)
        if walk is None:
            actions.append(action)
            continue
        if actions[-1:] == [_LOOK]:
            del actions[-2:]
        actions += [f"teleport to {walk['room']}", _LOOK]
    return actions


class GoldExpert:
    """Plays a list of actions, whatever is observed; see :class:`~agentgym_tlm.envs.base.Expert`."""

    def __init__(self, description: str, actions: Sequence[str]) -> None:
        self._goal = _goal(description)
        self._actions = list(actions)
        self._turn = 0

    def act(self, observation: str) -> tuple[str, str]:
        """The next action; waits when there is none left."""
        if self._turn == len(self._actions):
            return "I have done what I know of. I wait and see.", "wait1"
        action = self._actions[self._turn]
        self._turn += 1
        thought = _thought(action)
        return (f"I need to {self._goal}. {thought}" if self._turn == 1 else thought), action

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        """None: a wrong action here takes time, or loses at once, and the path does not recover from it."""
        return None


def _goal(description: str) -> str:
    """The first sentence of the task, as something to do."""
    goal = description.removeprefix("Your task is to ").partition(". ")[0].rstrip(". ")
    return re.sub(r"a\(n\) (\w)", lambda match: f"a{'n' if match[1] in 'aeiou' else ''} {match[1]}", goal)


_THOUGHTS = tuple(
    (re.compile(pattern), thought)
    for pattern, thought in (
        (r"(?:teleport|go) to (.+)", "I go to the {0}."),
        (r"focus on (.+)", "The {0} is what I was asked for. I focus on it."),
        (r"pick up (.+)", "I take the {0} with me."),
        (r"(?:move|put) (.+?)(?: in inventory)? to (.+)", "The {0} belongs in the {1}."),
        (r"pour (.+) (?:in|into) (.+)", "I need the {0} in the {1}."),
        (r"(?:mix|stir) (.+)", "Everything is in the {0}. I mix it."),
        (r"connect (.+) to (.+)", "The circuit is not closed yet. I connect the {0} to the {1}."),
        (r"use (.+?)(?: in inventory)? on (.+)", "The {0} tells me more about the {1}."),
        (r"(?:look at|look in|examine|read) (.+)", "I want to know more about the {0}."),
        (r"(activate|deactivate|open|close|eat|flush|disconnect) (.+)", "Now I {0} the {1}."),
        (r"wait\d*", "This takes time. I wait."),
        (r"look around", "I look around to see what is here."),
        (r"(\d+)", "I mean number {0}."),
    )
)


def _thought(action: str) -> str:
    for pattern, thought in _THOUGHTS:
        if (match := pattern.fullmatch(action)) is not None:
            return thought.format(*match.groups())
    return f"Next I {action}."
