"""tlm-DRE from nothing but an environment: sample, pair with the expert, score, learn, sample anew, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.pairs import read_pairs, score_pairs
from agentgym_tlm.trainers.collect import draw_tasks, sampled_turns, sampling_at
from agentgym_tlm.trainers.methods import METHODS
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, TLMDRETrainer
from agentgym_tlm.trajectory import StopReason, read_trajectories, write_trajectories
from tests import toy_env


def trainer_in(folder: Path, **options: Any) -> TLMDRETrainer:
    args = TLMDREArguments(
        output_dir=str(folder),
        **{
            "learning_rate": 1e-3,
            "max_steps": 2,
            "num_tasks": 2,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "save_steps": 1,
            "logging_steps": 1,
            **options,
        },
    )
    policy = toy_env.tiny_policy(max_new_tokens=4, temperature=0.0)
    return TLMDRETrainer(policy, EnvArgs(env="Toy-v0", max_episode_steps=3), args)


def test_sampled_steps_are_those_of_the_policy(tmp_path: Path) -> None:
    """Not the expert's, not those that an episode begins behind, not those of episodes that machinery broke off."""
    trainer = trainer_in(tmp_path, num_iterations=2)
    trainer.train()
    logs = [tmp_path / f"iteration-{i}" / "sampled.jsonl" for i in range(2)]
    played = [t for log in logs for t in read_trajectories(log)]
    assert sampled_turns(tmp_path) == sum(len(t.turns) for t in played) > 0
    played[0].stop_reason, played[1].turns[0].trainable = StopReason.ENV_ERROR, False
    write_trajectories(tmp_path / "other" / "explored.0-of-2.jsonl", played)
    assert sampled_turns(tmp_path / "other") == sum(len(t.turns) for t in played[1:]) - 1


def weights(trainer: TLMDRETrainer) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in trainer.policy.model.parameters()])


def test_iterations_sample_with_the_newest_policy(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, num_iterations=2, samples_per_task=2)
    trainer.train()
    assert trainer.state.step == 4
    assert trainer.policy.temperature == 0.0  # sampling at 1 is over
    samples = [list(read_trajectories(tmp_path / f"iteration-{i}" / "sampled.jsonl")) for i in range(2)]
    assert [len(played) for played in samples] == [4, 4]
    assert {t.turns[0].policy_version for t in samples[0]} == {"0"}
    assert {t.turns[0].policy_version for t in samples[1]}.isdisjoint({"0"})
    for iteration in range(2):
        pairs = read_pairs(tmp_path / f"iteration-{iteration}" / "pairs")
        assert pairs
        assert all(pair.chosen.task_id == pair.rejected.task_id for pair in pairs)
        reference = toy_env.tiny_policy().model
        for pair, again in zip(pairs, score_pairs(reference, pairs), strict=True):
            for turn, fresh in zip(pair.rejected.turns, again.rejected.turns, strict=True):
                assert turn.ref_logprobs == pytest.approx(fresh.ref_logprobs, abs=1e-4)


def test_resumes_between_and_within_iterations(tmp_path: Path) -> None:
    """Interrupted while sampling, in the first and in the second iteration: the same weights in the end."""
    whole = trainer_in(tmp_path / "whole", num_iterations=2)
    whole.train()
    folder = tmp_path / "interrupted"

    class Stop(Exception):
        pass

    def stop_at(step: int) -> Any:
        def on_log(line: Any) -> None:
            if line["step"] == step and "loss" in line:
                raise Stop

        return on_log

    trainer = trainer_in(folder, num_iterations=2)

    def stop_sampling(progress: Any) -> None:
        raise Stop

    trainer.on_rollout = stop_sampling
    with pytest.raises(Stop):
        trainer.train()
    for step in (2, 3, 4):
        trainer = trainer_in(folder, num_iterations=2)
        if step > 2:
            trainer.resume()
        trainer.on_log = stop_at(step)
        with pytest.raises(Stop):
            trainer.train()
    trainer = trainer_in(folder, num_iterations=2)
    trainer.resume()
    trainer.train()
    assert torch.equal(weights(trainer), weights(whole))


def test_collected_data_of_another_run_is_refused(tmp_path: Path) -> None:
    """Samples of another policy, or made with other options, would silently be the wrong data."""
    trainer_in(tmp_path, save_steps=None).train()
    with pytest.raises(CheckpointError, match="other options"):
        trainer_in(tmp_path, save_steps=None, samples_per_task=2).train()
    other = trainer_in(tmp_path, save_steps=None)
    with torch.no_grad():
        next(other.policy.model.parameters()).add_(0.01)
    with pytest.raises(CheckpointError, match="another policy"):
        other.train()


@pytest.mark.parametrize("kind", ["tlm-dre", "kto"])
def test_attempt_that_is_begun_again_logs_what_was_left_out(kind: str, tmp_path: Path) -> None:
    """Its pairs are there already, and nothing but the counts says why there are not more."""
    found: list[list[dict[str, float]]] = []
    for _ in range(2):
        arguments, trainer = METHODS[kind]
        args = arguments(output_dir=str(tmp_path), max_steps=1, save_steps=None)
        envs = EnvArgs(env="Toy-v0", max_episode_steps=9, env_kwargs={"fail_on": "lamp-study-hall"})
        trainer(toy_env.tiny_policy(max_new_tokens=4), envs, args).train()
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        found.append([line for line in lines if any(name.startswith("dropped_") for name in line)])
    assert found[0] == found[1]
    assert [line["dropped_env_error"] for line in found[0]] == [1]


@pytest.mark.parametrize(("size", "per_epoch"), [(3, 3), (4, 2), (10, 1), (99, 1)])
def test_tasks_come_up_once_before_one_comes_again(size: int, per_epoch: int) -> None:
    """But for a remainder; in another order every time, and the same for the same seed."""
    tasks = [f"task{i}" for i in range(10)]
    drawn = [draw_tasks(tasks, size, iteration, seed=5) for iteration in range(2 * per_epoch)]
    epochs = [[task for each in half for task in each] for half in (drawn[:per_epoch], drawn[per_epoch:])]
    for epoch in epochs:
        assert len(epoch) == len(set(epoch)) == min(size, 10) * per_epoch
        assert set(epoch) <= set(tasks)
    assert epochs[0] != epochs[1]
    assert drawn == [draw_tasks(tasks, size, iteration, seed=5) for iteration in range(2 * per_epoch)]
    assert drawn[0] != draw_tasks(tasks, size, 0, seed=6)


@pytest.mark.parametrize("temperature", [-1.0, float("nan")])
def test_sampling_temperature_is_checked(temperature: float) -> None:
    """A negative one would sample what the policy finds least likely."""
    policy = toy_env.tiny_policy()
    with pytest.raises(ConfigError, match="temperature"), sampling_at(policy, temperature):
        pass
    assert policy.temperature == 1.0


def test_no_pair_says_why(tmp_path: Path) -> None:
    """A context without room for one response is no lack of failures."""
    trainer = trainer_in(tmp_path)
    trainer.policy.max_new_tokens = trainer.policy.max_context - 1
    with pytest.raises(ConfigError, match=r"of 2 sampled episodes 2 left the policy no room .* max_context"):
        trainer.train()
