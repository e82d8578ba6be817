"""`agentgym-tlm rollout` and `eval` with a model behind a server, from a killed run to a trained policy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.evaluate import read_results
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories
from tests.policies.model_server import Asked, ModelServer, Reply, ServedModel, chat, chat_expert, in_turn, serving
from tests.toy_env import tiny_policy

LOOK = chat("Thought: I look.\nAction: look")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server that the command finds by its variables."""
    with serving(in_turn(LOOK)) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        yield running


def log(folder: Path, split: str) -> list[Trajectory]:
    return list(read_trajectories(folder / f"{split}.jsonl"))


def test_a_chat_model_becomes_the_expert_that_train_imitates(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Collect, keep what was won, imitate: without a token of the teacher, and without its failures."""
    folder = tmp_path / "collected"

    def teacher(asked: Asked) -> Reply:
        return LOOK if "lamp to the cellar" in asked.body["messages"][0]["content"] else chat_expert(asked)

    server.answer = teacher
    collect = ["rollout", "--policy", "openai:teacher", "--env", "Toy-v0", "--output-dir", str(folder)]
    assert main([*collect, "--samples-per-task", "2", "--max-episode-steps", "8"]) == 0
    episodes = log(folder, "train")
    assert {t.won for t in episodes if t.task_type == "to-cellar"} == {False}
    assert {t.won for t in episodes if t.task_type != "to-cellar"} == {True}
    capsys.readouterr()
    sizes = "--tiny.hidden-size 16 --tiny.layers 1 --tiny.intermediate-size 32 --sft.num-train-epochs 1"
    limits = "--max-episode-steps 8 --evaluation.num-tasks 2 --evaluation.splits valid_seen"
    run = ["train", "--trainer", "sft", "--env", "Toy-v0", "--output-dir", str(tmp_path / "run")]
    assert main([*run, "--expert.file", str(folder / "train.jsonl"), *sizes.split(), *limits.split()]) == 0
    assert "4 episodes that were not won are left out" in capsys.readouterr().err
    assert read_results(tmp_path / "run" / "results.json")[0].success.n == 2


def test_eval_counts_failures_of_the_server_apart_and_keeps_the_key_to_itself(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([LOOK, LOOK, *[Reply(status=500)] * 100])
    server.answer = lambda asked: next(answers)
    evaluate = ["eval", "--policy", "openai:m", "--splits", "valid_seen", "--limit", "2", "--max-episode-steps", "2"]
    options = ["--policy-kwargs", "backoff=0.01", "max_retries=1", "max_failures=3"]
    assert main([*evaluate, *options, "--output-dir", str(tmp_path)]) == 0
    [result] = read_results(tmp_path / "results.json")
    assert (result.success.n, result.policy_errors) == (0, 2)
    shown = capsys.readouterr()
    assert "policy" in shown.out
    assert "errors" in shown.out
    said = " ".join(shown.err.split())
    assert "warning: 2 of 2 episodes of valid_seen broke down" in said
    assert "/chat/completions answers 500" in said, "the reason is not to be looked for in a log"
    for file in tmp_path.iterdir():
        assert "sk-secret" not in file.read_text()
    server.answer = in_turn(LOOK)
    assert main([*evaluate, "--policy-kwargs", "timeout=9", "--output-dir", str(tmp_path)]) == 0
    [result] = read_results(tmp_path / "results.json")
    assert (result.success.n, result.policy_errors) == (2, 0)
    assert main([*evaluate, "--policy-kwargs", "max_new_tokens=9", "--output-dir", str(tmp_path)]) == 2
    assert "another policy_kwargs" in capsys.readouterr().err


def test_few_shot_prompt_reaches_the_model(server: ModelServer, tmp_path: Path) -> None:
    common = ["eval", "--policy", "openai:m", "--splits", "valid_seen", "--limit", "1", "--max-episode-steps", "1"]
    for option, shown in {"--no-few-shot": False, "--few-shot": True}.items():
        assert main([*common, option, "--output-dir", str(tmp_path / option)]) == 0
        message = server.asked[-1].body["messages"][0]["content"]
        assert ("Action: clean apple 1 with sinkbasin 1" in message) == shown
        assert "Action: the command to carry out" in message
        assert f"few_shot: {str(shown).lower()}" in (tmp_path / option / "config.yaml").read_text()


def test_trained_policy_plays_with_tokens_where_vllm_serves_it(server: ModelServer, tmp_path: Path) -> None:
    """In the environment that it was trained on, whose options its folder remembers."""
    folder, output = tmp_path / "policy", tmp_path / "output"
    policy = tiny_policy(hidden_size=16, layers=1, max_new_tokens=6)
    policy.save(folder)
    EnvArgs(env="Toy-v0", env_kwargs={"admissible_commands": True}).remember(folder)
    server.answer = ServedModel(policy, name=str(folder), root=str(folder))
    rollout = ["rollout", "--policy", f"vllm:{folder}", "--env", "Toy-v0", "--max-episode-steps", "2"]
    assert main([*rollout, "--output-dir", str(output)]) == 0
    episodes = log(output, "train")
    assert all(trajectory.has_tokens and trajectory.policy == "tiny" for trajectory in episodes)
    assert all(turn.logprobs for trajectory in episodes for turn in trajectory.turns)
    assert "admissible_commands: true" in (output / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("eval --policy openai:m --policy-kwargs api_key=sk-1", "set OPENAI_API_KEY"),
        ("eval --policy openai:m --policy-kwargs colour=1", "no option colour"),
        ("eval --policy openai:m --policy-kwargs temperature=1", "--temperature"),
        ("eval --policy openai:m --few-shot --env Toy-v0", "no worked example"),
        ("eval --policy openai:", "openai:MODEL"),
        ("eval --policy expert --few-shot", "leave out --few-shot"),
        ("eval --policy vllm:m --policy-kwargs base_url=http://127.0.0.1:9/v1", "cannot be reached"),
        ("train --policy openai:m", "nothing to train"),
    ],
)
def test_mistake_ends_with_one_line_and_leaves_nothing_behind(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    assert main([*command.split(), "--output-dir", str(tmp_path / "new")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_rollout_is_gone_on_with(server: ModelServer, tmp_path: Path, stop: signal.Signals) -> None:
    """However it was stopped, and with requests on their way: nothing is lost but what was in the air."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ["rollout", "--policy", "openai:m", "--limit", "4", "--n-slots", "2", "--max-episode-steps", "2"]
    common.append("--output-dir")
    assert main([*common, str(whole)]) == 0
    server.asked.clear()
    server.answer = in_turn(*[LOOK] * 5, Reply(delay=60.0))
    with subprocess.Popen(
        [sys.executable, "-m", "agentgym_tlm", *common, str(parts)], stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        while len(server.asked) < 6:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(stop)
        _, error = process.communicate(timeout=20)
    assert process.returncode == (130 if stop is signal.SIGINT else -stop)
    assert ("Go on with: agentgym-tlm rollout --config" in error) == (stop is signal.SIGINT)
    server.answer = in_turn(LOOK)
    before = len(server.asked)
    assert main([*common, str(parts)]) == 0
    assert len(server.asked) - before == 4, "two episodes were complete, two are played anew"

    def finished(folder: Path) -> dict[str, Trajectory]:
        return {t.task_id: t for t in log(folder, "train") if t.stop_reason is not StopReason.ABORTED}

    assert finished(parts) == finished(whole)
