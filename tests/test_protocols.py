"""Evaluation by a named protocol: all that the name promises holds, and what contradicts it is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from agentgym_tlm import config
from agentgym_tlm.cli import main
from agentgym_tlm.commands.evaluate import Evaluate
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.evaluate import read_results
from agentgym_tlm.prompt import ReactFormat, TagsFormat
from agentgym_tlm.protocols import PROTOCOLS
from agentgym_tlm.trajectory import read_trajectories
from tests.test_window import babbler


def resolved(*words: str) -> Evaluate:
    return config.parse(Evaluate, ["--policy", "expert", *words], prog="eval").resolved()


@pytest.mark.parametrize(
    ("name", "steps", "temperature", "splits"),
    [("gigpo", 50, 0.4, ("valid_seen",)), ("eto", 40, 0.0, ("valid_seen", "valid_unseen"))],
)
def test_a_protocol_sets_what_it_is_known_for(
    name: str, steps: int, temperature: float, splits: tuple[str, ...]
) -> None:
    options = resolved("--protocol", name)
    assert (options.envs.max_episode_steps, options.temperature, options.splits) == (steps, temperature, splits)
    file_like = ["--protocol", name, "--temperature", str(temperature), "--max-episode-steps", str(steps)]
    assert resolved(*file_like, "--splits", *splits) == options, "as config.yaml gives it back"


def test_without_a_protocol_nothing_has_changed() -> None:
    options = resolved()
    assert (options.temperature, options.splits) == (0.0, ("valid_seen", "valid_unseen"))
    assert options.envs.max_episode_steps is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--protocol", "gigpo", "--temperature", "0"), "gigpo has temperature 0.4, not 0.0"),
        (("--protocol", "gigpo", "--splits", "valid_unseen"), "gigpo has splits valid_seen, not valid_unseen"),
        (("--protocol", "eto", "--max-episode-steps", "50"), "eto has max_episode_steps 40, not 50"),
        (("--protocol", "eto", "--prompt-format", "tags"), "eto has prompt_format react, not tags"),
        (("--protocol", "eto", "--env", "HotpotQA-v0"), "one of ALFWorld-v0"),
        (("--protocol", "gigpo-128", "--limit", "3"), "leave --limit out"),
    ],
)
def test_contradictions_are_refused(words: tuple[str, ...], message: str) -> None:
    """A table that names a protocol is compared with the papers' numbers."""
    with pytest.raises(ConfigError, match=message):
        resolved(*words)


def test_prompts_of_another_kind_are_refused() -> None:
    gigpo, eto = PROTOCOLS["gigpo"], PROTOCOLS["eto"]
    gigpo.check_format(TagsFormat(instructions=""))
    eto.check_format(ReactFormat(instructions="", prefix="Do well."))
    with pytest.raises(ConfigError, match=r"name 'react' instead of 'tags'.*--prompt-format tags"):
        gigpo.check_format(ReactFormat())
    with pytest.raises(ConfigError, match="history_length 3 instead of 2"):
        gigpo.check_format(TagsFormat(history_length=3))


def test_128_draws_are_the_same_on_every_machine() -> None:
    tasks = [f"task{i}" for i in range(140)]
    groups = PROTOCOLS["gigpo-128"].draws(tasks)
    played = Counter({task: times for group, times in groups for task in group})
    assert played.total() == 128
    assert max(played.values()) > 1
    assert groups == PROTOCOLS["gigpo-128"].draws(tasks)
    assert PROTOCOLS["gigpo"].draws(tasks) == [(tasks, 1)]


def test_results_name_the_protocol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["eval", "--policy", "expert", "--data-dir", "embedded", "--output-dir"]
    assert main([*common, str(tmp_path / "a"), "--protocol", "gigpo-128"]) == 0
    shown = capsys.readouterr().out
    assert "gigpo-128" in shown
    [result] = read_results(tmp_path / "a" / "results.json")
    assert (result.protocol, result.split, result.success.n, result.malformed_rate) == (
        "gigpo-128",
        "valid_seen",
        128,
        0,
    )
    episodes = list(read_trajectories(tmp_path / "a" / "valid_seen.jsonl"))
    assert {episode.env["max_episode_steps"] for episode in episodes} == {50}
    assert {episode.prompt_format for episode in episodes} == {"tags"}
    assert len({(episode.task_id, episode.sample) for episode in episodes}) == 128
    assert main(["eval", "--config", str(tmp_path / "a" / "config.yaml")]) == 0, "goes on with all 128"
    assert len(list(read_trajectories(tmp_path / "a" / "valid_seen.jsonl"))) == 128
    assert main([*common, str(tmp_path / "b"), "--limit", "2"]) == 0
    assert "protocol" not in capsys.readouterr().out.splitlines()[-4]
    assert main([*common, str(tmp_path / "a"), "--limit", "2"]) == 2, "another prompt format"


def test_a_saved_policy_keeps_its_own_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its instructions and window are what it was trained with; the protocol only checks them."""
    policy = babbler(max_new_tokens=4)
    policy.save(tmp_path / "policy")
    common = ["eval", "--policy", str(tmp_path / "policy"), "--data-dir", "embedded", "--limit", "1"]
    assert main([*common, "--protocol", "gigpo", "--output-dir", str(tmp_path / "a")]) == 0
    [episode] = read_trajectories(tmp_path / "a" / "valid_seen.jsonl")
    assert episode.prompt_format == "tags"
    assert main([*common, "--protocol", "eto", "--output-dir", str(tmp_path / "b")]) == 2
    assert "prompt format is not the protocol's" in capsys.readouterr().err


def test_tiny_learns_to_speak_in_tags(tmp_path: Path) -> None:
    """The main job on ALFWorld, from scratch: the loss falls, and nearly all of what it says can be read."""
    run = tmp_path / "run"
    words = (
        "--trainer sft --prompt-format tags --tags.no-thoughts --data-dir embedded --expert.num-tasks 60 "
        "--tiny.layers 2 --tiny.hidden-size 64 --sft.max-steps 50 --sft.per-device-train-batch-size 8 --sft.mixed-precision no "
        "--sft.learning-rate 5e-3 --max-episode-steps 6 --evaluation.num-tasks 4 --evaluation.splits valid_seen"
    )
    assert main(["train", *words.split(), "--output-dir", str(run)]) == 0
    losses = [json.loads(line)["loss"] for line in (run / "sft" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] / 3
    [result] = read_results(run / "results.json")
    assert result.malformed_rate < 0.3
    [episode, *_] = read_trajectories(run / "trajectories" / "sft-valid_seen.jsonl")
    assert (episode.prompt_format, len(episode.sequences)) == ("tags", len(episode.turns))
    again = [*words.split()[:2], "--sft-policy", str(run / "sft" / "policy"), "--output-dir", str(tmp_path / "again")]
    assert main(["train", *again, "--prompt-format", "react"]) == 2, "it was trained in another format"
