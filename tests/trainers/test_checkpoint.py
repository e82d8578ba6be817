"""A run that was killed ends with the very weights of one that was not; what does not belong to it is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import set_seed

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError
from agentgym_tlm.trainers.checkpoint import (
    TrainerState,
    cut_metrics,
    latest_checkpoint,
    preserved_rng,
    replaced_folder,
)
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from tests.trainers.toys import episode, tiny_policy
from tests.trainers.worker import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
WORKER = ["-m", "tests.trainers.worker"]


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def assert_same_end(whole: Path, resumed: Path) -> None:
    """Bit-equal weights and the same log lines, each once."""
    weights = [(folder / "policy" / "model.safetensors").read_bytes() for folder in (whole, resumed)]
    assert weights[0] == weights[1]
    assert metrics(whole) == metrics(resumed)
    assert [line["step"] for line in metrics(resumed) if "loss" in line] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_killed_process_resumes_exactly(tmp_path: Path) -> None:
    """tlm-DRE, SIGKILL at step 5 of 8, checkpoint at 3, dropout on."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, *WORKER, "tlm-dre", str(killed), "--dropout", "0.2", "--kill-at", "5"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert latest_checkpoint(killed) == killed / "checkpoint-3"
    main(["tlm-dre", str(killed), "--dropout", "0.2", "--resume"])
    main(["tlm-dre", str(whole), "--dropout", "0.2"])
    assert_same_end(whole, killed)


def test_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    """SFT, interrupted at step 5 of 8, checkpoint at 3, dropout on."""
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt):
        main(["sft", str(interrupted), "--dropout", "0.2", "--interrupt-at", "5"])
    main(["sft", str(interrupted), "--dropout", "0.2", "--resume"])
    main(["sft", str(whole), "--dropout", "0.2"])
    assert_same_end(whole, interrupted)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["kto", "tlm-dre"])
def test_two_processes_equal_one(tmp_path: Path, trainer: str) -> None:
    """Twice the processes and half the accumulation give the same losses and gradients, and resumable checkpoints."""
    one, two = tmp_path / "one", tmp_path / "two"
    main([trainer, str(one), "--accumulate", "2"])
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch = [sys.executable, *torchrun, *WORKER, trainer, str(two)]
    done = subprocess.run(launch, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pairs = [(a, b) for a, b in zip(metrics(two), metrics(one), strict=True) if "loss" in a]
    assert len(pairs) == 8
    for mine, theirs in pairs:
        names = theirs.keys() - {"tokens_per_second"}
        assert {"step", "loss", "grad_norm", "learning_rate", "tokens"} <= names
        for name in names:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    assert {path.name for path in (two / "checkpoint-8").glob("random_states_*")} == {
        "random_states_0.pkl",
        "random_states_1.pkl",
    }


def sft(folder: Path, **options: Any) -> SFTTrainer:
    defaults = {"learning_rate": 1e-2, "max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2}
    return SFTTrainer(tiny_policy(), EnvArgs(), SFTArguments(output_dir=str(folder), **{**defaults, **options}))


EPISODES = [episode([(5, 4)], seed=s) for s in range(4)]


def test_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    sft(tmp_path).train_trajectories(EPISODES)
    with pytest.raises(CheckpointError, match=r"learning_rate: 0\.01 -> 0\.02"):
        sft(tmp_path, learning_rate=2e-2).resume()
    bigger = sft(tmp_path)
    bigger.policy.model.resize_token_embeddings(200)
    with pytest.raises(CheckpointError, match="model"):
        bigger.resume()
    sft(tmp_path, save_steps=1, logging_steps=1).resume()  # options that do not change what is learnt


def test_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    sft(tmp_path).train_trajectories(EPISODES)
    other = sft(tmp_path)
    other.resume()
    with pytest.raises(CheckpointError, match="other data"):
        other.train_trajectories(EPISODES[:3])


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    trainer = sft(tmp_path)
    trainer.train_trajectories(EPISODES)
    lines = (tmp_path / "metrics.jsonl").read_text()
    again = sft(tmp_path)
    again.resume()
    again.train_trajectories(EPISODES)
    for mine, theirs in zip(again.policy.model.parameters(), trainer.policy.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert (tmp_path / "metrics.jsonl").read_text() == lines


@pytest.mark.parametrize(
    ("iteration", "step", "kept"),
    [
        (0, 0, [(0, 0)]),
        (0, 2, [(0, 0), (0, 1), (0, 2)]),
        (1, 2, [(0, 0), (0, 1), (0, 2), (1, 2)]),
        (1, 3, [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3)]),
        (3, 3, [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 3)]),
    ],
)
def test_metrics_behind_the_checkpoint_are_cut(
    iteration: int, step: int, kept: list[tuple[int, int]], tmp_path: Path
) -> None:
    """An iteration begins with lines of the last one's step; the third here learnt nothing, and the last is half."""
    path = tmp_path / "metrics.jsonl"
    lines = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 3), (3, 4)]
    path.write_text("".join(f'{{"step": {step}, "iteration": {iteration}}}\n' for iteration, step in lines) + '{"st')
    cut_metrics(path, TrainerState(iteration=iteration, step=step))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["iteration"], line["step"]) for line in found] == kept


def test_no_metrics_are_no_error(tmp_path: Path) -> None:
    cut_metrics(tmp_path / "metrics.jsonl", TrainerState())
    assert not list(tmp_path.iterdir())


def test_only_complete_checkpoints_are_found_and_old_ones_go(tmp_path: Path) -> None:
    sft(tmp_path, max_steps=8, save_total_limit=2).train_trajectories(EPISODES)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]
    (tmp_path / "checkpoint-10.partial").mkdir()  # killed while saving
    (tmp_path / "checkpoint-12").mkdir()  # copied halfway
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-8"
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        sft(tmp_path).resume(tmp_path / "checkpoint-12")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        sft(tmp_path / "elsewhere").resume()


def test_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "policy"
    for content in ("first", "second"):
        with replaced_folder(target) as partial:
            (partial / "file").write_text(content)
        assert (target / "file").read_text() == content

    def interrupted() -> None:
        with replaced_folder(target) as partial:
            (partial / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (target / "file").read_text() == "second"


def test_evaluation_does_not_disturb_the_random_states_of_training() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    set_seed(1)
    expected = draw()
    set_seed(1)
    with preserved_rng():
        draw()
    assert draw() == expected
