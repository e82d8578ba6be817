"""DMPO's discount of late turns: the paper's, the released code's, and the two limits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import Pair
from agentgym_tlm.trainers.dmpo import DMPOArguments, DMPOTrainer, Weighting, dmpo_loss, turn_weights
from agentgym_tlm.trainers.dpo import dpo_loss
from tests.trainers.test_tlm_dre import SHIFT, hand_logprobs, scored
from tests.trainers.toys import tiny_policy


@pytest.mark.parametrize(
    ("gamma", "weighting", "expected"),
    [
        (0.5, "paper", [1.0, 0.75 / 0.875, 0.5 / 0.875]),
        (0.5, "code", [1.0, 0.5 * 0.75 / 0.875, 0.25 * 0.5 / 0.875]),
        (1.0, "paper", [1.0, 2 / 3, 1 / 3]),
        (1.0, "code", [1.0, 2 / 3, 1 / 3]),
        (0.0, "paper", [1.0, 1.0, 1.0]),
        (0.0, "code", [1.0, 0.0, 0.0]),
    ],
)
def test_weights_by_hand(gamma: float, weighting: Weighting, expected: list[float]) -> None:
    assert turn_weights(3, gamma, weighting) == pytest.approx(expected)


def test_weights_approach_their_limits() -> None:
    """γ = 0 and γ = 1 are no special cases but where the formula leads to."""
    for gamma, limit in ((1e-9, 0.0), (1 - 1e-9, 1.0)):
        assert turn_weights(7, gamma) == pytest.approx(turn_weights(7, limit), abs=1e-6)
    assert turn_weights(1, 0.7) == [1.0]


def trainer(folder: Path, **options: float) -> DMPOTrainer:
    return DMPOTrainer(tiny_policy(), EnvArgs(), DMPOArguments(output_dir=str(folder), **options))  # type: ignore[arg-type]


PAIR = Pair(
    scored([(2, 2), (1, 3)], [[-0.05, -0.05], [-0.3, -0.3, -0.3]]),
    scored([(2, 1), (1, 2)], [[-0.01], [-1.0, -1.0]], seed=1),
)


def test_two_turn_example_by_hand(tmp_path: Path) -> None:
    """γ = 0.5 and T = 2: φ = 1, 2/3. Δ is 0.04, 0.3 on the chosen side and -0.3, -0.4 on the rejected side."""
    ((chosen, rejected),) = trainer(tmp_path, gamma=0.5).items([PAIR])
    batch = collate([chosen], [rejected])
    loss, metrics = dmpo_loss(hand_logprobs(batch), batch, beta=0.5)
    reward_w, reward_l = 0.5 * (0.04 + 0.2), 0.5 * (-0.3 - 0.8 / 3)
    assert metrics["reward_w"].item() == pytest.approx(reward_w, abs=1e-6)
    assert metrics["reward_l"].item() == pytest.approx(reward_l, abs=1e-6)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(reward_l - reward_w)), abs=1e-6)
    assert SHIFT.sum().item() == pytest.approx(0.34 - 0.7)


def test_without_discount_is_dpo(tmp_path: Path) -> None:
    ((chosen, rejected),) = trainer(tmp_path, gamma=0.0).items([PAIR])
    batch = collate([chosen], [rejected])
    assert torch.equal(
        dmpo_loss(hand_logprobs(batch), batch, beta=0.3)[0], dpo_loss(hand_logprobs(batch), batch, beta=0.3)[0]
    )


def test_turns_are_counted_per_trajectory() -> None:
    """Beside a longer trajectory, φ of a shorter one still ends at its own last turn."""
    lengths = ([(2, 2), (1, 2)], [(2, 1), (1, 2), (1, 2), (1, 1)])
    trajectories = [scored(each, [[-0.1] * n for _, n in each], seed=s) for s, each in enumerate(lengths)]
    batch = collate(*[[Example.from_trajectory(t, turn_weights(len(t.turns), 1.0))] for t in trajectories])
    assert batch.turn_weights.tolist() == [[1.0, 0.5, 0.0, 0.0], [1.0, 0.75, 0.5, 0.25]]


def test_options(tmp_path: Path) -> None:
    args = DMPOArguments()
    assert (args.learning_rate, args.num_train_epochs, args.beta, args.gamma, args.weighting) == (
        1e-6,
        3.0,
        0.1,
        0.7,
        "paper",
    )
    for wrong in ({"gamma": 1.5}, {"gamma": -0.1}, {"beta": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            trainer(tmp_path, **wrong)
