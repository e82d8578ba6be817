"""RLOO: the baseline leaves the episode itself out, and the distance from the reference is part of the reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.trainers.rloo import RLOOArguments, RLOOTrainer, sequence_kl
from agentgym_tlm.trajectory import Trajectory
from tests.trainers.toys import played, tiny_policy


def rloo(folder: Path, **options: Any) -> RLOOTrainer:
    return RLOOTrainer(tiny_policy(), EnvArgs(), RLOOArguments(output_dir=str(folder), **options))


def scored_group() -> list[Trajectory]:
    group = [played([1.0], seed=0), played([0.0, 0.0], valid=[False, True], seed=1), played([0.0, 1.0], seed=2)]
    for episode in group:
        for turn in episode.turns:
            turn.ref_logprobs = [value - 0.25 for value in turn.logprobs or []]
    return group


def test_sequence_kl_is_summed_over_what_is_learnt() -> None:
    """0.25 of every token; a turn that nobody may learn from does not count."""
    one, two, _ = scored_group()
    assert sequence_kl(one) == pytest.approx(0.5)
    two.turns[0].trainable = False
    two.turns[0].ref_logprobs = None
    assert sequence_kl(two) == pytest.approx(0.5)


@pytest.mark.parametrize("kl_in", ["reward", "loss"])
def test_advantages_leave_one_out(kl_in: Any, tmp_path: Path) -> None:
    """Against a loop: the return, less β times the divergence of the episode, less the mean over the others."""
    trainer = rloo(tmp_path, beta=0.2, kl_in=kl_in)
    group = scored_group()
    tokens, returns = (2, 4, 4), (10.0, -0.1, 10.0)
    rewards = [r - (0.2 * 0.25 * n if kl_in == "reward" else 0.0) for r, n in zip(returns, tokens, strict=True)]
    for i, advantages in enumerate(trainer.advantages(group)):
        others = [reward for j, reward in enumerate(rewards) if j != i]
        np.testing.assert_allclose(advantages, [rewards[i] - sum(others) / 2] * len(group[i].turns))
    assert trainer.loss_beta == (0.0 if kl_in == "reward" else 0.2)


def test_divergence_tells_equal_outcomes_apart(tmp_path: Path) -> None:
    """Two wins, one of them far from the reference: it is the worse one."""
    near, far, _ = scored_group()
    far.turns[1].reward, far.turns[0].well_formed = 1.0, True
    advantages = rloo(tmp_path, beta=0.1).advantages([near, far])
    assert [each[0] for each in advantages] == pytest.approx([0.05, -0.05])
    for found in rloo(tmp_path, beta=0.0).advantages([near, far]):
        assert (found == 0).all()


def test_no_reference_is_needed_without_beta(tmp_path: Path) -> None:
    group = [played([1.0]), played([0.0], seed=1)]
    assert [each.tolist() for each in rloo(tmp_path, beta=0.0).advantages(group)] == [[10.0], [-10.0]]
