"""ALFWorld games and their PDDL problems, parsed into the tables the native engine plays on.

A :class:`Game` is one text game as data: where it comes from, its task sentence, its PDDL problem, its plan. A
:class:`World` is the static part of that problem. Objects and receptacles are numbered in the order of their sorted
PDDL ids, which is the order of every list in ALFWorld's text; within a class the *highest* shown number comes first
(``desk 2, desk 1``).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentgym_tlm.errors import DataError

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


@dataclass(frozen=True)
class Game:
    """One text game. ``id`` is the official folder name, ``<split>/<task>/<trial>``."""

    id: str
    task_type: str
    task: str
    pddl_problem: str = field(repr=False)
    walkthrough: tuple[str, ...] = ()
    solvable: bool | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Game:
        """Game from a packed record ``{id, task, pddl_problem, solvable, walkthrough, traj}``.

        Raises DataError when a field is missing or of the wrong type.
        """
        try:
            game = cls(
                id=record["id"],
                task_type=record["traj"]["task_type"],
                task=record["task"],
                pddl_problem=record["pddl_problem"],
                walkthrough=tuple(record["walkthrough"] or ()),
                solvable=record["solvable"],
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"not a record of an ALFWorld game: {type(error).__name__} {error}") from error
        if not all(isinstance(text, str) for text in (game.id, game.task_type, game.task, game.pddl_problem)):
            raise DataError(f"record of game {game.id!r}: id, task_type, task and pddl_problem must be strings")
        return game


@dataclass(frozen=True)
class Goal:
    """What wins a game: one of ALFWorld's six goal shapes, with its object type and target type filled in."""

    task_type: str
    object_type: str
    target_type: str  # of the receptacle; of the lamp for look_at_obj_in_light

    @property
    def treated(self) -> str | None:
        """The predicate that the object must come to have: isclean, ishot, iscool or none."""
        return _TREATED[self.task_type][1] if self.task_type in _TREATED else None


_TREATED = {
    "pick_clean_then_place_in_recep": ("cleanable", "isclean"),
    "pick_heat_then_place_in_recep": ("heatable", "ishot"),
    "pick_cool_then_place_in_recep": ("coolable", "iscool"),
}
_PLACED = {"(inreceptacle ?o ?r)", "(objecttype ?o <object>)", "(receptacletype ?r <target>)"}
_GOALS: dict[str, set[str]] = {  # the atoms of each goal; its connectives follow from them
    "pick_and_place_simple": _PLACED,
    "look_at_obj_in_light": {
        *("(objecttype ?ot <target>)", "(toggleable ?ot)", "(istoggled ?ot)", "(inreceptacle ?ot ?r)"),
        *("(receptacleatlocation ?r ?l)", "(atlocation ?a ?l)", "(objecttype ?o <object>)", "(holds ?a ?o)"),
    },
    **{t: _PLACED | {f"({able} ?o)", f"({treated} ?o)"} for t, (able, treated) in _TREATED.items()},
    "pick_two_obj_and_place": {
        *(atom.replace("?o", o) for atom in _PLACED for o in ("?o1", "?o2")),
        "(= ?o1 ?o2)",
    },
}
_TYPE = re.compile(r"\((object|receptacle)type (\?\w+) (\w+)\)")
_ATOM = re.compile(r"\((?:=|[a-z]+)(?: \?\w+)+\)|\([a-z]+ \?\w+ <\w+>\)")
_CONNECTIVE = re.compile(r"\((\w+) ?(?=\()")


def parse_goal(text: str) -> Goal:
    """Recognise a lower-case PDDL goal expression. Raises ValueError when it is none of the six shapes."""
    text = " ".join(text.split())
    found: dict[str, set[str]] = {"object": set(), "target": set()}

    def mark(match: re.Match[str]) -> str:
        kind, variable, type_name = match.groups()
        slot = "target" if kind == "receptacle" or variable == "?ot" else "object"
        found[slot].add(type_name)
        return f"({kind}type {variable} <{slot}>)"

    atoms = set(_ATOM.findall(_TYPE.sub(mark, text)))
    connectives = {"and", "exists", "not"} if "(= ?o1 ?o2)" in atoms else {"and", "exists"}
    for task_type, expected in _GOALS.items():
        if atoms == expected and set(_CONNECTIVE.findall(text)) == connectives:
            [object_type], [target_type] = found.values()
            return Goal(task_type, object_type, target_type)
    raise ValueError(f"goal is none of ALFWorld's six shapes: {text[:200]}")


@dataclass(frozen=True, eq=False)
class World:
    """The static part of a game, and its initial state, as tables indexed by object, receptacle and location number.

    Pickles as its game, from which it is parsed again.
    """

    game: Game
    goal: Goal
    objects: tuple[str, ...]  # shown names, e.g. "mug 2"
    receptacles: tuple[str, ...]
    locations: tuple[int, ...]  # of each receptacle
    here: Mapping[int, tuple[int, ...]]  # location -> receptacles
    object_types: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    containment: Sequence[str]  # "<receptacle type> <object type>" as written: see can_contain
    openable: frozenset[int]
    affordances: Mapping[str, frozenset[int]]  # PDDL predicate -> objects, e.g. "pickupable"
    inside: Mapping[int, tuple[int, ...]]  # receptacle object -> objects inside it
    start_location: int
    start_contents: tuple[tuple[int, ...], ...]  # of each receptacle
    start_opened: frozenset[int]
    start_positions: frozenset[tuple[int, int]]  # (object, location)

    @classmethod
    def parse(cls, game: Game) -> World:
        """Parse the game's PDDL problem. Raises DataError, naming the game, when it cannot be played."""
        try:
            return _parse(game)
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(f"game {game.id!r} has a malformed PDDL problem: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return World.parse, (self.game,)

    @cached_property
    def phrases(self) -> tuple[str, ...]:
        """Objects as they stand in a list: ``a mug 2``."""
        return tuple(f"a {name}" for name in self.objects)

    @cached_property
    def can_contain(self) -> frozenset[tuple[str, ...]]:
        """Which (receptacle type, object type) go together; parsed when needed: it is half of a problem's facts."""
        return frozenset(tuple(pair.split()) for pair in self.containment)

    @cached_property
    def goal_objects(self) -> frozenset[int]:
        """Objects of the goal's type."""
        return _of_type(self.object_types, self.goal.object_type)

    @cached_property
    def goal_targets(self) -> frozenset[int]:
        """Receptacles of the goal's type; for look_at_obj_in_light, the lamps that can be switched."""
        if self.goal.task_type == "look_at_obj_in_light":
            return _of_type(self.object_types, self.goal.target_type) & self.affordances["toggleable"]
        return _of_type(self.receptacle_types, self.goal.target_type)

    @cached_property
    def appliances(self) -> Mapping[str, frozenset[int]]:
        """Receptacles that clean, heat and cool."""
        types = {"clean": "sinkbasintype", "heat": "microwavetype", "cool": "fridgetype"}
        return {verb: _of_type(self.receptacle_types, type_name) for verb, type_name in types.items()}

    @cached_property
    def knives(self) -> frozenset[int]:
        """Objects that slice."""
        return _of_type(self.object_types, "knifetype") | _of_type(self.object_types, "butterknifetype")

    def goal_fraction(
        self,
        contents: Sequence[Collection[int]],
        treated: Collection[int],
        toggled: Collection[int],
        held: int | None,
        location: int,
    ) -> float:
        """Share of the goal's conditions that hold, after ALFRED's goal conditions; 1 exactly when the game is won.

        pick: object in place (1). two: objects in one place, at most 2 (2). look: object in hand, lamp on and at hand
        (2). clean, heat, cool: some object in place, some object treated, a treated object in place (3).
        ``treated`` holds the objects that are clean, hot or cool, whichever the goal asks for.
        """
        task_type, objects, targets = self.goal.task_type, self.goal_objects, self.goal_targets
        if task_type == "look_at_obj_in_light":
            lit = any(o in targets and o in toggled for r in self.here.get(location, ()) for o in contents[r])
            return ((held in objects) + lit) / 2
        if task_type == "pick_two_obj_and_place":
            return max((min(sum(o in objects for o in contents[r]), 2) for r in targets), default=0) / 2
        in_place = {o for r in targets for o in contents[r] if o in objects}
        if task_type == "pick_and_place_simple":
            return float(bool(in_place))
        ready = objects & self.affordances[_TREATED[task_type][0]] & set(treated)
        return (bool(in_place) + bool(ready) + bool(in_place & ready)) / 3


_OBJECT_PREDICATES = (
    *("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isreceptacleobject"),
    *("isclean", "ishot", "iscool", "issliced", "istoggled"),
)


def _of_type(types: tuple[str, ...], type_name: str) -> frozenset[int]:
    return frozenset(i for i, t in enumerate(types) if t == type_name)


def _parse(game: Game) -> World:
    text = game.pddl_problem.lower()
    start, end = text.index("(:init"), text.index("(:goal")
    statements: dict[str, list[str]] = defaultdict(list)
    for statement in text[start + len("(:init") : end].replace(")", "").split("("):
        words = statement.split(None, 1)
        if len(words) == 2:
            statements[words[0]].append(words[1])
    facts: dict[str, list[list[str]]] = defaultdict(list)
    for predicate, found in statements.items():
        if predicate != "cancontain":
            facts[predicate] = [arguments.split() for arguments in found]

    object_type, receptacle_type = _mapping(facts["objecttype"]), _mapping(facts["receptacletype"])
    receptacle_location = _mapping(facts["receptacleatlocation"])
    placed = {fact[0] for predicate in ("objectatlocation", "inreceptacle") for fact in facts[predicate]}
    for [name] in facts["pickupable"]:
        if name not in placed:  # two games have a cracked egg that lies nowhere, yet counts in the numbering
            object_type.setdefault(name, "")
    object_ids, receptacle_ids = sorted(object_type), sorted(receptacle_type)
    object_number = {name: i for i, name in enumerate(object_ids)}
    receptacle_number = {name: i for i, name in enumerate(receptacle_ids)}
    [(_, agent_at)] = facts["atlocation"]
    location_number = {name: i for i, name in enumerate(sorted({agent_at, *receptacle_location.values()}))}
    for _, place in facts["objectatlocation"]:
        location_number.setdefault(place, len(location_number))
    if facts["holds"]:
        raise ValueError("the agent holds something at the start")

    locations = tuple(location_number[receptacle_location[r]] for r in receptacle_ids)
    contents: list[list[int]] = [[] for _ in receptacle_ids]
    for o, r in facts["inreceptacle"]:
        contents[receptacle_number[r]].append(object_number[o])
    inside: dict[int, list[int]] = defaultdict(list)
    for inner, outer in facts["inreceptacleobject"]:
        inside[object_number[outer]].append(object_number[inner])
    names = _shown_names([*object_ids, *receptacle_ids])

    return World(
        game=game,
        goal=parse_goal(text[end + len("(:goal") :]),
        objects=tuple(names[o] for o in object_ids),
        receptacles=tuple(names[r] for r in receptacle_ids),
        locations=locations,
        here=_group(locations),
        object_types=tuple(object_type[o] for o in object_ids),
        receptacle_types=tuple(receptacle_type[r] for r in receptacle_ids),
        containment=statements["cancontain"],
        openable=frozenset(receptacle_number[r] for [r] in facts["openable"]),
        affordances={p: frozenset(object_number[o] for [o] in facts[p]) for p in _OBJECT_PREDICATES},
        inside={outer: tuple(sorted(inner)) for outer, inner in inside.items()},
        start_location=location_number[agent_at],
        start_contents=tuple(tuple(sorted(c)) for c in contents),
        start_opened=frozenset(receptacle_number[r] for [r] in facts["opened"]),
        start_positions=frozenset((object_number[o], location_number[place]) for o, place in facts["objectatlocation"]),
    )


def _mapping(pairs: list[list[str]]) -> dict[str, str]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("an object has two types, or a receptacle two types or locations")
    return mapping


def _group(locations: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    here: dict[int, tuple[int, ...]] = {}
    for receptacle, location in enumerate(locations):
        here[location] = (*here.get(location, ()), receptacle)
    return here


def _shown_names(ids: Iterable[str]) -> dict[str, str]:
    """``mug_bar_...`` -> ``mug 2``: classes counted over the sorted ids, the highest number first."""
    ids = sorted(ids)
    classes = [name.partition("_bar_")[0] + ("basin" if "basin" in name else "") for name in ids]
    left = Counter(classes)
    names = {}
    for name, class_name in zip(ids, classes, strict=True):
        names[name] = f"{class_name} {left[class_name]}"
        left[class_name] -= 1
    return names
