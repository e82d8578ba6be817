"""The generated games: reproducible, playable, solvable, and split so that unseen rooms are really unseen."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any

import pytest

from agentgym_tlm.envs.alfworld.catalogue import AFFORDANCES, HOMES, ROOMS
from agentgym_tlm.envs.alfworld.engine import NativeEngine
from agentgym_tlm.envs.alfworld.generator import (
    PRESETS,
    SPLITS,
    GeneratorConfig,
    embedded_task_ids,
    generate_from_id,
    generate_game,
    scene_numbers,
    task_type,
)
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES, Game, World
from agentgym_tlm.errors import ConfigError, TaskNotFoundError

NAMES = tuple(PRESETS)


def games(preset: str, split: str, count: int) -> list[dict[str, Any]]:
    return [generate_game(split, index, PRESETS[preset]) for index in range(count)]


def facts(game: dict[str, Any]) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = defaultdict(list)
    init = game["pddl_problem"].partition("(:init")[2].partition("(:goal")[0]
    for predicate, arguments in re.findall(r"\((\w+) ([^()]*)\)", init):
        found[predicate].append(arguments.split())
    return found


def placement_key(game: dict[str, Any]) -> tuple[Any, ...]:
    traj = game["traj"]
    return (
        traj["scene"]["scene_num"],
        traj["task_type"],
        *traj["pddl_params"].values(),
        traj["scene"]["random_seed"],
    )


DIGEST = """
import hashlib
from agentgym_tlm.envs.alfworld.generator import PRESETS, SPLITS, generate_game
games = [generate_game(split, i, config) for config in PRESETS.values() for split in SPLITS for i in range(20)]
print(hashlib.sha256(repr(games).encode()).hexdigest())
"""


def test_another_process_with_another_hash_seed_generates_the_same_games() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = [generate_game(split, i, config) for config in PRESETS.values() for split in SPLITS for i in range(20)]
    assert digests == {hashlib.sha256(repr(here).encode()).hexdigest()}


@pytest.mark.parametrize("preset", NAMES)
@pytest.mark.parametrize("split", SPLITS)
def test_each_game_is_won_by_its_walkthrough_at_its_last_action_and_not_before(preset: str, split: str) -> None:
    for game in games(preset, split, 150):
        engine = NativeEngine(World.parse(Game.from_record(game)))
        engine.reset()
        for action in game["walkthrough"]:
            assert not engine.won, game["id"]
            engine.step(action)
            assert engine.action_valid, (game["id"], action)
        assert engine.won, game["id"]


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_has_all_six_task_types(split: str) -> None:
    counts = Counter(game["traj"]["task_type"] for game in games("small", split, 300))
    assert set(counts) == set(TASK_TYPES)
    assert min(counts.values()) >= 30


def test_unseen_games_are_in_rooms_that_no_other_split_uses() -> None:
    assert scene_numbers("train") == scene_numbers("valid_seen")
    assert not set(scene_numbers("train")) & set(scene_numbers("valid_unseen"))
    kinds = (range(1, 31), range(201, 231), range(301, 331), range(401, 431))
    for split in SPLITS:
        assert all(any(number in kind for number in scene_numbers(split)) for kind in kinds)
        rooms = {game["traj"]["scene"]["scene_num"] for game in games("small", split, 400)}
        assert rooms <= set(scene_numbers(split))
        assert len(rooms) > 0.9 * len(scene_numbers(split))


def test_no_valid_seen_game_is_a_train_game() -> None:
    train = games("small", "train", 1000)
    seen = games("small", "valid_seen", 1000)
    assert not {placement_key(game) for game in train} & {placement_key(game) for game in seen}
    problems = {game["pddl_problem"].replace(game["traj"]["task_id"], "") for game in train}
    assert len(problems) == 1000
    assert not problems & {game["pddl_problem"].replace(game["traj"]["task_id"], "") for game in seen}


def test_a_scene_keeps_its_furniture_and_moves_its_objects() -> None:
    by_scene: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for game in games("small", "train", 400) + games("small", "valid_seen", 400):
        by_scene[game["traj"]["scene"]["scene_num"]].append(game)
    furniture = {
        number: {str(sorted(facts(game)["receptacleAtLocation"])) for game in scene}
        for number, scene in by_scene.items()
    }
    assert all(len(layouts) == 1 for layouts in furniture.values())
    assert len({layout for layouts in furniture.values() for layout in layouts}) == len(furniture)
    for scene in by_scene.values():
        assert len({str(sorted(facts(game)["inReceptacle"])) for game in scene}) == len(scene)


@pytest.mark.parametrize("preset", NAMES)
def test_ids_list_the_games_cheaply_and_regenerate_them(preset: str) -> None:
    config = PRESETS[preset]
    for split in SPLITS:
        ids = embedded_task_ids(split, 40, config)
        assert list(ids) == sorted(set(ids))
        assert set(ids) == {game["id"] for game in games(preset, split, 40)}
        for task_id in ids:
            game = generate_from_id(task_id, config)
            assert game["id"] == task_id
            assert game["traj"]["task_type"] == task_type(task_id)
    assert set(embedded_task_ids("train", 10, config)) < set(embedded_task_ids("train", 20, config))


def test_ids_and_records_follow_the_official_convention() -> None:
    pattern = re.compile(r"(\w+)/(\w+)-(\w+)-None-(\w+)-(\d+)/(trial_G\d+)")
    for game in games("small", "valid_seen", 100):
        match = pattern.fullmatch(game["id"])
        assert match is not None
        split, kind, object_class, target, scene, trial = match.groups()
        traj, parameters = game["traj"], game["traj"]["pddl_params"]
        assert (split, kind, trial) == ("valid_seen", traj["task_type"], traj["task_id"])
        assert traj["scene"]["floor_plan"] == f"FloorPlan{scene}"
        assert (object_class, target) == (
            parameters["object_target"],
            parameters["parent_target"] or parameters["toggle_target"],
        )
        assert object_class.lower() in game["task"]
        assert target.lower() in game["task"]
        assert set(game) == {"id", "task", "pddl_problem", "solvable", "walkthrough", "traj"}


@pytest.mark.parametrize(
    "task_id",
    [
        "train/pick_and_place_simple-Mug-None-Desk-301/trial_T20190907_072303_146844",
        "train/pick_and_place_simple-Mug-None-Desk-301/trial_G00000000",
        "elsewhere/pick_and_place_simple-Mug-None-Desk-301/trial_G00000000",
        "",
    ],
)
def test_an_id_that_is_not_of_these_games_is_refused(task_id: str) -> None:
    with pytest.raises(TaskNotFoundError):
        generate_from_id(task_id)


def test_an_id_of_another_configuration_is_refused_rather_than_played_as_another_game() -> None:
    ids = set(embedded_task_ids("train", 20, PRESETS["official"])) - set(embedded_task_ids("train", 20))
    for task_id in ids:
        with pytest.raises(TaskNotFoundError):
            generate_from_id(task_id)


def test_the_small_preset_makes_small_rooms() -> None:
    config = PRESETS["small"]
    assert config.receptacles is not None
    for game in games("small", "train", 300):
        found = facts(game)
        assert config.receptacles[0] <= len(found["receptacleType"]) <= config.receptacles[1]
        load = Counter(receptacle for _, receptacle in found["inReceptacle"])
        assert max(load.values()) <= config.fullest_receptacle
        assert len(found["objectType"]) <= config.objects_per_receptacle[1] * len(found["receptacleType"]) + 1


def test_the_official_preset_makes_rooms_of_alfreds_sizes() -> None:
    receptacles, objects = defaultdict(list), []
    for game in games("official", "train", 300):
        found = facts(game)
        receptacles[game["traj"]["scene"]["scene_num"] // 100].append(len(found["receptacleType"]))
        objects.append(len(found["objectType"]))
    assert {kind: (min(sizes) >= low, max(sizes) <= high) for (kind, sizes), (low, high) in zip(
        sorted(receptacles.items()), ((16, 48), (7, 40), (8, 30), (8, 28)), strict=True
    )} == dict.fromkeys(sorted(receptacles), (True, True))  # fmt: skip
    assert 30 <= sum(objects) / len(objects) <= 60


@pytest.mark.parametrize("preset", NAMES)
def test_rooms_have_what_tasks_need_and_no_two_things_in_one_place(preset: str) -> None:
    essentials = {room.first_number // 100: set(room.essentials) for room in ROOMS.values()}
    for game in games(preset, "train", 150):
        found = facts(game)
        locations = [location for _, location in found["receptacleAtLocation"]]
        [(_, start)] = found["atLocation"]
        assert len({start, *locations}) == len(locations) + 1
        classes = {kind.removesuffix("Type") for _, kind in found["receptacleType"]}
        assert essentials[game["traj"]["scene"]["scene_num"] // 100] <= classes
        openable = {receptacle.partition("_bar_")[0] for [receptacle] in found["openable"]}
        assert {"Fridge", "Microwave"} & classes <= openable <= {"Fridge", "Microwave", "Cabinet", "Drawer", "Safe"}
        if game["traj"]["task_type"] == "look_at_obj_in_light":
            assert ["DeskLampType"] in [arguments[1:] for arguments in found["objectType"]]


def test_objects_lie_where_they_may_be_put_so_that_a_player_can_put_them_back() -> None:
    for game in games("official", "train", 60):
        found = facts(game)
        legal = {(receptacle, thing) for receptacle, thing in found["canContain"]}
        kinds, furniture = dict(found["objectType"]), dict(found["receptacleType"])
        movable = {thing for [thing] in found["pickupable"]}
        assert all((furniture[r], kinds[o]) in legal for o, r in found["inReceptacle"] if o in movable)


def test_affordances_name_known_objects() -> None:
    assert all(classes <= set(HOMES) for classes in AFFORDANCES.values())
    assert all(room.objects <= set(HOMES) for room in ROOMS.values())


def test_task_weights_choose_the_task_types() -> None:
    config = GeneratorConfig(task_weights=(0, 0, 0, 1, 0, 1))
    kinds = {task_type(task_id) for task_id in embedded_task_ids("train", 50, config)}
    assert kinds == {"pick_heat_then_place_in_recep", "pick_two_obj_and_place"}


@pytest.mark.parametrize(
    "options",
    [
        {"receptacles": (2, 4)},
        {"receptacles": (9, 5)},
        {"objects_per_receptacle": (0.0, 1.0)},
        {"fullest_receptacle": 1},
        {"object_classes": 0.1},
        {"spare_targets": (2, 1)},
        {"closed": 1.5},
        {"task_weights": (0, 0, 0, 0, 0, 0)},
    ],
)
def test_impossible_rooms_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        GeneratorConfig(**options)


def test_unknown_splits_and_negative_indices_are_refused() -> None:
    with pytest.raises(ConfigError, match="valid_unseen"):
        generate_game("test", 0)
    with pytest.raises(ConfigError, match="negative"):
        generate_game("train", -1)
    with pytest.raises(ConfigError, match="num_games"):
        embedded_task_ids("train", 0)
