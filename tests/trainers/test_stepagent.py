"""StepAgent corrects single actions in the expert's states, and nothing before or behind them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.batch import Example, collate
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import Pair, read_pairs
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.stepagent import StepAgentArguments, StepAgentTrainer, stepagent_loss
from agentgym_tlm.trajectory import StopReason
from tests.trainers.students import ENVS, demonstrations, student
from tests.trainers.toys import episode


def stepagent(folder: Path, **options: Any) -> StepAgentTrainer:
    defaults: dict[str, Any] = {
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "save_steps": None,
        "logging_steps": 1,
    }
    return StepAgentTrainer(student(), ENVS, StepAgentArguments(output_dir=str(folder), **{**defaults, **options}))


def test_loss_by_hand() -> None:
    """β ((0.1 + 0.3) - (-0.2)) with β = 0.5; the context, whatever its log-probs, is not in the sum."""
    chosen, rejected = episode([(2, 3), (2, 2)], untrainable={0}), episode([(2, 3), (2, 1)], untrainable={0})
    chosen.turns[1].ref_logprobs, rejected.turns[1].ref_logprobs = [-1.0, -2.0], [-0.5]
    batch = collate([Example.from_trajectory(chosen)], [Example.from_trajectory(rejected)])
    logprobs = torch.tensor([-0.9, -1.7, -0.7])
    loss, metrics = stepagent_loss(logprobs, batch, 0.5)
    assert loss.item() == pytest.approx(-math.log(1 / (1 + math.exp(-0.3))), abs=1e-6)
    assert metrics["margin"].item() == pytest.approx(0.3, abs=1e-6)
    assert metrics["accuracy"].item() == 1.0


def built(trainer: StepAgentTrainer) -> tuple[list[Pair], Any]:
    trainer.begin()
    return trainer.build(list(trainer.envs.manifest("train")), demonstrations(trainer.policy))


def test_pairs_are_single_actions_on_the_expert_path(tmp_path: Path) -> None:
    """One state, two actions that differ: everything before is the expert's and context, and nothing comes after."""
    trainer = stepagent(tmp_path, samples_per_task=3)
    experts = {t.task_id: t for t in demonstrations(trainer.policy)}
    pairs, dropped = built(trainer)
    assert len(pairs) + dropped.total() == 3 * sum(len(t.turns) for t in experts.values())
    assert dropped["same_action"] > 0
    states = set()
    for pair in pairs:
        expert, turn = experts[pair.chosen.task_id], len(pair.chosen.turns) - 1
        for side in (pair.chosen, pair.rejected):
            assert [t.trainable for t in side.turns] == [False] * turn + [True]
            assert [t.response for t in side.turns[:turn]] == [t.response for t in expert.turns[:turn]]
            span = side.turns[turn].span
            assert span is not None
            assert side.sequences[0][: span[0]] == expert.sequences[0][: span[0]]
        assert pair.chosen.turns[turn].response == expert.turns[turn].response
        assert pair.rejected.turns[turn].action != expert.turns[turn].action
        states.add((pair.chosen.task_id, turn, pair.rejected.turns[turn].action))
    assert len(states) == len(pairs), "an action counts once in a state"
    assert all(turn.trainable for t in experts.values() for turn in t.turns)


def test_two_expert_episodes_of_a_task_are_one(tmp_path: Path) -> None:
    """Files of experts have several; their first states are the same, and are not played twice."""
    trainer = stepagent(tmp_path, num_tasks=2, temperature=0.0)
    tasks, expert = trainer.demonstrations()
    once, _ = trainer.build(tasks, expert)
    again, _ = stepagent(tmp_path / "again", num_tasks=2, temperature=0.0).build(tasks, [*expert, *expert])
    assert [pair.rejected.sequences for pair in again] == [pair.rejected.sequences for pair in once]


def test_limits_leave_out_and_count(tmp_path: Path) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "samples_per_task": 2}
    pairs, _ = built(stepagent(tmp_path / "all", **options))
    per_task = {pair.chosen.task_id: sum(p.chosen.task_id == pair.chosen.task_id for p in pairs) for pair in pairs}
    assert max(per_task.values()) > 1
    limited, dropped = built(stepagent(tmp_path / "one", **options, max_pairs_per_task=1))
    assert len(limited) == len(per_task)
    assert dropped["over_task_limit"] == len(pairs) - len(limited)
    none, dropped = built(stepagent(tmp_path / "short", **options, max_rejected_tokens=1))
    assert not none
    assert dropped["overlong"] >= len(pairs)


def test_failures_of_the_environment_are_no_proposals(tmp_path: Path) -> None:
    trainer = stepagent(tmp_path)
    trainer.envs = type(ENVS)(env="Toy-v0", max_episode_steps=10, env_kwargs={"fail_on": "lamp-cellar-hall"})
    pairs, dropped = built(trainer)
    assert dropped["env_error"] == 6, "all states of the task but the first, which comes before the failure"
    assert all(pair.rejected.stop_reason is not StopReason.ENV_ERROR for pair in pairs)


def test_options_about_episodes_are_refused() -> None:
    """They would be ignored without a word."""
    with pytest.raises(ConfigError, match="max_repeats is about whole episodes"):
        StepAgentArguments(max_repeats=2)


def test_adapters_learn_it_too(tmp_path: Path) -> None:
    """The first loss is log 2: the reference is the policy before the first update."""
    trainer = stepagent(tmp_path, lora=LoraArguments(r=4), num_tasks=3, max_steps=8)
    lines: list[Any] = []
    trainer.on_log = lines.append
    trainer.train()
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[-1] < losses[0]


def test_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """Killed while it proposed, in both iterations, and while it learnt."""
    options: dict[str, Any] = {"num_iterations": 2, "max_steps": 2, "save_steps": 1, "num_tasks": 2}
    whole = stepagent(tmp_path / "whole", **options)
    whole.train()

    class Stop(Exception):
        pass

    def stop_at(step: int) -> Any:
        def stop(event: Any) -> None:
            if not isinstance(event, dict) or (event["step"] == step and "loss" in event):
                raise Stop

        return stop

    killed = stepagent(tmp_path / "killed", **options)
    killed.on_rollout = stop_at(0)
    with pytest.raises(Stop):
        killed.train()
    for step in (2, 3, 4):
        killed = stepagent(tmp_path / "killed", **options)
        if step > 2:
            killed.resume()
        killed.on_log = stop_at(step)
        with pytest.raises(Stop):
            killed.train()
    killed = stepagent(tmp_path / "killed", **options)
    killed.resume()
    killed.train()
    for one, other in zip(whole.policy.model.parameters(), killed.policy.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert read_pairs(tmp_path / "killed" / "iteration-1" / "pairs")
