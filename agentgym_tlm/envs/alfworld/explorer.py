"""Scripted expert for ALFWorld that plays as a person would: it knows only what it has read.

It looks for the object where such things are usually kept (``catalogue.HOMES``), best chance per action first, takes
it, cleans, heats or cools it, and brings it to its place or to the lamp. What it sees in passing it remembers. When it
finds itself somewhere else, with the wrong thing in hand, or in front of a door that was shut again, it goes on from
there.

Every thought is two short sentences, the sub-goal and what decides the action:

    I need to heat a mug for coffeemachine. I see no mug, cabinet 2 is next.
    I need to heat a mug for coffeemachine. I see mug 2 here.
    I need to heat mug 2 for coffeemachine. microwave 1 is next.
    I need to put hot mug 2 in coffeemachine. coffeemachine 1 is here.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from agentgym_tlm.envs.alfworld.catalogue import ALWAYS_CLOSED, HOMES, SOMETIMES_CLOSED
from agentgym_tlm.envs.alfworld.engine import PLACE_COMMAND, ActionStyle
from agentgym_tlm.envs.alfworld.memory import Memory, class_of
from agentgym_tlm.errors import ConfigError

_HOMES = {name.lower(): {place.lower(): chance for place, chance in homes.items()} for name, homes in HOMES.items()}
_DOORS = frozenset(name.lower() for name in ALWAYS_CLOSED | SOMETIMES_CLOSED)
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_ADJECTIVES = {"clean": "clean", "heat": "hot", "cool": "cool"}
_UNLIKELY = 0.01
"""Chance in percent for a place where an object is never kept: such places come last."""

Move = tuple[str, str]
"""What decides the action (second sentence of the thought), and the action."""


class Explorer:
    """Expert for one episode; implements :class:`agentgym_tlm.envs.base.Expert`.

    ``action_style`` says how an object is put down: ``move mug 1 to desk 1``, or ``put mug 1 in/on desk 1``.
    """

    def __init__(self, action_style: ActionStyle = "move") -> None:
        if action_style not in PLACE_COMMAND:
            raise ConfigError(f"action_style must be 'move' or 'put', not {action_style!r}")
        self._put = PLACE_COMMAND[action_style]
        self._memory: Memory | None = None
        self._last_action: str | None = None
        self._is_taken_in = False

    def act(self, observation: str) -> tuple[str, str]:
        """Thought and action for the newest observation.

        Raises ConfigError when the first one has no task that the explorer understands.
        """
        memory = self._take_in(observation)
        self._is_taken_in = False
        reason, action = self._decide(memory)
        self._last_action = action
        return f"{_subgoal(memory)} {reason}", action

    def mistake(self, observation: str, rng: np.random.Generator) -> tuple[str, str] | None:
        """A wrong thought and action such as small models produce; the simulator refuses most of them."""
        memory = self._take_in(observation)
        kinds = self._wrong_moves(memory, right=self._decide(memory)[1])
        self._is_taken_in = not kinds
        if not kinds:
            return None
        kind = kinds[rng.integers(len(kinds))]
        reason, action = kind[rng.integers(len(kind))]
        self._last_action = None
        return f"{_subgoal(memory)} {reason}", action

    def _take_in(self, observation: str) -> Memory:
        if self._memory is None:
            self._memory = Memory(observation)
        elif not self._is_taken_in:
            self._memory.take_in(observation, self._last_action)
        return self._memory

    def _decide(self, memory: Memory) -> Move:
        goal, held = memory.goal, memory.holding
        if memory.doubted is not None:
            verb = "examine" if memory.is_at(memory.doubted) else "go to"
            return f"I must check {memory.doubted}.", f"{verb} {memory.doubted}"
        if held is None:
            return self._fetch(memory)
        if class_of(held) != goal.object_class:
            return self._put_back(memory, held)
        if goal.verb == "look":
            return self._light(memory)
        if goal.treatment is not None and memory.treated.get(held) != goal.treatment:
            appliance = _nearest(memory, _APPLIANCES[goal.treatment], f"{goal.treatment} {held} with {{}}")
            return _reach(memory, appliance) or (f"{appliance} is here.", f"{goal.treatment} {held} with {appliance}")
        return self._put_down(memory, held, _destination(memory, self._put.format(held, "{}")))

    def _fetch(self, memory: Memory) -> Move:
        goal = memory.goal
        destination = _destination(memory) if goal.count == 2 else None
        seen = [(item, place) for item, place in memory.instances(goal.object_class) if place != destination]
        wanted = _not_refused(memory, seen, "take {} from {}")
        if not wanted:
            return self._search(memory, goal.object_class)
        item, place = min(wanted, key=lambda it: (memory.treated.get(it[0]) != goal.treatment, not memory.is_at(it[1])))
        if not memory.is_at(place):
            return f"I saw {item} in {place}.", f"go to {place}"
        if place in memory.closed:
            return f"I saw {item} in {place}, it is closed.", f"open {place}"
        return f"I see {item} here.", f"take {item} from {place}"

    def _search(self, memory: Memory, object_class: str) -> Move:
        chances = _HOMES.get(object_class, {})

        def worth(receptacle: str) -> float:
            name = class_of(receptacle)
            actions = (not memory.is_at(receptacle)) + (name in _DOORS or memory.is_at(receptacle))
            return chances.get(name, _UNLIKELY) / actions

        unseen = [receptacle for receptacle in memory.receptacles if receptacle not in memory.contents]
        place = max(unseen, key=worth) if unseen else next(iter(memory.contents))
        if not memory.is_at(place):
            return f"I see no {object_class}, {place} is next.", f"go to {place}"
        if place in memory.closed:
            return f"{place} is closed.", f"open {place}"
        return f"I see no {object_class}, {place} is here.", f"examine {place}"

    def _light(self, memory: Memory) -> Move:
        lamps = _not_refused(memory, memory.instances(memory.goal.target_class), "use {}")
        if not lamps:
            return self._search(memory, memory.goal.target_class)
        lamp, place = min(lamps, key=lambda seen: not memory.is_at(seen[1]))
        if not memory.is_at(place):
            return f"{lamp} is in {place}.", f"go to {place}"
        return f"{lamp} is here.", f"use {lamp}"

    def _put_back(self, memory: Memory, held: str) -> Move:
        action = self._put.format(held, "{}")
        chances = _HOMES.get(class_of(held), {})

        def worth(receptacle: str) -> tuple[bool, float]:
            return receptacle == memory.source, chances.get(class_of(receptacle), _UNLIKELY)

        places = [place for place in memory.receptacles if action.format(place) not in memory.refused]
        reason, action = self._put_down(memory, held, max(places or memory.receptacles, key=worth))
        return f"{held} is not a {memory.goal.object_class}, {reason}", action

    def _put_down(self, memory: Memory, held: str, place: str) -> Move:
        if place in memory.closed and memory.is_at(place):
            return f"{place} is closed.", f"open {place}"
        return _reach(memory, place) or (f"{place} is here.", self._put.format(held, place))

    def _wrong_moves(self, memory: Memory, right: str) -> list[list[Move]]:
        """The mistakes that can be made now, by kind; all but the first two kinds change nothing in the game."""
        goal, here = memory.goal, memory.here
        seen = memory.instances(goal.object_class)
        item = memory.holding or (seen[0][0] if seen else f"{goal.object_class} 1")
        listed = memory.contents.get(here, []) if here is not None else []
        far = [place for place in memory.receptacles if not memory.is_at(place)]
        classes = Counter(map(class_of, memory.receptacles))
        appliance = _APPLIANCES.get(goal.verb)
        onwards = "{} is next." if memory.holding else f"I see no {goal.object_class}, {{}} is next."
        kinds = [
            [(onwards.format(place), f"go to {place}") for place in far],
            [(f"I see {x} here.", f"take {x} from {here}") for x in listed if class_of(x) != goal.object_class],
            [(onwards.format(here), f"go to {here}")] if here is not None else [],
            [
                (f"I see {x} here.", f"take {x} from {here}")
                for x in (f"{goal.object_class} {number}" for number in (1, 2, 3))
                if here is not None and x not in listed
            ],
            [(f"I see {x} here.", f"take {x} from {place}") for x, place in seen if place in far],
            [(onwards.format(f"{name} {n + 1}"), f"go to {name} {n + 1}") for name, n in classes.items()],
            [(f"{place} is closed.", f"open {place}") for place in far if class_of(place) in _DOORS],
            [(f"{place} is here.", self._put.format(item, place)) for place in far if _is_target(memory, place)],
            [
                (f"{place} is here.", f"{goal.verb} {item} with {place}")
                for place in far
                if class_of(place) == appliance
            ],
        ]
        return [moves for kind in kinds if (moves := [move for move in kind if move[1] != right])]


def _subgoal(memory: Memory) -> str:
    goal, held = memory.goal, memory.holding
    item = held if held is not None and class_of(held) == goal.object_class else None
    thing = item or f"a {goal.object_class}"
    if goal.verb == "look":
        return f"I need to look at {thing} under {goal.target_class}."
    if goal.treatment is not None:
        if item is not None and memory.treated.get(item) == goal.treatment:
            return f"I need to put {_ADJECTIVES[goal.verb]} {item} in {goal.target_class}."
        return f"I need to {goal.verb} {thing} for {goal.target_class}."
    if goal.count == 2:
        destination = _destination(memory)
        if _wanted_in(memory, destination):
            return f"I need to put {item or 'one more ' + goal.object_class} in {destination}."
        thing = f"{item} and one more" if item else f"two {goal.object_class}"
    return f"I need to put {thing} in {goal.target_class}."


def _not_refused(memory: Memory, seen: list[tuple[str, str]], action: str) -> list[tuple[str, str]]:
    """Objects (and their places) for which ``action`` may work; all of them when there is nowhere else to look."""
    hopeful = [pair for pair in seen if action.format(*pair) not in memory.refused]
    return hopeful or (seen if len(memory.contents) == len(memory.receptacles) else [])


def _wanted_in(memory: Memory, receptacle: str) -> int:
    return sum(class_of(item) == memory.goal.object_class for item in memory.contents.get(receptacle, ()))


def _nearest(memory: Memory, receptacle_class: str, action: str) -> str:
    """Receptacle of a class that costs the fewest actions; never one where ``action`` did not work, if avoidable."""
    places = [place for place in memory.receptacles if class_of(place) == receptacle_class]
    if not places:
        raise ConfigError(f"the task needs a {receptacle_class}, but the room lists only {memory.receptacles}")

    def cost(place: str) -> tuple[bool, bool, bool]:
        is_door = place in memory.closed or (receptacle_class in _DOORS and place not in memory.contents)
        return action.format(place) in memory.refused, not memory.is_at(place), is_door

    return min(places, key=cost)


def _destination(memory: Memory, action: str = "") -> str:
    """Where the object belongs; of two objects, the second belongs where the first is."""
    if memory.goal.count == 2:
        best = max(memory.receptacles, key=lambda place: _is_target(memory, place) * _wanted_in(memory, place))
        if _is_target(memory, best) and _wanted_in(memory, best):
            return best
    return _nearest(memory, memory.goal.target_class, action)


def _is_target(memory: Memory, receptacle: str) -> bool:
    return class_of(receptacle) == memory.goal.target_class


def _reach(memory: Memory, place: str) -> Move | None:
    return None if memory.is_at(place) else (f"{place} is next.", f"go to {place}")
