"""Online tlm-DRE: failures beside wins of their own group, iteration after iteration, on fresh tasks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import read_pairs, score_reference
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.trainers.collect import draw_tasks
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, TLMDRETrainer
from agentgym_tlm.trajectory import Trajectory, read_trajectories
from tests.trainers.crossing import ENVS, sft_folder, won


@pytest.fixture(scope="module")
def crossing() -> Path:
    """A policy that greedily fails 7 of 16 tasks."""
    return sft_folder()


def online(policy: Path, folder: Path, **options: Any) -> TLMDRETrainer:
    defaults = {
        "pairing": "group",
        "samples_per_task": 6,
        "learning_rate": 3e-4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_steps": 4,
        "num_iterations": 2,
        "save_steps": None,
        "logging_steps": 1,
    }
    args = TLMDREArguments(output_dir=str(folder), **{**defaults, **options})
    return TLMDRETrainer(LanguageModelPolicy.load(policy, device="cpu"), ENVS, args)


def test_pairs_are_those_of_groups(crossing: Path, tmp_path: Path) -> None:
    """Every failure of an iteration, beside a win that the same policy sampled on the task, the expert's if none.

    The reference scores are those of the SFT policy, and an iteration plays tasks that the last one did not.
    """
    online(crossing, tmp_path, tasks_per_iteration=8, samples_per_task=2).train()
    model = LanguageModelPolicy.load(crossing, device="cpu").model
    experts = {each.task_id: each for each in read_trajectories(tmp_path / "expert.jsonl")}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    played = []
    substitutes = 0
    for iteration in range(2):
        folder = tmp_path / f"iteration-{iteration}"
        tasks = draw_tasks(list(ENVS.manifest("train")), 8, iteration, seed=0)
        played += tasks
        logged = read_trajectories(folder / "sampled.jsonl")  # as the episodes ended
        sampled, pairs = sorted(logged, key=lambda t: (tasks.index(t.task_id), t.sample)), read_pairs(folder / "pairs")
        wins: dict[str, list[Trajectory]] = defaultdict(list)
        for each in sampled:
            if each.won:
                wins[each.group_id].append(each)
        failures = [each for each in sampled if not each.won]
        used = set()
        taken: dict[str, int] = defaultdict(int)
        for pair, failure in zip(pairs, failures, strict=True):
            assert pair.rejected.sequences == failure.sequences
            if group := wins[failure.group_id]:
                win = group[taken[failure.group_id] % len(group)]
                taken[failure.group_id] += 1
                used.add(id(win))
                assert pair.chosen.sequences == win.sequences
                assert pair.chosen.turns[0].policy_version == failure.turns[0].policy_version
            else:
                substitutes += 1
                assert [t.response for t in pair.chosen.turns] == [t.response for t in experts[failure.task_id].turns]
                assert pair.chosen.policy.startswith("expert")
            (again,) = score_reference(model, [pair.chosen])
            for kept, fresh in zip(pair.chosen.turns, again.turns, strict=True):
                assert kept.ref_logprobs == pytest.approx(fresh.ref_logprobs, abs=1e-4)
        (counts,) = (line for line in lines if line["iteration"] == iteration and "dropped_won" in line)
        assert counts["dropped_won"] == sum(map(len, wins.values())) - len(used)
    assert sorted(played) == sorted(ENVS.manifest("train"))
    assert substitutes > 0


def test_solves_the_small_world(crossing: Path, tmp_path: Path) -> None:
    """An iteration without a failure left is passed over, and not the end of the run."""
    trainer = online(crossing, tmp_path, num_iterations=4, max_steps=10)
    trainer.train()
    assert trainer.state.iteration == 3
    assert len(won(trainer.policy)) == 16


def test_iteration_without_failures_is_passed_over(crossing: Path, tmp_path: Path) -> None:
    """Nothing is learnt and nothing is lost: the next iteration's tasks may be harder."""
    trainer = online(
        crossing, tmp_path, tasks_per_iteration=1, samples_per_task=2, num_iterations=8, max_steps=1, seed=0
    )
    trainer.train()
    folders = [tmp_path / f"iteration-{iteration}" for iteration in range(8)]
    learnt = [(folder / "pairs").is_dir() for folder in folders]
    assert 1 < sum(learnt) < 7
    assert trainer.state.step == sum(learnt)
    for folder, any_pair in zip(folders, learnt, strict=True):
        assert any_pair != all(each.won for each in read_trajectories(folder / "sampled.jsonl"))


class _StoppedError(Exception):
    """Stands for whatever ends a run."""


def test_resumes_in_the_middle_of_an_iteration(crossing: Path, tmp_path: Path) -> None:
    """In the second one, whose chosen trajectories the policy itself sampled: the same weights in the end."""
    options = {"tasks_per_iteration": 4, "save_steps": 1, "max_steps": 3}
    whole = online(crossing, tmp_path / "whole", **options)
    whole.train()
    stopped = online(crossing, tmp_path / "stopped", **options)

    def on_log(line: Mapping[str, float]) -> None:
        if line["step"] == 5 and "loss" in line:
            raise _StoppedError

    stopped.on_log = on_log
    with pytest.raises(_StoppedError):
        stopped.train()
    resumed = online(crossing, tmp_path / "stopped", **options)
    resumed.resume()
    assert resumed.state.step == 4
    resumed.train()
    for expected, found in zip(whole.policy.model.parameters(), resumed.policy.model.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="samples_per_task must be at least 2"):
        TLMDREArguments(pairing="group")
