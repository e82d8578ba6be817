"""GRPO: what an episode is worth beside those of its group, and that all of its tokens are given just that."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.trainers.gigpo import GiGPOArguments
from agentgym_tlm.trainers.grpo import GRPOArguments, GRPOTrainer
from agentgym_tlm.trainers.rloo import RLOOArguments
from tests.trainers.toys import played, tiny_policy

WON, SLOW, LOST = (
    played([1.0], lengths=[4]),
    played([0.0, 1.0], valid=[False, True], lengths=[1, 3], seed=1),
    played([0.0, 0.0, 0.0], seed=2),
)


def grpo(folder: Path, **options: Any) -> GRPOTrainer:
    return GRPOTrainer(tiny_policy(), EnvArgs(), GRPOArguments(output_dir=str(folder), **options))


@pytest.mark.parametrize("arguments", [GRPOArguments, RLOOArguments, GiGPOArguments])
def test_group_of_one_is_refused(arguments: type[GRPOArguments]) -> None:
    """It has nothing to be compared with: a run would play for hours and learn nothing."""
    with pytest.raises(ConfigError, match="samples_per_task must be at least 2"):
        arguments(samples_per_task=1)


def test_advantages(tmp_path: Path) -> None:
    """Returns 10, 9.9 and 0; less their mean, over their sample deviation."""
    mean = 19.9 / 3
    std = math.sqrt(((10 - mean) ** 2 + (9.9 - mean) ** 2 + mean**2) / 2)
    for scale, divisor in ((True, std + 1e-6), (False, 1.0)):
        found = grpo(tmp_path, scale_rewards=scale).advantages([WON, SLOW, LOST])
        expected = [(value - mean) / divisor for value in (10, 9.9, 0)]
        assert [np.unique(each).tolist() for each in found] == [[pytest.approx(value)] for value in expected]
        assert [len(each) for each in found] == [1, 2, 3]


def test_advantages_over_turns(tmp_path: Path) -> None:
    """As in verl-agent: 10 | 9.9, 10 | 0, 0, 0."""
    found = grpo(tmp_path, baseline_over="turns", scale_rewards=False).advantages([WON, SLOW, LOST])
    mean = 29.9 / 6
    assert np.concatenate(found).tolist() == pytest.approx([value - mean for value in (10, 9.9, 10, 0, 0, 0)])


def test_scale_and_penalty_are_options(tmp_path: Path) -> None:
    trainer = grpo(tmp_path, reward_scale=2.0, invalid_action_penalty=0.5, scale_rewards=False)
    assert [each[0] for each in trainer.advantages([SLOW, LOST])] == pytest.approx([0.75, -0.75])


def test_every_token_gets_its_episodes_advantage(tmp_path: Path) -> None:
    """Whatever the order in which groups are mixed, their sizes, and the number of an episode's turns and tokens."""
    alone = played([1.0], task="other", seed=4)
    equal = [played([0.0, 0.0], task="third", seed=seed) for seed in (5, 6)]
    episodes = [equal[0], WON, alone, LOST, equal[1], SLOW]
    trainer = grpo(tmp_path)
    won, slow, lost = (each[0] for each in trainer.advantages([WON, SLOW, LOST]))
    examples = trainer.examples(episodes)
    expected = [(0.0, 4), (won, 4), (0.0, 2), (lost, 6), (0.0, 4), (slow, 4)]
    for example, (advantage, tokens) in zip(examples, expected, strict=True):
        np.testing.assert_array_equal(example.flat("advantages"), np.full(tokens, advantage, np.float32))
    assert trainer._summary(episodes, [bool(e.flat("advantages").any()) for e in examples])["groups_degenerate"] == 2


def test_windowed_episodes(tmp_path: Path) -> None:
    """A sequence per turn, and the same advantage in all of them."""
    group = [played([0.0, 1.0], windowed=True), played([0.0, 0.0, 0.0], seed=1, windowed=True)]
    examples = grpo(tmp_path).examples(group)
    assert [len(example.rows) for example in examples] == [2, 3]
    assert [np.unique(example.flat("advantages")).tolist() for example in examples] == [
        [pytest.approx(math.sqrt(0.5), rel=1e-5)],
        [pytest.approx(-math.sqrt(0.5), rel=1e-5)],
    ]
