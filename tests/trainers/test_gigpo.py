"""GiGPO on a group that is small enough to do by hand: a crossroads that is come back to, in two of three episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.trainers.gigpo import GiGPOArguments, GiGPOTrainer, anchors, step_advantages
from tests.trainers.toys import played, tiny_policy

GROUP = [
    played([0.0, 1.0], observations=["start", "crossroads"]),
    played([0.0, 0.0, 1.0], observations=["start", "crossroads", "start"], valid=[True, False, True], seed=1),
    played([0.0, 0.0], observations=["start", "swamp"], seed=2),
]


def gigpo(folder: Path, **options: Any) -> GiGPOTrainer:
    given = {"gamma": 0.5, "scale_rewards": False, **options}
    return GiGPOTrainer(tiny_policy(), EnvArgs(), GiGPOArguments(output_dir=str(folder), **given))


def test_anchor_states() -> None:
    """Equal observations of any episode, at any turn, are one state."""
    assert anchors(GROUP) == [[0, 1], [0, 1, 0], [0, 2]]


def test_similar_observations_are_one_anchor_state() -> None:
    """The first earlier one that is near enough, measured with difflib's ratio: 0.9 for one letter of ten."""
    group = [
        played([0.0] * 3, observations=["abcdefghij", "abcdefghiX", "abcdefgXYZ"]),
        played([0.0] * 2, observations=["abcdefghXY", "abcdefghij"]),
    ]
    assert anchors(group) == [[0, 1, 2], [3, 0]]
    assert anchors(group, 0.9) == [[0, 0, 1], [1, 0]]  # abcdefg and XY are 9 of 10, in order
    assert anchors(group, 0.8) == [[0, 0, 1], [0, 0]]
    assert anchors(group, 0.7) == [[0, 0, 0], [0, 0]]
    with pytest.raises(ConfigError, match="anchor_similarity"):
        GiGPOArguments(anchor_similarity=0.0)


def test_returns_of_turns(tmp_path: Path) -> None:
    """γ = 0.5. As released, a penalty is taken off its own turn only, undiscounted; else it is a reward like others."""
    trainer = gigpo(tmp_path)
    assert [trainer.returns(each).tolist() for each in GROUP] == [[5, 10], [2.5, 5 - 0.1, 10], [0, 0]]
    trainer = gigpo(tmp_path, baseline_over="trajectories")
    assert trainer.returns(GROUP[1]).tolist() == pytest.approx([0.5 * (-0.1 + 5), -0.1 + 5, 10])


def test_step_advantages() -> None:
    """Within start: 5, 2.5, 10, 0, of mean 4.375; crossroads: 10, 4.9, of mean 7.45; the swamp is alone: 0."""
    returns = [np.array([5.0, 10.0]), np.array([2.5, 4.9, 10.0]), np.array([0.0, 0.0])]
    states = [[0, 1], [0, 1, 0], [0, 2]]
    plain = step_advantages(returns, states, std=False)
    assert [each.tolist() for each in plain] == [
        pytest.approx([0.625, 2.55]),
        pytest.approx([-1.875, -2.55, 5.625]),
        pytest.approx([-4.375, 0.0]),
    ]
    start = math.sqrt(sum((value - 4.375) ** 2 for value in (5, 2.5, 10, 0)) / 3)
    crossroads = 2.55 * math.sqrt(2)
    scaled = step_advantages(returns, states, std=True)
    assert np.concatenate(scaled).tolist() == pytest.approx(
        [0.625 / start, 2.55 / crossroads, -1.875 / start, -2.55 / crossroads, 5.625 / start, -4.375 / start, 0.0],
        rel=1e-5,
    )
    assert plain[2][1] == scaled[2][1] == 0


def test_advantages_as_released(tmp_path: Path) -> None:
    """A^E over all seven turns: 10, 10 | 10, 9.9, 10 | 0, 0; ω = 2."""
    mean = 49.9 / 7
    found = gigpo(tmp_path, step_advantage_weight=2.0).advantages(GROUP)
    of_episodes = [10 - mean, 10 - mean, 10 - mean, 9.9 - mean, 10 - mean, -mean, -mean]
    of_turns = [0.625, 2.55, -1.875, -2.55, 5.625, -4.375, 0.0]
    expected = [a + 2 * b for a, b in zip(of_episodes, of_turns, strict=True)]
    assert np.concatenate(found).tolist() == pytest.approx(expected)


def test_advantages_as_in_the_paper(tmp_path: Path) -> None:
    """A^E over the three episodes: 10, 9.9, 0; start: 5, 2.45, 10, 0; crossroads: 10, 4.9."""
    mean = 19.9 / 3
    found = gigpo(tmp_path, baseline_over="trajectories").advantages(GROUP)
    start, crossroads = 17.45 / 4, 14.9 / 2
    expected = [
        10 - mean + 5 - start,
        10 - mean + 10 - crossroads,
        9.9 - mean + 2.45 - start,
        9.9 - mean + 4.9 - crossroads,
        9.9 - mean + 10 - start,
        -mean - start,
        -mean,
    ]
    assert np.concatenate(found).tolist() == pytest.approx(expected)


def test_without_the_step_advantage_it_is_grpo(tmp_path: Path) -> None:
    trainer = gigpo(tmp_path, step_advantage_weight=0.0, scale_rewards=True)
    values = np.array([10, 10, 10, 9.9, 10, 0, 0])
    expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    assert np.concatenate(trainer.advantages(GROUP)).tolist() == pytest.approx(expected.tolist())


def test_anchor_states_are_of_one_group(tmp_path: Path) -> None:
    """Another task's turn before the same observation says nothing about this one's: in its own group it is alone."""
    other = played([1.0], observations=["start"], task="other", seed=3)
    trainer = gigpo(tmp_path)
    together = trainer.examples([*GROUP, other])
    assert not together[3].flat("advantages").any()
    for with_other, without in zip(together, trainer.examples(GROUP), strict=False):
        np.testing.assert_array_equal(with_other.flat("advantages"), without.flat("advantages"))
