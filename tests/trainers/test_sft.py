"""SFT imitates exactly what the expert produced: the loss is the usual cross-entropy on those tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer, sft_loss
from tests import toy_env
from tests.trainers.toys import episode, tiny_model, tiny_policy


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_loss_is_the_cross_entropy_of_transformers(kind: str) -> None:
    model: Any = tiny_model(kind)
    trajectories = [episode([(4, 3), (5, 2)]), episode([(2, 6)], seed=1), episode([(3, 3), (9, 4)], untrainable={0})]
    batch = collate([Example.from_trajectory(trajectory) for trajectory in trajectories])
    labels = batch.input_ids.masked_fill(~batch.loss_mask, -100)
    expected = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss
    found = sft_loss(token_logprobs(model, batch), batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_normalizations_and_dft_by_hand() -> None:
    """One trajectory of three tokens and one of one token, with probabilities 1/2, 1/4, 1/2 and 1/8."""
    batch = collate([Example.from_trajectory(episode([(2, 2), (1, 1)])), Example.from_trajectory(episode([(2, 1)]))])
    logprobs = torch.tensor([0.5, 0.25, 0.5, 0.125]).log().requires_grad_()
    ln2 = math.log(2)
    assert sft_loss(logprobs, batch).item() == pytest.approx((1 + 2 + 1 + 3) * ln2 / 4)
    per_trajectory = sft_loss(logprobs, batch, normalization="trajectories")
    assert per_trajectory.item() == pytest.approx((4 / 3 + 3) * ln2 / 2)
    weighted = sft_loss(logprobs, batch, "dft")
    assert weighted.item() == pytest.approx((1 / 2 + 2 / 4 + 1 / 2 + 3 / 8) * ln2 / 4)
    (gradient,) = torch.autograd.grad(weighted, logprobs)
    assert gradient.tolist() == pytest.approx([-0.125, -0.0625, -0.125, -0.03125])


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_overfits_four_trajectories(tmp_path: Path, precision: Any) -> None:
    args = SFTArguments(
        output_dir=str(tmp_path),
        learning_rate=2e-2,
        lr_scheduler_type="constant_with_warmup",
        num_train_epochs=60,
        per_device_train_batch_size=4,
        save_steps=None,
        mixed_precision=precision,
    )
    trainer = SFTTrainer(tiny_policy(), EnvArgs(), args)
    trainer.train_trajectories([episode([(5, 4), (6, 3)], seed=s, won=True) for s in range(4)])
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] > 2.5  # over the first ten updates: still near the loss of guessing
    assert losses[-1] < 0.3


def test_plays_the_expert_and_learns_to_win(tmp_path: Path) -> None:
    """From nothing but an environment's name to a policy that solves its training tasks."""
    policy = toy_env.tiny_policy(max_new_tokens=20, temperature=0.0)
    envs = EnvArgs(env="Toy-v0")
    tasks = envs.manifest("train").take(2)

    def evaluate(policy: LanguageModelPolicy) -> dict[str, float]:
        played = rollout(policy, "Toy-v0", tasks, max_turns=8)
        return {"success": sum(t.won for t in played) / len(played)}

    args = SFTArguments(
        output_dir=str(tmp_path),
        learning_rate=1e-2,
        lr_scheduler_type="constant_with_warmup",
        num_train_epochs=100,
        num_tasks=2,
        eval_steps=50,
        save_steps=None,
    )
    trainer = SFTTrainer(policy, envs, args, evaluate=evaluate)
    assert trainer.evaluate() == {"success": 0.0}
    trainer.train()
    assert trainer.evaluate() == {"success": 1.0}
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if "eval_success" in line] == [0, 50, 100]
    assert (tmp_path / "expert" / "expert.jsonl").exists()
