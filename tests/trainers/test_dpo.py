"""Trajectory DPO is ETO's: sums over all turns, the reference renewed in every iteration, greedy exploration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.pairs import Pair, read_pairs, score_pairs
from agentgym_tlm.trainers.dpo import DPOArguments, DPOTrainer, dpo_loss
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, tlm_dre_loss
from tests.trainers.test_tlm_dre import gradients, hand_batch, hand_logprobs, model_pairs, pair_batch
from tests.trainers.toys import episode, tiny_policy


def test_two_turn_example_by_hand() -> None:
    """Δ_w = 0.04 + 0.3 and Δ_l = -0.3 - 0.4, whatever the turn weights in the batch."""
    batch = hand_batch(TLMDREArguments())
    loss, metrics = dpo_loss(hand_logprobs(batch), batch, beta=0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-0.5 * (0.34 + 0.7))), abs=1e-6)
    assert metrics["reward_w"].item() == pytest.approx(0.17, abs=1e-6)
    assert metrics["reward_l"].item() == pytest.approx(-0.35, abs=1e-6)
    assert metrics["margin"].item() == pytest.approx(0.52, abs=1e-6)
    assert metrics["accuracy"].item() == 1.0


def test_policy_equal_to_the_reference() -> None:
    """The loss begins at log 2: a wrong reference shows."""
    batch = hand_batch(TLMDREArguments())
    loss, metrics = dpo_loss(batch.flat(batch.ref_logprobs), batch, beta=0.1)
    assert loss.item() == pytest.approx(math.log(2))
    assert metrics["margin"].item() == metrics["accuracy"].item() == 0.0


def test_is_tlm_dre_without_turn_weights_and_without_dre() -> None:
    """The paper's ablation "w/o DRE" at ω = 1: the same numbers, bit for bit, and the same gradient."""
    model, pairs = model_pairs()
    batch: TurnBatch = pair_batch(pairs)
    logprobs = token_logprobs(model, batch)
    loss, metrics = dpo_loss(logprobs, batch, beta=0.3)
    args = TLMDREArguments(loss_type="dpo", omega_lower=1.0, beta=0.3)
    other, other_metrics = tlm_dre_loss(logprobs, batch, args)
    torch.testing.assert_close(loss, other, rtol=1e-6, atol=0)
    assert metrics["accuracy"] == other_metrics["accuracy"]
    expected = torch.autograd.grad(other, list(model.parameters()), retain_graph=True)
    torch.testing.assert_close(gradients(loss, model), torch.cat([g.flatten() for g in expected]), rtol=1e-5, atol=1e-7)


def test_better_trajectory_is_chosen_whoever_played_it(tmp_path: Path) -> None:
    """Where the policy beat an imperfect expert, it learns to prefer its own way."""
    trainer = DPOTrainer(tiny_policy(), EnvArgs(), DPOArguments(output_dir=str(tmp_path)))
    expert, sampled = episode([(3, 2)]), episode([(3, 4)], seed=1)
    expert.score, sampled.score = 0.4, 0.7
    pairs, dropped = trainer.pair([expert], [sampled])
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [(sampled, expert)]
    sampled.score = 0.4
    assert trainer.pair([expert], [sampled]) == ([], {"tie": 1})
    assert not dropped


def test_reference_is_renewed_in_every_iteration(tmp_path: Path) -> None:
    """ETO: each iteration begins at a margin of 0 to the policy that the last one made."""
    args = DPOArguments(
        output_dir=str(tmp_path), learning_rate=3e-3, max_steps=3, save_steps=None, logging_steps=1, num_iterations=2
    )
    trainer = DPOTrainer(tiny_policy(), EnvArgs(), args)
    margins: list[float] = []
    trainer.on_log = lambda line: margins.append(line["margin"]) if "margin" in line else None
    pairs = [Pair(episode([(4, 3), (5, 2)], won=True), episode([(4, 2), (3, 4)], seed=1))]
    trainer.train_pairs(pairs)
    first = read_pairs(tmp_path / "iteration-0" / "pairs")
    trainer.state.iteration += 1
    trainer.train_pairs(pairs)
    assert margins[0] == pytest.approx(0.0, abs=1e-6)
    assert margins[2] > 1e-3
    assert margins[3] == pytest.approx(0.0, abs=1e-6)
    second = read_pairs(tmp_path / "iteration-1" / "pairs")
    assert first[0].chosen.turns[0].ref_logprobs != second[0].chosen.turns[0].ref_logprobs
    assert score_pairs(tiny_policy().model, pairs)[0].chosen.turns[0].ref_logprobs == pytest.approx(
        first[0].chosen.turns[0].ref_logprobs, rel=1e-5
    )


def test_defaults_are_the_sources() -> None:
    args = DPOArguments()
    assert (args.learning_rate, args.num_train_epochs, args.beta, args.temperature) == (1e-6, 3.0, 0.1, 0.0)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32
    with pytest.raises(ConfigError, match="beta"):
        DPOArguments(beta=0.0)


def test_unscored_trajectories_are_refused() -> None:
    """Without reference log-probs the loss would be another one."""
    examples = [Example.from_trajectory(episode([(2, 2)], seed=s)) for s in range(2)]
    batch = collate(examples[:1], examples[1:])
    with pytest.raises(ValueError, match="score"):
        dpo_loss(torch.zeros(4), batch, beta=0.1)
