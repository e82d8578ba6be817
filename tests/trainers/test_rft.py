"""RFT adds what is new and won to the expert's episodes, and learns from them from where SFT began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.experiment import Experiment
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT
from agentgym_tlm.progress import rollout_progress, training_progress
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.rft import RFTArguments, RFTTrainer, new_wins
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories, write_trajectories
from tests import toy_env
from tests.trainers.students import ENVS, demonstrations, student, untrained
from tests.trainers.toys import episode


def rft(folder: Path, policy: LanguageModelPolicy | None = None, **options: Any) -> RFTTrainer:
    defaults: dict[str, Any] = {
        "learning_rate": 5e-3,
        "lr_scheduler_type": "constant_with_warmup",
        "per_device_train_batch_size": 4,
        "save_steps": None,
        "logging_steps": 1,
    }
    return RFTTrainer(policy or student(), ENVS, RFTArguments(output_dir=str(folder), **{**defaults, **options}))


def weights(policy: LanguageModelPolicy) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in policy.model.parameters()])


@pytest.fixture
def base(tmp_path: Path) -> str:
    """Folder of the policy before SFT."""
    untrained().save(tmp_path / "base")
    return str(tmp_path / "base")


def acted(actions: list[str], *, won: bool = True, task: str = "task") -> Trajectory:
    trajectory = episode([(2, 2)] * len(actions), won=won, task=task)
    for turn, action in zip(trajectory.turns, actions, strict=True):
        turn.action = action
    return trajectory


def test_new_wins_by_hand() -> None:
    """Neither equal actions on another task nor the same actions in another order are duplicates."""
    failed = acted(["x"])
    failed.stop_reason = StopReason.ENV_ERROR
    kept_ones = [acted(["b", "a"]), acted(["a", "b"], task="other")]
    sampled = [
        acted(["a", "b"]),  # as the expert did
        kept_ones[0],
        acted(["b", "a"]),  # as the sample before
        acted(["c"], won=False),
        failed,
        kept_ones[1],
    ]
    kept, dropped = new_wins(sampled, [acted(["a", "b"])])
    assert kept == kept_ones
    assert dropped == {"duplicate": 2, "lost": 1, "env_error": 1}


def test_learns_what_sft_on_the_same_episodes_learns(tmp_path: Path, base: str) -> None:
    """From the base policy, in the same order, to the same weights: RFT is SFT on more data, and nothing else."""
    trainer = rft(tmp_path / "rft", base_policy=base, num_train_epochs=2.0)
    trainer.train()
    sampled = list(read_trajectories(tmp_path / "rft" / "sampled" / "sampled.jsonl"))
    assert len(sampled) == 24
    expert = demonstrations(student())
    order = {t.task_id: i for i, t in enumerate(expert)}
    wins, dropped = new_wins(sorted(sampled, key=lambda t: (order[t.task_id], t.sample)), expert)
    assert wins
    first = json.loads((tmp_path / "rft" / "metrics.jsonl").read_text().splitlines()[0])
    assert (first["expert_episodes"], first["added_episodes"]) == (6, len(wins))
    assert sum(first[name] for name in first if name.startswith("dropped_")) == 24 - len(wins) == dropped.total()
    args = SFTArguments(
        output_dir=str(tmp_path / "sft"),
        learning_rate=5e-3,
        lr_scheduler_type="constant_with_warmup",
        per_device_train_batch_size=4,
        save_steps=None,
        num_train_epochs=2.0,
    )
    plain = SFTTrainer(untrained(), ENVS, args)
    plain.train_trajectories([*expert, *wins])
    assert torch.equal(weights(trainer.policy), weights(plain.policy))


def test_goes_on_from_the_sft_policy_without_a_base(tmp_path: Path) -> None:
    trainer = rft(tmp_path, max_steps=1, learning_rate=1e-6)
    before = weights(student())
    trainer.train()
    assert 0 < (weights(trainer.policy) - before).abs().max() < 1e-5


def test_learns_the_logged_expert_episodes(tmp_path: Path) -> None:
    """Those of SFT, with recoveries from mistakes, not fewer and cleaner ones; what was not won is left out."""
    played = rollout(ExpertPolicy(noise=0.3), "Toy-v0", samples_per_task=3, max_turns=8)
    write_trajectories(tmp_path / "expert.jsonl", played)
    trainer = rft(tmp_path / "run", expert_log=str(tmp_path / "expert.jsonl"), max_steps=1)
    trainer.train()
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["expert_episodes"] == sum(t.won for t in played) < len(played)


def test_given_expert_episodes_come_first(tmp_path: Path) -> None:
    """``--expert.file`` says what to imitate, whatever the SFT policy of another run has learnt."""
    played = rollout(ExpertPolicy(format=TINY_FORMAT), "Toy-v0", max_turns=8)
    write_trajectories(tmp_path / "expert.jsonl", played)
    trainer = rft(tmp_path / "run", expert_log=str(tmp_path / "expert.jsonl"), max_steps=1)
    trainer.expert_episodes = [trajectory for trajectory in played if trajectory.won][:1]
    trainer.train()
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["expert_episodes"] == 1


@pytest.mark.parametrize("lora", [None, LoraArguments(r=2)], ids=["full", "lora"])
def test_killed_run_goes_on_to_the_same_weights(tmp_path: Path, base: str, lora: LoraArguments | None) -> None:
    """While it sampled, and after a checkpoint; wherever the folder of the base is by then."""
    options: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "lora": lora, "num_tasks": 4, "base_policy": base}

    class Stop(Exception):
        pass

    def stop(event: Any) -> None:
        if not isinstance(event, dict) or event["step"] == 3:
            raise Stop

    whole = rft(tmp_path / "whole", **options)
    whole.train()
    trainer = rft(tmp_path / "killed", **options)
    trainer.on_rollout = stop
    with pytest.raises(Stop):
        trainer.train()
    trainer = rft(tmp_path / "killed", **options)
    trainer.on_log = stop
    with pytest.raises(Stop):
        trainer.train()
    Path(base).rename(tmp_path / "moved")
    trainer = rft(tmp_path / "killed", **{**options, "base_policy": str(tmp_path / "moved")})
    trainer.resume()
    trainer.train()
    assert torch.equal(weights(trainer.policy), weights(whole.policy))
    lines = [json.loads(line) for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert sum("added_episodes" in line for line in lines) == 1
    saved = LanguageModelPolicy.load(trainer.save(), device="cpu")
    assert saved.model.num_parameters() == student().model.num_parameters()


def test_another_base_is_refused(tmp_path: Path, base: str) -> None:
    rft(tmp_path / "run", base_policy=base, max_steps=1, num_tasks=1).train()
    toy_env.tiny_policy(seed=1).save(tmp_path / "other")
    with pytest.raises(CheckpointError, match="other data"):
        rft(tmp_path / "run", base_policy=str(tmp_path / "other"), max_steps=1, num_tasks=1).train()
    toy_env.tiny_policy(layers=1).save(tmp_path / "small")
    with pytest.raises(ConfigError, match="weights of other shapes"):
        rft(tmp_path / "again", base_policy=str(tmp_path / "small")).train()


def test_main_job_knows_what_the_sft_policy_was_made_of(tmp_path: Path) -> None:
    """From its own run folder or, by --sft-policy, from another's: the same base and the same expert episodes."""
    (tmp_path / "run" / "sft" / "initial").mkdir(parents=True)
    (tmp_path / "run" / "trajectories").mkdir()
    (tmp_path / "run" / "trajectories" / "expert.jsonl").touch()
    own = ExperimentConfig(output_dir=tmp_path / "run")
    other = ExperimentConfig(output_dir=tmp_path / "new", sft_policy=tmp_path / "run" / "sft" / "policy")
    pretrained = ExperimentConfig(output_dir=tmp_path / "new", policy="smollm2")
    for config in (own, other):
        args = origin(config, RFTArguments())
        assert args.base_policy == str(tmp_path / "run" / "sft" / "initial")
        assert args.expert_log == str(tmp_path / "run" / "trajectories" / "expert.jsonl")
        assert origin(config, RFTArguments(lora=LoraArguments())).base_policy is None
        assert origin(config, RFTArguments(base_policy="mine/model")).base_policy == "mine/model"
    assert (origin(pretrained, RFTArguments()).base_policy, origin(pretrained, RFTArguments()).expert_log) == (
        "smollm2",
        None,
    )


def origin(config: ExperimentConfig, args: RFTArguments) -> RFTArguments:
    return Experiment(config, rollouts=rollout_progress, training=training_progress)._with_origin(args)


def test_says_when_nothing_was_won(tmp_path: Path) -> None:
    """The table would call it RFT, and it is SFT once more."""
    with pytest.warns(UserWarning, match=r"none of 24 sampled episodes is a new win \(.* lost\)"):
        rft(tmp_path, untrained(), max_steps=1).train()
