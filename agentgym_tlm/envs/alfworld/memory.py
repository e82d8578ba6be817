"""What a player of ALFWorld knows from the texts that it has read: the goal, the room, its hand and where it stands."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from agentgym_tlm.envs.alfworld.engine import NOTHING_HAPPENS
from agentgym_tlm.errors import ConfigError

_NAME = r"(\w+ \d+)"
_GOALS = (
    (re.compile(r"put two (?P<object>\w+) in (?P<target>\w+)"), "put", 2),
    (re.compile(r"find two (?P<object>\w+) and put them in (?P<target>\w+)"), "put", 2),
    (re.compile(r"put a (?P<how>clean|hot|cool) (?P<object>\w+) in (?P<target>\w+)"), None, 1),
    (re.compile(r"(?P<how>clean|heat|cool) some (?P<object>\w+) and put it in (?P<target>\w+)"), None, 1),
    (re.compile(r"look at (?P<object>\w+) under the (?P<target>\w+)"), "look", 1),
    (re.compile(r"examine the (?P<object>\w+) with the (?P<target>\w+)"), "look", 1),
    (re.compile(r"put (?:a|some) (?P<object>\w+) (?:in|on) (?P<target>\w+)"), "put", 1),
)
_ROOM = re.compile(r"Looking quickly around you, you see ([^.]*)\.")
_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$", re.MULTILINE)
_ARRIVED = re.compile(rf"You arrive at {_NAME}\.")
_CONTENTS = re.compile(rf"(?:On the {_NAME}, you see|The {_NAME} is open\. In it, you see) ([^.]*)\.")
_CLOSED = re.compile(rf"The {_NAME} is closed\.|You close the {_NAME}\.")
_TAKEN = re.compile(rf"You pick up the {_NAME} from the {_NAME}\.")
_MOVED = re.compile(rf"You (?:move|put) the {_NAME} (?:to|in/on) the {_NAME}\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the {_NAME} using the {_NAME}\.")
_SWITCHED = re.compile(rf"You turn on the {_NAME}\.")
_LISTED = re.compile(rf"\ban? {_NAME}")


def class_of(name: str) -> str:
    """``mug 2`` -> ``mug``."""
    return name.rpartition(" ")[0]


@dataclass(frozen=True)
class Goal:
    """A task. ``verb`` is put, look, clean, heat or cool; ``target_class`` the receptacle's class or the lamp's."""

    verb: str
    object_class: str
    target_class: str
    count: int

    @classmethod
    def parse(cls, sentence: str) -> Goal:
        """Read one of ALFWorld's template sentences, without its period. Raises ConfigError for any other."""
        for pattern, verb, count in _GOALS:
            if match := pattern.fullmatch(sentence):
                how = verb or match["how"].replace("hot", "heat")
                return cls(how, match["object"], match["target"], count)
        raise ConfigError(
            f"the explorer understands ALFWorld's template sentences only, not {sentence!r}; "
            "make the environment without human-written task descriptions to use it"
        )

    @property
    def treatment(self) -> str | None:
        return self.verb if self.verb in ("clean", "heat", "cool") else None


class Memory:
    """Everything observed in one episode; :meth:`take_in` reads the texts in order.

    Some receptacles share a location, where ``go to`` answers "Nothing happens." for all of them; the memory learns
    which from such answers.
    """

    def __init__(self, first_observation: str) -> None:
        room, task = _ROOM.search(first_observation), _TASK.search(first_observation)
        if room is None or task is None:
            raise ConfigError(
                "an episode's first observation must list the receptacles and the task, "
                f"but it was {first_observation[:200]!r}"
            )
        self.goal = Goal.parse(task[1])
        self.receptacles: tuple[str, ...] = tuple(_LISTED.findall(room[1]))
        self.contents: dict[str, list[str]] = {}
        """What lay in each receptacle that was looked into, the one seen longest ago first."""
        self.closed: set[str] = set()
        self.here: str | None = None
        self.holding: str | None = None
        self.source: str | None = None
        """Where the held object was taken from."""
        self.treated: dict[str, str] = {}
        self.doubted: str | None = None
        """A receptacle that has to be looked at again, because an action there failed for no known reason."""
        self.refused: set[str] = set()
        """Actions that do not work."""
        self._failures: Counter[str] = Counter()
        self._spots = {name: i for i, name in enumerate(self.receptacles)}

    def is_at(self, receptacle: str) -> bool:
        """Whether the player stands where ``receptacle`` is within reach."""
        return self.here is not None and self._spots[receptacle] == self._spots[self.here]

    def instances(self, object_class: str) -> list[tuple[str, str]]:
        """(object, receptacle) of every object of a class that was seen and not taken since."""
        return [
            (item, place) for place, items in self.contents.items() for item in items if class_of(item) == object_class
        ]

    def take_in(self, observation: str, action: str | None) -> None:
        """Learn from an observation; ``action`` is what led to it, None when that is not known or was not meant."""
        if NOTHING_HAPPENS in observation:
            if action is not None:
                self._learn_from_failure(action)
            return
        if match := _ARRIVED.search(observation):
            self._stand_at(match[1])
        for match in _CLOSED.finditer(observation):
            receptacle = match[1] or match[2]
            self._stand_at(receptacle)
            self.closed.add(receptacle)
            self._trust(receptacle)
        for match in _CONTENTS.finditer(observation):
            receptacle = match[1] or match[2]
            self._stand_at(receptacle)
            self.closed.discard(receptacle)
            self._trust(receptacle)
            self.contents.pop(receptacle, None)
            self.contents[receptacle] = [item for item in _LISTED.findall(match[3]) if item != self.holding]
        if match := _TAKEN.search(observation):
            self.holding, self.source = match[1], match[2]
            self._stand_at(match[2])
            for items in self.contents.values():
                if match[1] in items:
                    items.remove(match[1])
        if match := _MOVED.search(observation):
            self.holding = self.source = None
            self._stand_at(match[2])
            self.contents.setdefault(match[2], []).append(match[1])
        if match := _TREATED.search(observation):
            self.treated[match[2]] = match[1]
            self._stand_at(match[3])
        if (match := _SWITCHED.search(observation)) and self.holding is not None:
            self.refused.add(f"use {match[1]}")

    def _stand_at(self, receptacle: str) -> None:
        if receptacle in self._spots:
            self.here = receptacle

    def _trust(self, receptacle: str) -> None:
        if self.doubted == receptacle:
            self.doubted = None

    def _learn_from_failure(self, action: str) -> None:
        verb, _, rest = action.partition(" ")
        receptacle = next((name for name in self.receptacles if rest.endswith(name)), None)
        self._failures[action] += 1
        if verb == "go" and receptacle is not None:
            if self.here is None:
                self.here = receptacle
            else:
                self._spots[receptacle] = self._spots[self.here]
            return
        if receptacle is not None:
            # Not within reach after all, or not as remembered.
            self._spots[receptacle] = max(self._spots.values()) + 1
            self.doubted = receptacle
        self.here = None
        if self._failures[action] >= 2:
            self.refused.add(action)
            self._failures[action] = 0
            if verb == "examine":
                self.doubted = None
