"""The explorer: wins by reading alone, thinks in short regular sentences, and finds its way back after mistakes."""

import copy
import json
import lzma
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from agentgym_tlm.envs.alfworld.engine import NOTHING_HAPPENS, ActionStyle, NativeEngine
from agentgym_tlm.envs.alfworld.explorer import Explorer
from agentgym_tlm.envs.alfworld.generator import PRESETS, generate_game
from agentgym_tlm.envs.alfworld.memory import Goal
from agentgym_tlm.envs.alfworld.problem import Game, World
from agentgym_tlm.envs.base import Expert
from agentgym_tlm.errors import ConfigError

Turn = tuple[str, str, str]  # observation, thought, action


def generated(preset: str, count: int, split: str = "train") -> list[World]:
    return [World.parse(Game.from_record(generate_game(split, i, PRESETS[preset]))) for i in range(count)]


def official(folder: Path, split: str, every: int = 1) -> list[World]:
    worlds = []
    with lzma.open(folder / f"{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in [*lines][::every]:
            worlds.append(World.parse(Game.from_record(json.loads(line))))
    return worlds


def play(
    world: World, max_steps: int = 40, *, mistakes: float = 0.0, seed: int = 0, style: ActionStyle = "move"
) -> tuple[bool, list[Turn]]:
    """Whether the explorer won, and what it did; it is shown nothing but texts."""
    engine, explorer, rng = NativeEngine(world, style), Explorer(style), np.random.default_rng(seed)
    observation = engine.reset()
    turns: list[Turn] = []
    while not engine.won and len(turns) < max_steps:
        wrong = explorer.mistake(observation, rng) if rng.random() < mistakes else None
        thought, action = wrong or explorer.act(observation)
        turns.append((observation, thought, action))
        observation = engine.step(action)
    return engine.won, turns


def win_rate(worlds: Iterable[World], max_steps: int = 40, mistakes: float = 0.0) -> float:
    return float(np.mean([play(world, max_steps, mistakes=mistakes, seed=i)[0] for i, world in enumerate(worlds)]))


def episode(task: str, *receptacles: str) -> str:
    listed = ", ".join(f"a {name}" for name in receptacles)
    return f"You are in the middle of a room. Looking quickly around you, you see {listed}.\n\nYour task is to: {task}"


def test_it_is_an_expert() -> None:
    expert: Expert = Explorer()
    assert expert.act(episode("put a mug in desk.", "desk 1", "shelf 1"))


@pytest.mark.parametrize("preset", list(PRESETS))
def test_it_wins_generated_games(preset: str) -> None:
    worlds = generated(preset, 200) + generated(preset, 100, "valid_unseen")
    assert win_rate(worlds) >= 0.99
    assert win_rate(worlds, 50, mistakes=0.12) >= 0.98
    assert np.mean([len(play(world)[1]) for world in worlds]) <= 10


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_it_wins_official_validation_games(alfworld_data: Path, split: str) -> None:
    worlds = official(alfworld_data, split)
    assert win_rate(worlds) >= 0.98
    assert win_rate(worlds, 50, mistakes=0.12) >= 0.95


def test_it_wins_official_train_games(alfworld_data: Path) -> None:
    worlds = official(alfworld_data, "train", every=11)
    assert win_rate(worlds) >= 0.97
    assert win_rate(worlds, 50, mistakes=0.12) >= 0.95


@pytest.mark.parametrize("preset", list(PRESETS))
def test_it_gets_by_with_actions_that_it_did_not_choose(preset: str) -> None:
    """Data collected with another policy at the wheel would otherwise be labelled by a confused expert."""
    won = 0
    for i, world in enumerate(generated(preset, 60)):
        engine, explorer, rng = NativeEngine(world), Explorer(), np.random.default_rng(i)
        observation = engine.reset()
        for _ in range(100):
            action = explorer.act(observation)[1]
            if rng.random() < 0.3:
                action = str(rng.choice([*engine.admissible_commands(), "xyzzy", "go to nowhere 1"]))
            observation = engine.step(action)
            if engine.won:
                won += 1
                break
    assert won >= 58


def test_play_is_deterministic_and_mistakes_follow_the_seed() -> None:
    for world in generated("small", 20):
        assert play(world) == play(world)
        assert play(world, mistakes=0.5, seed=3) == play(world, mistakes=0.5, seed=3)
    assert any(play(w, mistakes=0.5, seed=3) != play(w, mistakes=0.5, seed=4) for w in generated("small", 20))


def test_the_welcome_line_makes_no_difference() -> None:
    world = generated("small", 1)[0]
    first = NativeEngine(world).reset()
    assert Explorer().act(first) == Explorer().act(first.partition("\n\n")[2])


def test_both_wordings_of_placing_are_played() -> None:
    for world in generated("small", 30):
        won, turns = play(world, style="put")
        assert won
        assert not any(action.startswith("move ") for _, _, action in turns)
    with pytest.raises(ConfigError, match="action_style"):
        Explorer("drop")  # type: ignore[arg-type]


def test_thoughts_are_short_and_name_the_object_that_is_sought() -> None:
    thing = re.compile(r"\b[a-z]+ \d+\b")
    words = set()
    for world in generated("small", 150):
        object_class = world.goal.object_type.removesuffix("type")
        for observation, thought, action in play(world)[1]:
            assert len(thought.split()) <= 18, thought
            assert object_class in thought
            assert thought.startswith("I need to ")
            if action.startswith(("take", "open", "go to")):
                assert thing.findall(action)[0] in thought, (thought, action)
            if action.startswith("take"):
                assert thing.findall(action)[0] in observation
            words.update(re.findall(r"[a-z]+", thought))
    assert len(words) < 120


def test_thoughts_follow_the_task_from_search_to_placing() -> None:
    explorer = Explorer()
    script = [
        (
            episode("heat some mug and put it in coffeemachine.", "coffeemachine 1", "drawer 1", "microwave 1"),
            ("I need to heat a mug for coffeemachine. I see no mug, coffeemachine 1 is next.", "go to coffeemachine 1"),
        ),
        (
            "You arrive at coffeemachine 1. On the coffeemachine 1, you see nothing.",
            ("I need to heat a mug for coffeemachine. I see no mug, microwave 1 is next.", "go to microwave 1"),
        ),
        (
            "You arrive at microwave 1. The microwave 1 is closed.",
            ("I need to heat a mug for coffeemachine. microwave 1 is closed.", "open microwave 1"),
        ),
        (
            "You open the microwave 1. The microwave 1 is open. In it, you see a egg 1, and a mug 2.",
            ("I need to heat a mug for coffeemachine. I see mug 2 here.", "take mug 2 from microwave 1"),
        ),
        (
            "You pick up the mug 2 from the microwave 1.",
            ("I need to heat mug 2 for coffeemachine. microwave 1 is here.", "heat mug 2 with microwave 1"),
        ),
        (
            "You heat the mug 2 using the microwave 1.",
            ("I need to put hot mug 2 in coffeemachine. coffeemachine 1 is next.", "go to coffeemachine 1"),
        ),
        (
            "You arrive at coffeemachine 1. On the coffeemachine 1, you see nothing.",
            ("I need to put hot mug 2 in coffeemachine. coffeemachine 1 is here.", "move mug 2 to coffeemachine 1"),
        ),
    ]
    for observation, expected in script:
        assert explorer.act(observation) == expected


def test_the_second_object_goes_where_the_first_is() -> None:
    explorer = Explorer()
    explorer.act(episode("find two pen and put them in drawer.", "desk 1", "drawer 2", "drawer 1"))
    explorer.act("You arrive at desk 1. On the desk 1, you see a pen 3, and a pen 1.")
    explorer.act("You pick up the pen 3 from the desk 1.")
    explorer.act("You arrive at drawer 1. The drawer 1 is open. In it, you see nothing.")
    thought, action = explorer.act("You move the pen 3 to the drawer 1.")
    assert (thought, action) == ("I need to put one more pen in drawer 1. I saw pen 1 in desk 1.", "go to desk 1")
    explorer.act("You arrive at desk 1. On the desk 1, you see a pen 1.")
    assert explorer.act("You pick up the pen 1 from the desk 1.")[1] == "go to drawer 1"


def test_a_receptacle_within_reach_that_cannot_be_gone_to_is_examined_on_the_spot() -> None:
    """74 % of the official games hold receptacles that answer "Nothing happens." to "go to" where one already is."""
    explorer = Explorer()
    assert explorer.act(episode("put a mug in desk.", "coffeemachine 1", "countertop 1", "desk 1"))[1] == "go to desk 1"
    assert explorer.act("You arrive at desk 1. On the desk 1, you see nothing.")[1] == "go to coffeemachine 1"
    assert explorer.act(NOTHING_HAPPENS)[1] == "examine coffeemachine 1"
    assert explorer.act("On the coffeemachine 1, you see a mug 1.")[1] == "take mug 1 from coffeemachine 1"
    assert explorer.act("You pick up the mug 1 from the coffeemachine 1.")[1] == "move mug 1 to desk 1"


def test_the_wrong_object_is_put_back_first() -> None:
    explorer = Explorer()
    explorer.act(episode("put a mug in shelf.", "desk 1", "shelf 1"))
    explorer.act("You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 1.")
    thought, action = explorer.act("You pick up the pen 1 from the desk 1.")
    assert action == "move pen 1 to desk 1"
    assert "pen 1 is not a mug" in thought
    assert explorer.act("You move the pen 1 to the desk 1.")[1] == "take mug 1 from desk 1"


def test_a_door_that_was_shut_again_is_opened() -> None:
    explorer = Explorer()
    explorer.act(episode("put a egg in sinkbasin.", "fridge 1", "sinkbasin 1"))
    explorer.act("You arrive at fridge 1. The fridge 1 is open. In it, you see a egg 1.")
    assert explorer.act("You close the fridge 1.")[1] == "open fridge 1"


def test_mistakes_are_mostly_refused_by_the_game_and_never_what_the_expert_would_do() -> None:
    refused = made = 0
    for i, world in enumerate(generated("small", 60)):
        engine, explorer, rng = NativeEngine(world), Explorer(), np.random.default_rng(i)
        observation = engine.reset()
        for turn in range(30):
            right = copy.deepcopy(explorer).act(observation)[1]
            wrong = explorer.mistake(observation, rng) if turn % 3 == 1 else None
            action = explorer.act(observation)[1] if wrong is None else wrong[1]
            if wrong is None:
                assert action == right
                observation = engine.step(action)
            else:
                assert action != right
                made += 1
                observation = engine.step(action)
                refused += observation == NOTHING_HAPPENS
            if engine.won:
                break
    assert made > 100
    assert 0.5 < refused / made < 0.95


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("put a mug in desk", Goal("put", "mug", "desk", 1)),
        ("put some mug on desk", Goal("put", "mug", "desk", 1)),
        ("look at mug under the desklamp", Goal("look", "mug", "desklamp", 1)),
        ("examine the mug with the desklamp", Goal("look", "mug", "desklamp", 1)),
        ("put a clean mug in desk", Goal("clean", "mug", "desk", 1)),
        ("clean some mug and put it in desk", Goal("clean", "mug", "desk", 1)),
        ("put a hot mug in desk", Goal("heat", "mug", "desk", 1)),
        ("heat some mug and put it in desk", Goal("heat", "mug", "desk", 1)),
        ("put a cool mug in desk", Goal("cool", "mug", "desk", 1)),
        ("cool some mug and put it in desk", Goal("cool", "mug", "desk", 1)),
        ("put two mug in desk", Goal("put", "mug", "desk", 2)),
        ("find two mug and put them in desk", Goal("put", "mug", "desk", 2)),
    ],
)
def test_both_sentences_of_every_task_type_are_understood(sentence: str, goal: Goal) -> None:
    assert Goal.parse(sentence) == goal


def test_a_task_in_other_words_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="template sentences"):
        Explorer().act(episode("bring me the warm mug", "desk 1"))
    with pytest.raises(ConfigError, match="first observation"):
        Explorer().act("Nothing happens.")


def test_a_room_without_the_needed_furniture_is_an_error_and_not_a_guess() -> None:
    explorer = Explorer()
    explorer.act(episode("clean some mug and put it in desk.", "desk 1", "shelf 1"))
    with pytest.raises(ConfigError, match="sinkbasin"):
        explorer.act("You pick up the mug 1 from the shelf 1.")
