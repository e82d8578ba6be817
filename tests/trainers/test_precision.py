"""Models that come in half precision learn in float32: at the rates of fine-tuning, shorter weights would not move."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.policies.base import Conversation
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from tests.trainers.toys import episode, tiny_policy

EPISODES = [episode([(4, 6), (2, 5)], seed=seed) for seed in range(4)]
RATE = 7e-7


def half_policy(folder: Path) -> LanguageModelPolicy:
    """A folder as the hub has them, loaded as everybody loads it."""
    policy = tiny_policy()
    policy.model.bfloat16()
    policy.save(folder)
    loaded = LanguageModelPolicy.load(folder, device="cpu")
    assert loaded.model.dtype == torch.bfloat16
    return loaded


def trainer(policy: LanguageModelPolicy, folder: Path, **options: Any) -> SFTTrainer:
    shared = {"learning_rate": RATE, "lr_scheduler_type": "constant", "max_steps": 3, "save_steps": None}
    return SFTTrainer(policy, EnvArgs(), SFTArguments(output_dir=str(folder), **{**shared, **options}))


def weights(policy: LanguageModelPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().float() for parameter in policy.model.parameters()])


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_small_steps_are_not_lost(precision: Literal["no", "bf16"], tmp_path: Path) -> None:
    """Neither while training nor in what is saved: most weights move, and none could by so little in bfloat16."""
    policy = half_policy(tmp_path / "given")
    before = weights(policy)
    run = trainer(policy, tmp_path / "run", mixed_precision=precision)
    run.train_trajectories(EPISODES)
    moved = weights(policy) - before
    used = before.abs() > 1e-3
    assert (moved[used] != 0).float().mean() > 0.9
    assert moved.abs().max() < 4 * RATE
    assert torch.equal(weights(policy)[used].bfloat16().float(), before[used])
    saved = LanguageModelPolicy.load(run.save(), device="cpu")
    assert saved.model.dtype == torch.float32
    assert torch.equal(weights(saved), weights(policy))


def test_adapters_are_float32_on_a_model_that_stays_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    policy = half_policy(tmp_path / "given")
    run = trainer(policy, tmp_path / "run", lora=LoraArguments(r=2), learning_rate=1e-2, mixed_precision="bf16")
    run.train_trajectories(EPISODES)
    dtypes = {p.requires_grad: p.dtype for p in policy.model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    saved = LanguageModelPolicy.load(run.save(), device="cpu")
    assert saved.model.dtype == torch.bfloat16
    assert not torch.equal(weights(saved), weights(half_policy(tmp_path / "given")))


def test_a_policy_that_has_played_goes_on_playing(tmp_path: Path) -> None:
    """Keys and values of the shorter weights fit no cache of the longer ones."""
    policy = half_policy(tmp_path / "given")
    conversation = Conversation("Toy-v0", "task", "i", np.random.default_rng(0), observations=["wordaa wordab"])
    policy.act([conversation])
    fingerprint = policy.fingerprint
    trainer(policy, tmp_path / "run")
    conversation.responses.append("wordac")
    conversation.observations.append("wordad")
    policy.act([conversation])
    assert policy.version == "0"
    assert policy.fingerprint != fingerprint
