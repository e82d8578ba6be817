"""Scenes of generated games: the furniture of a room, and which tasks it allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from agentgym_tlm.envs.alfworld.catalogue import (
    AFFORDANCES,
    ALWAYS_CLOSED,
    HOLDS_ONE,
    HOMES,
    ROOM_SIZE,
    ROOMS,
    SOMETIMES_CLOSED,
    Room,
)
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES
from agentgym_tlm.errors import ConfigError

GENERATOR_VERSION = "1"
"""Changes whenever a (split, index, config) gives another game than before."""

SPLITS = ("train", "valid_seen", "valid_unseen")
HELD_OUT_ROOMS = 5
"""Rooms of each kind that only ``valid_unseen`` uses: the last five numbers."""


@dataclass(frozen=True)
class Treatment:
    """What a clean, heat or cool task does to its object, and with which appliance."""

    verb: str
    affordance: str
    predicate: str
    appliance: str


TREATMENTS = {
    "pick_clean_then_place_in_recep": Treatment("clean", "cleanable", "isClean", "SinkBasin"),
    "pick_heat_then_place_in_recep": Treatment("heat", "heatable", "isHot", "Microwave"),
    "pick_cool_then_place_in_recep": Treatment("cool", "coolable", "isCool", "Fridge"),
}


@dataclass(frozen=True)
class GeneratorConfig:
    """How large and how full the generated rooms are. Pairs are the least and the most, both included."""

    receptacles: tuple[int, int] | None = (5, 7)
    """Receptacles in a room; None for as many as ALFRED's rooms have (8 to 45)."""
    objects_per_receptacle: tuple[float, float] = (0.8, 1.3)
    """Objects in a room, divided by its receptacles."""
    fullest_receptacle: int = 3
    """Most objects in one receptacle."""
    object_classes: float = 0.7
    """Share of the object classes of a kind of room that appear in one scene."""
    spare_targets: tuple[int, int] = (0, 0)
    """Objects of the target's class beyond those that the task needs."""
    closed: float = 0.8
    """Share of cabinets, drawers and safes that are closed at the start; fridges and microwaves always are."""
    task_weights: tuple[float, float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    """How often each of TASK_TYPES (place, look, clean, heat, cool, two) is drawn."""

    def __post_init__(self) -> None:
        if self.receptacles is not None and not 5 <= self.receptacles[0] <= self.receptacles[1]:
            raise ConfigError(f"receptacles must be None or an increasing pair from 5 on, not {self.receptacles}")
        if not 0 < self.objects_per_receptacle[0] <= self.objects_per_receptacle[1]:
            raise ConfigError(f"objects_per_receptacle must be an increasing pair, not {self.objects_per_receptacle}")
        if self.fullest_receptacle < 2:
            raise ConfigError(f"fullest_receptacle must be at least 2, not {self.fullest_receptacle}")
        if not 0.5 <= self.object_classes <= 1:
            raise ConfigError(f"object_classes must be between 0.5 and 1, not {self.object_classes}")
        if not 0 <= self.spare_targets[0] <= self.spare_targets[1]:
            raise ConfigError(f"spare_targets must be an increasing pair, not {self.spare_targets}")
        if not 0 <= self.closed <= 1:
            raise ConfigError(f"closed must be between 0 and 1, not {self.closed}")
        if len(self.task_weights) != len(TASK_TYPES) or min(self.task_weights) < 0 or sum(self.task_weights) <= 0:
            raise ConfigError(f"task_weights must be six weights for {TASK_TYPES}, not {self.task_weights}")


PRESETS: Mapping[str, GeneratorConfig] = {
    "small": GeneratorConfig(),
    "official": GeneratorConfig(
        receptacles=None,
        objects_per_receptacle=(1.2, 2.2),
        fullest_receptacle=12,
        object_classes=1.0,
        spare_targets=(0, 3),
        task_weights=(0.22, 0.09, 0.18, 0.13, 0.15, 0.23),
    ),
}
"""``small``: rooms for a model of a million parameters, the default. ``official``: sizes and mix like ALFRED's."""

DEFAULT = PRESETS["small"]


@dataclass(frozen=True)
class Receptacle:
    """A piece of furniture. ``position`` is x, y, z in hundredths of a metre."""

    id: str
    object_class: str
    location: str
    position: tuple[int, int, int]
    openable: bool


@dataclass(frozen=True)
class Scene:
    """A room.

    ``homes`` maps an object class to the (index of a receptacle, weight) pairs where such objects are placed, ``tasks``
    a task type to the (object class, receptacle or lamp class) pairs that the room allows.
    """

    number: int
    start: str
    receptacles: tuple[Receptacle, ...]
    homes: Mapping[str, tuple[tuple[int, int], ...]]
    tasks: Mapping[str, tuple[tuple[str, str], ...]]


def scene_numbers(split: str) -> tuple[int, ...]:
    """Room numbers of a split, ascending. Raises ConfigError for an unknown split."""
    if split not in SPLITS:
        raise ConfigError(f"the embedded generator has the splits {', '.join(SPLITS)}, not {split!r}")
    trained = ROOM_SIZE - HELD_OUT_ROOMS
    offsets = range(trained, ROOM_SIZE) if split == "valid_unseen" else range(trained)
    return tuple(room.first_number + offset for room in ROOMS.values() for offset in offsets)


@lru_cache(maxsize=64)
def scenes_by_task(split: str, config: GeneratorConfig) -> Mapping[str, tuple[Scene, ...]]:
    """Task type -> the scenes of a split that allow it."""
    scenes = [build_scene(number, config) for number in scene_numbers(split)]
    return {task_type: tuple(scene for scene in scenes if scene.tasks[task_type]) for task_type in TASK_TYPES}


@lru_cache(maxsize=1024)
def build_scene(number: int, config: GeneratorConfig) -> Scene:
    """The room with that number: a pure function of its arguments."""
    rng = Random(f"{GENERATOR_VERSION}/scene/{number}")
    room = next(room for room in ROOMS.values() if 0 <= number - room.first_number < ROOM_SIZE)
    classes = _furnish(room, config, rng)
    *cells, start = rng.sample([(x, z) for x in range(-10, 11) for z in range(-10, 11)], len(classes) + 1)
    receptacles = []
    for name, (x, z) in zip(classes, cells, strict=True):
        position = (25 * x + rng.randint(-9, 9), rng.randint(0, 150), 25 * z + rng.randint(-9, 9))
        openable = name in ALWAYS_CLOSED or (name in SOMETIMES_CLOSED and rng.random() < config.closed)
        receptacles.append(Receptacle(instance_id(name, position), name, _location(x, z, rng), position, openable))
    movables = sorted(room.objects - {"DeskLamp"})
    object_classes = rng.sample(movables, round(config.object_classes * len(movables)))
    homes = {}
    for name in [*object_classes, *room.objects & {"DeskLamp"}]:
        weights = HOMES[name]
        places = tuple((i, weights[r.object_class]) for i, r in enumerate(receptacles) if r.object_class in weights)
        if places:
            homes[name] = places
    tasks = {task_type: tuple(_feasible_pairs(task_type, homes, receptacles)) for task_type in TASK_TYPES}
    return Scene(number, _location(*start, rng), tuple(receptacles), homes, tasks)


def _furnish(room: Room, config: GeneratorConfig, rng: Random) -> list[str]:
    """Receptacle classes of a scene: the essentials, then a varied choice from a full-size room."""
    counts = {name: rng.randint(*span) for name, span in room.receptacles.items()}
    extras = [
        (copy + 2 * rng.random(), name)
        for name, count in counts.items()
        for copy in range(count - (name in room.essentials))
    ]
    classes = [*room.essentials, *(name for _, name in sorted(extras))]
    return classes if config.receptacles is None else classes[: rng.randint(*config.receptacles)]


def _feasible_pairs(
    task_type: str, homes: Mapping[str, tuple[tuple[int, int], ...]], receptacles: Sequence[Receptacle]
) -> Iterator[tuple[str, str]]:
    """Object and target classes of which a game can be made that is not won at its start."""
    treatment = TREATMENTS.get(task_type)
    needed = 2 if task_type == "pick_two_obj_and_place" else 1
    furniture = {receptacle.object_class for receptacle in receptacles}
    if treatment is not None and treatment.appliance not in furniture:
        return
    for name in sorted(homes.keys() & AFFORDANCES[treatment.affordance if treatment else "pickupable"]):
        if task_type == "look_at_obj_in_light":
            if "DeskLamp" in homes:
                yield name, "DeskLamp"
            continue
        places = [receptacles[i].object_class for i, _ in homes[name]]
        for target in sorted(set(places)):
            if treatment is not None:
                feasible = target != treatment.appliance
            else:
                elsewhere = sum(1 if place in HOLDS_ONE else 2 for place in places if place != target)
                feasible = elsewhere >= needed and (needed == 1 or target not in HOLDS_ONE)
            if feasible:
                yield name, target


def instance_id(object_class: str, position: tuple[int, int, int]) -> str:
    """Id as ALFRED writes it, e.g. ``Mug_bar__minus_00_dot_40_bar__plus_00_dot_86_bar__minus_00_dot_84``."""
    stem = object_class.removesuffix("Basin")
    basin = f"_bar_{object_class}" if stem != object_class else ""
    return stem + "".join(map(_coordinate, position)) + basin


@lru_cache(maxsize=4096)
def _coordinate(hundredths: int) -> str:
    whole, rest = divmod(abs(hundredths), 100)
    return f"_bar__{'minus' if hundredths < 0 else 'plus'}_{whole:02d}_dot_{rest:02d}"


def _location(x: int, z: int, rng: Random) -> str:
    parts = (x, z, rng.randrange(4), rng.choice((-30, 0, 15, 30, 45, 60)))
    return "loc" + "".join(f"_bar_{'_minus_' if part < 0 else ''}{abs(part)}" for part in parts)
