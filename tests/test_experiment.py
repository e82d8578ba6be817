"""The main job, small but whole: real games, a real model, real files; killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentgym_tlm.config import load
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError
from agentgym_tlm.evaluate import EvalResult, read_results
from agentgym_tlm.experiment import Experiment
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.progress import rollout_progress, training_progress
from agentgym_tlm.recipes import EvaluationArguments, ExperimentConfig, ExpertArguments, TinyArguments
from agentgym_tlm.trajectory import read_trajectories


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded default."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def small(output_dir: Path) -> ExperimentConfig:
    """The defaults for ``tiny``, shrunk to seconds."""
    config = ExperimentConfig.defaults_for("tiny", "ALFWorld-v0")
    return replace(
        config,
        output_dir=output_dir,
        envs=EnvArgs(max_episode_steps=6),
        expert=ExpertArguments(num_tasks=48),
        tiny=TinyArguments(hidden_size=32, layers=1, heads=2, intermediate_size=64),
        sft=replace(config.sft, save_steps=2, eval_steps=2),
        tlm_dre=replace(config.tlm_dre, num_tasks=12, per_device_train_batch_size=2, save_steps=2),
        evaluation=EvaluationArguments(num_tasks=8),
    )


def run(config: ExperimentConfig) -> list[EvalResult]:
    return Experiment(config, rollouts=rollout_progress, training=training_progress).run()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("run") / "whole"
    run(small(folder))
    return folder


def test_before_and_after_on_both_splits(finished: Path) -> None:
    """The table that the job ends with: the SFT policy and the trained one, on the same tasks."""
    results = read_results(finished / "results.json")
    assert [(r.label, r.split, r.success.n) for r in results] == [
        (label, split, 8) for label in ("sft", "tlm-dre") for split in ("valid_seen", "valid_unseen")
    ]
    for split in ("valid_seen", "valid_unseen"):
        before, after = (
            [t.task_id for t in read_trajectories(finished / "trajectories" / f"{label}-{split}.jsonl")]
            for label in ("sft", "tlm-dre")
        )
        assert sorted(before) == sorted(after)


def test_run_folder_says_what_was_run(finished: Path) -> None:
    """Config, versions, manifests, turn logs, metrics, checkpoints, policies: all that a number needs beside it."""
    assert load(ExperimentConfig(), finished / "config.yaml") == replace(small(finished), output_dir=finished)
    versions = json.loads((finished / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    assert versions["environment"]["engine"] == "native"
    manifest = json.loads((finished / "manifests" / "valid_unseen.json").read_text())
    assert len(manifest["task_ids"]) == 134
    for stage in ("sft", "tlm-dre"):
        assert (finished / stage / "metrics.jsonl").stat().st_size > 0
        assert list((finished / stage).glob("checkpoint-*/trainer_state.json"))
    assert '"eval_valid_seen/success"' in (finished / "sft" / "metrics.jsonl").read_text()
    first = next(read_trajectories(finished / "trajectories" / "sft-valid_seen.jsonl"))
    assert first.turns[0].logprobs


def test_injected_mistakes_are_in_the_log_but_not_in_the_loss(finished: Path) -> None:
    """A policy must see recoveries, and must never be taught the mistakes."""
    turns = [turn for t in read_trajectories(finished / "trajectories" / "expert.jsonl") for turn in t.turns]
    share = sum(not turn.trainable for turn in turns) / len(turns)
    assert 0.05 < share < 0.2


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    """Resuming it gives the same results without playing or training; starting over in its folder is refused."""
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    assert run(replace(small(finished), resume=True)) == read_results(finished / "results.json")
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")} == before
    with pytest.raises(CheckpointError, match="--resume"):
        run(small(finished))
    with pytest.raises(CheckpointError, match="other options"):
        run(replace(small(finished), resume=True, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage",
    ["trajectories/expert.jsonl", "sft/checkpoint-2", "trajectories/sft-valid_unseen.jsonl", "tlm-dre/checkpoint-2"],
)
def test_a_killed_run_goes_on_to_the_same_numbers(stage: str, finished: Path, tmp_path: Path) -> None:
    """SIGKILL while a stage is under way, then --resume: every episode and every weight is as if nothing happened."""
    folder = tmp_path / "killed"
    config = tmp_path / "config.yaml"
    text = (finished / "config.yaml").read_text().replace(str(finished), str(folder))
    config.write_text(text)
    command = [sys.executable, "-m", "agentgym_tlm", "train", "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (folder / stage).exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "results.json").exists()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    assert read_results(folder / "results.json") == read_results(finished / "results.json")
    for name in ("sft", "tlm-dre"):
        whole, resumed = (LanguageModelPolicy.load(run / name / "policy").model for run in (finished, folder))
        for expected, found in zip(whole.parameters(), resumed.parameters(), strict=True):
            assert torch.equal(expected, found)
