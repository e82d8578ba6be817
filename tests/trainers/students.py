"""A policy that has half learnt ``Toy-v0``: what the methods that go on from an SFT policy start with."""

from __future__ import annotations

import tempfile
from functools import cache

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trajectory import Trajectory
from tests import toy_env

ENVS = EnvArgs(env="Toy-v0", max_episode_steps=10)


def student() -> LanguageModelPolicy:
    """A fresh copy of a policy that wins some tasks of ``Toy-v0`` greedily, and fails others."""
    return LanguageModelPolicy.load(f"{_trained().name}/policy", device="cpu")


def untrained() -> LanguageModelPolicy:
    """What the student was before it learnt."""
    return toy_env.tiny_policy(max_new_tokens=20)


def demonstrations(policy: LanguageModelPolicy) -> list[Trajectory]:
    """The expert's episodes of all tasks without mistakes, with the policy's token ids."""
    played = rollout(ExpertPolicy(format=policy.format), "Toy-v0", env_kwargs=ENVS.options)
    return [policy.renderer.encode_trajectory(trajectory) for trajectory in played]


@cache
def _trained() -> tempfile.TemporaryDirectory[str]:
    """Run folder of the training; gone with the process."""
    folder = tempfile.TemporaryDirectory(prefix="student-")
    args = SFTArguments(
        output_dir=folder.name,
        learning_rate=5e-3,
        lr_scheduler_type="constant_with_warmup",
        num_train_epochs=30,
        per_device_train_batch_size=4,
        save_steps=None,
    )
    trainer = SFTTrainer(untrained(), ENVS, args)
    trainer.train()
    trainer.save()
    return folder
