"""The main job, small but whole: real games, a real model, real files; killed and resumed."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentgym_tlm.cli import main
from agentgym_tlm.config import load
from agentgym_tlm.decorations import HINDSIGHT_MARKERS, TWO_CLASSES
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError, DataError
from agentgym_tlm.evaluate import EvalResult, read_results
from agentgym_tlm.experiment import Experiment
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.progress import rollout_progress, training_progress
from agentgym_tlm.recipes import EvaluationArguments, ExperimentConfig, ExpertArguments, TinyArguments
from agentgym_tlm.trajectory import read_trajectories, write_trajectories


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded default."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def small(output_dir: Path) -> ExperimentConfig:
    """The defaults for ``tiny``, shrunk to seconds."""
    config = ExperimentConfig.defaults_for("tiny", "ALFWorld-v0", "tlm-dre")
    return replace(
        config.with_method(num_tasks=12, per_device_train_batch_size=2, save_steps=2),
        output_dir=output_dir,
        envs=EnvArgs(max_episode_steps=6),
        expert=ExpertArguments(num_tasks=48),
        tiny=TinyArguments(hidden_size=32, layers=1, heads=2, intermediate_size=64),
        sft=replace(config.sft, save_steps=2, eval_steps=2),
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
    assert load(ExperimentConfig.with_trainer("tlm-dre")(), finished / "config.yaml") == replace(
        small(finished), output_dir=finished
    )
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
    with pytest.raises(CheckpointError, match="other options"):  # --resume would not help
        run(replace(small(finished), seed=1))


def test_harmless_options_may_change(finished: Path) -> None:
    """Another log interval or thread count is the same run."""
    config = replace(small(finished), resume=True, num_threads=2)
    config = replace(config.with_method(save_steps=1), sft=replace(config.sft, logging_steps=7))
    assert run(config) == read_results(finished / "results.json")
    with pytest.raises(CheckpointError, match=r"sft\.learning_rate: 0\.002 -> 0\.1\)"):
        run(replace(config, sft=replace(config.sft, learning_rate=0.1)))


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    """A mistyped folder must not begin a run of hours from scratch."""
    with pytest.raises(CheckpointError, match="no run to go on with"):
        run(replace(small(tmp_path / "mistyped"), resume=True))
    assert not (tmp_path / "mistyped").exists()


def test_policies_that_cannot_be_loaded_leave_no_folder(tmp_path: Path) -> None:
    """Found after the imitation, a typing mistake costs that, and the folder refuses the corrected command."""
    for change in ({"sft_policy": tmp_path / "nowhere"}, {"policy": str(tmp_path / "nowhere")}):
        with pytest.raises(ConfigError, match="nowhere"):
            run(replace(small(tmp_path / "run"), **change))
    assert not (tmp_path / "run").exists()


def test_copied_run_folder_stands_for_itself(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was written and whence it is called: --config FOLDER/config.yaml means that folder."""
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "results.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["train", "--config", "../copy/config.yaml", "--resume"]) == 0
    assert read_results(copy / "results.json") == read_results(finished / "results.json")
    assert list(Path.cwd().iterdir()) == []


def test_interrupted_run_goes_on_with_the_command_it_prints(tmp_path: Path) -> None:
    """Ctrl-C, then the very line on the screen."""
    folder = tmp_path / "run"
    options = (
        "--expert.num-tasks 24 --tiny.hidden-size 32 --tiny.layers 1 --tiny.intermediate-size 64 --sft.save-steps 2 "
        "--tlm-dre.num-tasks 8 --evaluation.num-tasks 2 --max-episode-steps 6 --data-dir embedded"
    )
    command = [sys.executable, "-m", "agentgym_tlm", "train", *options.split(), "--output-dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (folder / "sft" / "checkpoint-2").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130, error
    assert not (folder / "results.json").exists()
    program, *again = shlex.split(error.rpartition("Go on with: ")[2])
    assert program == "agentgym-tlm"
    assert main(again) == 0
    assert [result.label for result in read_results(folder / "results.json")] == ["sft", "sft", "tlm-dre", "tlm-dre"]


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


def test_imitates_a_file_instead_of_the_expert(finished: Path, tmp_path: Path) -> None:
    """The file is kept with the run, pairs are made by its task ids, and a resumed run does not need it any more."""
    file = tmp_path / "expert.jsonl"
    shutil.copy(finished / "trajectories" / "expert.jsonl", file)
    config = small(tmp_path / "run")
    config = replace(config, expert=ExpertArguments(file=file))
    with pytest.warns(UserWarning, match="not won are left out"):
        results = run(config)
    assert [result.label for result in results] == ["sft", "sft", "tlm-dre", "tlm-dre"]
    given = {t.task_id for t in read_trajectories(file) if t.won}
    kept = list(read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl"))
    assert {t.task_id for t in kept} == given
    pairs = list(read_trajectories(tmp_path / "run" / "tlm-dre" / "iteration-0" / "pairs" / "chosen.jsonl"))
    assert {t.task_id for t in pairs} <= given
    file.unlink()
    assert run(replace(config, resume=True)) == results


def test_file_without_task_ids_is_no_use_to_a_method_of_pairs(finished: Path, tmp_path: Path) -> None:
    """Found out before the hours of imitation, not after."""
    file = tmp_path / "expert.jsonl"
    episodes = list(read_trajectories(finished / "trajectories" / "expert.jsonl"))
    write_trajectories(file, [replace(t, task_id="") for t in episodes])
    config = replace(small(tmp_path / "run"), expert=ExpertArguments(file=file))
    with pytest.raises(ConfigError, match=r"give no task ids.*--trainer sft"):
        run(config)
    with pytest.raises(DataError, match="there is no file"):
        run(replace(config, expert=ExpertArguments(file=tmp_path / "nowhere")))
    assert not (tmp_path / "run").exists()


def test_file_does_not_bring_in_tasks_that_are_held_out(finished: Path, tmp_path: Path) -> None:
    """Who trains on some task types must not imitate others because an expert's file has them."""
    file = finished / "trajectories" / "expert.jsonl"
    types = sorted({t.task_type for t in read_trajectories(file) if t.won})
    envs = EnvArgs(max_episode_steps=6, env_kwargs={"task_types": types[:1]})
    config = replace(small(tmp_path / "run"), trainer="sft", envs=envs, expert=ExpertArguments(file=file))
    with pytest.warns(UserWarning, match="episodes of other tasks than task_types allow"):
        run(config)
    kept = read_trajectories(tmp_path / "run" / "trajectories" / "expert.jsonl")
    assert {t.task_type for t in kept} == set(types[:1]) < set(types)


@pytest.mark.parametrize("trainer", ["nat", "coh"])
def test_evaluation_asks_a_conditional_policy_for_success(finished: Path, tmp_path: Path, trainer: str) -> None:
    """Before the training it is not asked, for it would not know what that means; after it, always."""
    config = ExperimentConfig.defaults_for("tiny", "ALFWorld-v0", trainer)
    config = replace(
        config.with_method(num_tasks=6, max_steps=2),
        sft_policy=finished / "sft" / "policy",
        output_dir=tmp_path / "run",
        envs=EnvArgs(max_episode_steps=6),
        evaluation=EvaluationArguments(num_tasks=2),
    )
    run(config)
    wanted = {"nat": TWO_CLASSES[1], "coh": HINDSIGHT_MARKERS[1]}[trainer]
    policy = LanguageModelPolicy.load(tmp_path / "run" / trainer / "policy")  # knows all words of the SFT policy
    for label, expected in (("sft", False), (trainer, True)):
        for played in read_trajectories(tmp_path / "run" / "trajectories" / f"{label}-valid_seen.jsonl"):
            assert played.turns[0].span is not None
            text = str(policy.tokenizer.decode(played.sequences[0][: played.turns[0].span[0]]))
            assert (wanted in text) == expected
