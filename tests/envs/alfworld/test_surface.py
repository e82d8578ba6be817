"""Other words for the same games: nothing else may change, and nothing may give the original names away."""

from __future__ import annotations

import re

import gymnasium as gym
import pytest

from agentgym_tlm.envs.alfworld.catalogue import HOMES, RECEPTACLE_CLASSES
from agentgym_tlm.envs.alfworld.env import ALFWorldEnv
from agentgym_tlm.envs.alfworld.surface import _RENAMED, SurfaceName
from agentgym_tlm.errors import ConfigError

OTHERS: tuple[SurfaceName, ...] = ("paraphrased", "swapped", "renamed")


def made(surface: SurfaceName) -> ALFWorldEnv:
    return ALFWorldEnv("valid_unseen", data_dir="embedded", surface=surface, admissible_commands=True)


def play(env: ALFWorldEnv, task: str) -> tuple[list[str], list[bool], bool]:
    """Texts, validity and outcome of the expert's episode."""
    text, info = env.reset(options={"task_id": task})
    expert = env.expert()
    texts, valid = [text, info["instruction"]], []
    while info["stop_reason"] is None:
        _, action = expert.act(text)
        text, _, _, _, info = env.step(action)
        texts.append(text)
        valid.append(info["action_valid"])
    return texts, valid, info["won"]


@pytest.mark.parametrize("surface", OTHERS)
def test_the_game_is_the_same(surface: SurfaceName) -> None:
    """The expert plays it with the same outcomes, turn by turn, and wins."""
    plain, other = made("original"), made(surface)
    tasks = plain.manifest.take(12)
    for task in tasks:
        texts, valid, won = play(plain, task)
        texts_told, valid_told, won_told = play(other, task)
        assert (valid, won) == (valid_told, won_told)
        assert texts != texts_told
        assert won


@pytest.mark.parametrize("surface", OTHERS)
def test_every_listed_command_is_understood(surface: SurfaceName) -> None:
    env = made(surface)
    for task in env.manifest.take(6):
        _, info = env.reset(options={"task_id": task})
        assert any("go to" in command for command in info["admissible_commands"])
        for command in info["admissible_commands"]:
            env.reset(options={"task_id": task})
            assert env.step(command)[-1]["action_valid"]


def test_every_class_has_a_name_of_its_own() -> None:
    """Two of one name, or one that another class has, and actions would be ambiguous."""
    classes = {name.lower() for name in (*HOMES, *RECEPTACLE_CLASSES)}
    assert set(_RENAMED) == classes
    assert len(set(_RENAMED.values())) == len(classes)
    assert not set(_RENAMED.values()) & classes


def test_original_names_are_neither_told_nor_understood() -> None:
    env = made("renamed")
    for task in env.manifest.take(12):
        texts, _, _ = play(env, task)
        assert not set(re.findall("[a-z]+", " ".join(texts))) & set(_RENAMED)
    plain = made("original")
    _, info = plain.reset(options={"task_id": task})
    action = next(command for command in info["admissible_commands"] if command.startswith("go to"))
    env.reset(options={"task_id": task})
    text, _, _, _, info = env.step(action)
    assert (text, info["action_valid"]) == ("Nothing happens.", False)


def test_words_of_a_paraphrase_are_those_of_the_games() -> None:
    """A policy of a small vocabulary can read it; object and place are named."""
    env, plain = made("paraphrased"), made("original")
    known: set[str] = set()
    for task in plain.manifest:
        known |= set(re.findall(r"\w+", " ".join((*play(plain, task)[0], *plain.walkthrough))))
    for task in env.manifest:
        _, info = env.reset(options={"task_id": task})
        assert set(re.findall(r"\w+", info["instruction"])) <= known


def test_swapped_names_depend_on_the_task_only() -> None:
    first, second = made("swapped"), made("swapped")
    sentences = []
    for task in first.manifest.take(6):
        sentences.append(first.reset(options={"task_id": task})[1]["instruction"])
    for task, sentence in zip(reversed(first.manifest.take(6)), reversed(sentences), strict=True):
        assert second.reset(options={"task_id": task})[1]["instruction"] == sentence


def test_snapshots_are_of_a_surface() -> None:
    env = made("swapped")
    text, info = env.reset(seed=0)
    expert = env.expert()
    for _ in range(3):
        text, _, _, _, info = env.step(expert.act(text)[1])
    again = made("swapped")
    assert again.restore(env.snapshot()) == (text, info)
    with pytest.raises(ConfigError, match="another world"):
        made("original").restore(env.snapshot())


def test_walkthrough_wins_in_other_words() -> None:
    env = made("renamed")
    env.reset(seed=1)
    for action in env.walkthrough:
        info = env.step(action)[-1]
    assert info["won"]


def test_an_unknown_surface_is_refused() -> None:
    with pytest.raises(ConfigError, match="original, paraphrased, swapped, renamed"):
        gym.make("ALFWorld-v0", surface="upside-down")
