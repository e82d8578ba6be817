"""Where games come from: both official layouts give the same games, and what is missing or broken is named."""

import json
import lzma
import os
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from agentgym_tlm.envs.alfworld.engine import NativeEngine
from agentgym_tlm.envs.alfworld.generator import PRESETS, generate_game, task_type
from agentgym_tlm.envs.alfworld.problem import Game, World
from agentgym_tlm.envs.alfworld.sources import EmbeddedSource, FolderSource, PackedSource, open_source
from agentgym_tlm.errors import ConfigError, DataError, TaskNotFoundError

GRAMMAR = '"task": [{"rhs": "Your task is to: %s"}], action PutObject { template :: "%s"; }'


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests say themselves where data is."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def records(split: str, count: int = 6) -> list[dict[str, Any]]:
    return [generate_game(split, index) for index in range(count)]


def write_pack(root: Path, split: str, games: list[dict[str, Any]]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{split}.jsonl.xz"
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(game) + "\n" for game in games)
    return path


def write_tree(root: Path, games: list[dict[str, Any]], template: str = "move {o} to {r}") -> None:
    """The files that ``alfworld-download`` unpacks, as far as they are read."""
    for game in games:
        folder = root / "json_2.1.1" / game["id"]
        folder.mkdir(parents=True)
        fields = {
            "pddl_domain": "(define (domain alfred))",
            "grammar": GRAMMAR % (game["task"], template),
            **{name: game[name] for name in ("pddl_problem", "solvable", "walkthrough")},
        }
        (folder / "game.tw-pddl").write_text(json.dumps(fields), encoding="utf-8")
        (folder / "traj_data.json").write_text(json.dumps(game["traj"]), encoding="utf-8")


def test_both_layouts_give_the_same_games(tmp_path: Path) -> None:
    """Packed or unpacked, in the folder itself or its parent: the same ids in the same order, the same games."""
    games = records("train")
    write_pack(tmp_path / "pack", "train", games)
    write_tree(tmp_path / "tree", games)
    sources = [open_source("train", tmp_path / folder) for folder in ("pack", "tree", "tree/json_2.1.1")]
    assert [type(source) for source in sources] == [PackedSource, FolderSource, FolderSource]
    expected = {game["id"]: Game.from_record(game) for game in games}
    for source in sources:
        assert source.task_ids == tuple(sorted(expected))
        assert {task_id: source.load(task_id) for task_id in source.task_ids} == expected
        assert str(tmp_path) in source.description


def test_order_does_not_depend_on_the_files(tmp_path: Path) -> None:
    """Task 17 is the same game everywhere: not so in ALFWorld, which lists files in the order of the disk."""
    games = records("train")
    write_pack(tmp_path / "one", "train", games)
    write_pack(tmp_path / "two", "train", games[::-1])
    write_tree(tmp_path / "three", games[3:] + games[:3])
    manifests = [
        gym.make("ALFWorld-v0", data_dir=tmp_path / name).get_wrapper_attr("manifest")
        for name in ("one", "two", "three")
    ]
    assert len({manifest.sha256 for manifest in manifests}) == 1
    assert len({manifest.task_ids for manifest in manifests}) == 1


def test_what_alfworld_leaves_out_is_left_out(tmp_path: Path) -> None:
    """Unsolvable games, movable receptacles and sliced objects are no tasks of the benchmark."""
    games = records("train")
    games[0]["solvable"] = False
    games[1]["solvable"] = None
    games[2]["id"] = "train/pick_and_place_with_movable_recep-Mug-Pan-Shelf-2/trial_1"
    games[3]["id"] = "train/pick_and_place_simple-AppleSliced-None-Shelf-2/trial_1"
    write_pack(tmp_path / "pack", "train", games)
    write_tree(tmp_path / "tree", games)
    kept = tuple(sorted(game["id"] for game in games[4:]))
    assert open_source("train", tmp_path / "pack").task_ids == kept
    assert open_source("train", tmp_path / "tree").task_ids == kept
    with pytest.raises(TaskNotFoundError):
        open_source("train", tmp_path / "pack").load(games[0]["id"])
    with pytest.raises(TaskNotFoundError):
        open_source("train", tmp_path / "tree").load(games[0]["id"])


def test_sources_are_tried_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit folder wins over $ALFWORLD_DATA, which wins over the generator."""
    write_pack(tmp_path / "explicit", "train", records("train", 2))
    write_pack(tmp_path / "variable", "train", records("train", 3))
    assert isinstance(open_source("train"), EmbeddedSource)
    monkeypatch.setenv("ALFWORLD_DATA", "")
    assert isinstance(open_source("train"), EmbeddedSource)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "variable"))
    assert len(open_source("train").task_ids) == 3
    assert len(open_source("train", tmp_path / "explicit").task_ids) == 2


def test_nothing_is_written_to_the_data(tmp_path: Path) -> None:
    """ALFWorld rewrites game files at start-up, and parallel runs have corrupted them."""
    write_tree(tmp_path, records("train", 3))
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    env = gym.make("ALFWorld-v0", data_dir=tmp_path)
    env.reset(seed=0)
    env.step("look")
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before


def test_missing_data_is_an_error_that_names_path_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never "0 games", and never the generator in place of data that was asked for."""
    with pytest.raises(DataError, match=r"data_dir=.*nowhere does not exist.*alfworld-download") as error:
        open_source("train", tmp_path / "nowhere")
    assert "$ALFWORLD_DATA" in str(error.value)
    with pytest.raises(DataError, match="holds neither"):
        open_source("train", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is not a folder"):
        open_source("train", tmp_path / "file")
    write_pack(tmp_path, "valid_seen", records("valid_seen", 1))
    with pytest.raises(DataError, match="holds only the splits valid_seen, not 'train'"):
        open_source("train", tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"\$ALFWORLD_DATA=.*gone does not exist"):
        gym.make("ALFWorld-v0")


def test_trials_without_their_games_are_an_error(tmp_path: Path) -> None:
    """A download without the game files (or only unsolvable ones) is reported with the counts."""
    games = records("train", 3)
    games[2]["solvable"] = False
    write_tree(tmp_path, games)
    for game in games[:2]:
        (tmp_path / "json_2.1.1" / game["id"] / "game.tw-pddl").unlink()
    with pytest.raises(DataError, match=r"no playable game \(2 trials without game.tw-pddl, 1 not solvable\)"):
        _ = open_source("train", tmp_path).task_ids
    games[1]["solvable"] = games[0]["solvable"] = False
    path = write_pack(tmp_path / "pack", "train", games)
    with pytest.raises(DataError, match=f"{path} holds no playable game"):
        _ = open_source("train", tmp_path / "pack").task_ids


@pytest.mark.parametrize("damage", ["", '{"grammar": ', "[1, 2]", '{"solvable": true, "walkthrough": ['])
def test_broken_game_file_is_named(damage: str, tmp_path: Path) -> None:
    """An interrupted download names the file that it broke."""
    games = records("train", 2)
    write_tree(tmp_path, games)
    path = tmp_path / "json_2.1.1" / games[1]["id"] / "game.tw-pddl"
    path.write_text(damage, encoding="utf-8")
    with pytest.raises(DataError, match=f"{path}"):
        _ = open_source("train", tmp_path).task_ids


def test_incomplete_game_file_is_named(tmp_path: Path) -> None:
    """A game file that lacks something is named when it is played."""
    [game] = records("train", 1)
    write_tree(tmp_path, [game])
    path = tmp_path / "json_2.1.1" / game["id"] / "game.tw-pddl"
    for fields, message in [
        ({"solvable": True}, "states no task"),
        ({"solvable": True, "grammar": GRAMMAR % ("eat.", "move")}, "pddl_problem"),
    ]:
        path.write_text(json.dumps(fields), encoding="utf-8")
        with pytest.raises(DataError, match=f"{path}.*{message}"):
            open_source("train", tmp_path).load(game["id"])


def test_older_data_format_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Old files say "put X in/on Y" and "loc 1": playing them with new text would silently mix two benchmarks."""
    [game] = records("train", 1)
    write_tree(tmp_path, [game], template="put {o} in/on {r}")
    with pytest.raises(DataError, match=r"older data format.*alfworld-download -f.*action_style='put'"):
        open_source("train", tmp_path).load(game["id"])


@pytest.mark.parametrize("keep", [0, 10, 200, -20])
def test_broken_pack_is_named(keep: int, tmp_path: Path) -> None:
    """A truncated archive is an error, not a smaller split."""
    path = write_pack(tmp_path, "train", records("train", 3))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=f"{path} "):
        _ = open_source("train", tmp_path).task_ids


def test_pack_with_a_wrong_line_is_named(tmp_path: Path) -> None:
    """A line that is no game is reported with its place."""
    path = write_pack(tmp_path, "train", [records("train", 1)[0], {"no": "game"}])
    with pytest.raises(DataError, match=f"{path} is corrupt after line 1: KeyError"):
        _ = open_source("train", tmp_path).task_ids


def test_pack_with_a_malformed_game_is_named(tmp_path: Path) -> None:
    """An error that names neither file nor remedy leaves a user to search a gigabyte of data."""
    lacking, garbled = records("train", 2)
    del lacking["task"]
    garbled["pddl_problem"] = "(define"
    path = write_pack(tmp_path, "train", [lacking, garbled])
    source = open_source("train", tmp_path)
    with pytest.raises(DataError, match=rf"{path}, game {lacking['id']}: .*task.*alfworld-download"):
        source.load(lacking["id"])
    env = gym.make("ALFWorld-v0", data_dir=tmp_path)
    with pytest.raises(DataError, match=rf"{garbled['id']}.* malformed PDDL.*{tmp_path}.* again"):
        env.reset(options={"task_id": garbled["id"]})


def test_embedded_games() -> None:
    """Sizes, ids and games of the default data are the same each time; presets and sizes are taken at their word."""
    assert [len(open_source(split).task_ids) for split in ("train", "valid_seen", "valid_unseen")] == [10000, 140, 134]
    small, official = open_source("train", num_games=10), open_source("train", num_games=10, generator="official")
    assert small.task_ids == tuple(sorted(game["id"] for game in records("train", 10)))
    assert small.load(small.task_ids[0]) == Game.from_record(
        next(game for game in records("train", 10) if game["id"] == small.task_ids[0])
    )
    assert small.task_ids != official.task_ids
    assert official.description.endswith("official rooms")
    assert open_source("train", num_games=10, generator=PRESETS["official"]).task_ids == official.task_ids


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A wrong split, preset or size must not quietly become another one."""
    write_pack(tmp_path, "train", records("train", 1))
    with pytest.raises(ConfigError, match="num_games"):
        open_source("train", tmp_path, num_games=5)
    with pytest.raises(ConfigError, match="split"):
        open_source("test")
    with pytest.raises(ConfigError, match="valid_train"):
        _ = open_source("valid_train").task_ids
    with pytest.raises(ConfigError, match="generator"):
        _ = open_source("train", generator="large").task_ids


def test_official_counts(alfworld_data: Path) -> None:
    """The splits have the published sizes, by task type."""
    counts = {
        split: Counter(task_type(task_id) for task_id in open_source(split, alfworld_data).task_ids)
        for split in ("train", "valid_seen", "valid_unseen", "valid_train")
    }
    assert {split: sum(types.values()) for split, types in counts.items()} == {
        "train": 3553,
        "valid_seen": 140,
        "valid_unseen": 134,
        "valid_train": 200,
    }
    assert counts["valid_unseen"] == {
        "pick_and_place_simple": 24,
        "look_at_obj_in_light": 18,
        "pick_clean_then_place_in_recep": 31,
        "pick_heat_then_place_in_recep": 23,
        "pick_cool_then_place_in_recep": 21,
        "pick_two_obj_and_place": 17,
    }


@pytest.mark.parametrize(
    "every", [10, pytest.param(1, marks=pytest.mark.slow)], ids=["every tenth training game", "all 4027 games"]
)
def test_official_games_are_won_by_their_walkthrough(every: int, alfworld_data: Path) -> None:
    """One game that cannot be parsed ends a run over its split; ALFWorld's own plans win with their last action."""
    for split in ("train", "valid_seen", "valid_unseen", "valid_train"):
        source = open_source(split, alfworld_data)
        for task_id in source.task_ids[:: every if split == "train" else 1]:
            engine = NativeEngine(World.parse(source.load(task_id)))
            won = [engine.won]
            for command in engine.world.game.walkthrough:
                engine.step(command)
                assert engine.action_valid, (task_id, command)
                won.append(engine.won)
            assert won == [False] * (len(won) - 1) + [True], task_id


def test_index_is_shared_by_all_environments_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred slots must not read the data a hundred times."""
    write_tree(tmp_path, records("train", 3))
    first = open_source("train", tmp_path).task_ids
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail("the folder was read again"))
    assert open_source("train", tmp_path).task_ids is first
