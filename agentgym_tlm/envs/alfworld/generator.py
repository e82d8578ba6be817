"""Generated ALFWorld games: the official record format, own rooms, no download.

As in ALFRED, a *scene* (a room number) fixes the furniture and which object classes can appear; the *placement seed*
fixes the task and where everything lies. Games are records of ALFWorld's data format 2.1.2 (``id, task, pddl_problem,
solvable, walkthrough, traj``), which the native engine and TextWorld both play.

Splits mean what they mean in ALFWorld. ``train`` and ``valid_seen`` share scenes, but no placement seed; the scenes of
``valid_unseen`` are in no other split.

Deviations from ALFRED's games:

1. No two receptacles share a location, and an object lies in one receptacle only.
2. Fixtures that no task needs (windows, chairs, light switches) are left out.
3. Only desk lamps give light, as in all official tasks.
"""

from __future__ import annotations

from random import Random
from typing import Any

from agentgym_tlm.envs.alfworld.catalogue import HOLDS_ONE
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES
from agentgym_tlm.envs.alfworld.record import PlacedGame, Task
from agentgym_tlm.envs.alfworld.scene import (
    DEFAULT,
    GENERATOR_VERSION,
    PRESETS,
    SPLITS,
    GeneratorConfig,
    instance_id,
    scene_numbers,
    scenes_by_task,
)
from agentgym_tlm.errors import ConfigError, TaskNotFoundError

__all__ = [
    "DEFAULT",
    "GENERATOR_VERSION",
    "PRESETS",
    "SPLITS",
    "GeneratorConfig",
    "embedded_task_ids",
    "generate_from_id",
    "generate_game",
    "scene_numbers",
    "task_type",
]


def generate_game(split: str, index: int, config: GeneratorConfig = DEFAULT) -> dict[str, Any]:
    """Game ``index`` (from 0) of ``split``: a pure function of its arguments.

    Raises ConfigError for an unknown split or a negative index.
    """
    task, rng = _draw_task(split, index, config)
    return _place_objects(task, config, rng).record()


def embedded_task_ids(split: str, num_games: int, config: GeneratorConfig = DEFAULT) -> tuple[str, ...]:
    """Ids of the first ``num_games`` games of ``split``, sorted, without generating the games."""
    if num_games < 1:
        raise ConfigError(f"num_games must be at least 1, not {num_games}")
    return tuple(sorted(_draw_task(split, index, config)[0].id for index in range(num_games)))


def generate_from_id(task_id: str, config: GeneratorConfig = DEFAULT) -> dict[str, Any]:
    """The game that bears ``task_id``. Raises TaskNotFoundError when ``config`` generates no such game."""
    split, _, rest = task_id.partition("/")
    _, _, seed = rest.rpartition("/trial_G")
    if split not in SPLITS or not (seed.isascii() and seed.isdecimal()):
        raise TaskNotFoundError(f"{task_id!r} is not the id of a generated game; list them with embedded_task_ids()")
    game = generate_game(split, int(seed) // len(SPLITS), config)
    if game["id"] != task_id:
        raise TaskNotFoundError(
            f"no generated game {task_id!r}: with this configuration and generator version {GENERATOR_VERSION} "
            f"its seed gives {game['id']!r}"
        )
    return game


def task_type(task_id: str) -> str:
    """Task type that is written in an id, e.g. ``pick_heat_then_place_in_recep``."""
    return task_id.split("/")[1].split("-")[0]


def _draw_task(split: str, index: int, config: GeneratorConfig) -> tuple[Task, Random]:
    """The task of a game, and the random stream that goes on to place its objects."""
    scenes = scenes_by_task(split, config)
    if index < 0:
        raise ConfigError(f"a game's index must not be negative, not {index}")
    seed = index * len(SPLITS) + SPLITS.index(split)
    rng = Random(f"{GENERATOR_VERSION}/{seed}")
    kind = rng.choices(TASK_TYPES, config.task_weights)[0]
    scene = rng.choice(scenes[kind])
    object_class, target_class = rng.choice(scene.tasks[kind])
    return Task(split, seed, kind, scene, object_class, target_class, wording=rng.randrange(2)), rng


def _place_objects(task: Task, config: GeneratorConfig, rng: Random) -> PlacedGame:
    """Lay out the lamp, the objects that the task needs, spare ones of their class, then distractors."""
    receptacles, homes = task.scene.receptacles, task.scene.homes
    load = [0] * len(receptacles)
    taken: set[tuple[int, int, int]] = set()
    game = PlacedGame(task)

    def place(object_class: str, avoided: str | None = None) -> None:
        places, weights = [], []
        for i, weight in homes[object_class]:
            name = receptacles[i].object_class
            if name != avoided and load[i] < (1 if name in HOLDS_ONE else config.fullest_receptacle):
                places.append(i)
                weights.append(weight)
        if not places:
            return
        chosen = rng.choices(places, weights)[0]
        load[chosen] += 1
        x, y, z = position = receptacles[chosen].position
        while position in taken:
            position = (x + rng.randint(-30, 30), y + rng.randint(1, 20), z + rng.randint(-30, 30))
        taken.add(position)
        game.objects[instance_id(object_class, position)] = object_class, receptacles[chosen]

    if "DeskLamp" in homes:
        place("DeskLamp")
    two = task.task_type == "pick_two_obj_and_place"
    avoided = task.target_class if two or task.task_type == "pick_and_place_simple" else None
    for _ in range((2 if two else 1) + rng.randint(*config.spare_targets)):
        place(task.object_class, avoided)
    others = [name for name in homes if name not in (task.object_class, "DeskLamp")]
    density = rng.uniform(*config.objects_per_receptacle)
    for name in rng.choices(others, k=max(0, round(density * len(receptacles)) - len(game.objects))):
        place(name)
    return game
