"""ATIF and Parquet: what other tools read is what happened, and read back it is the same episode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_tlm.archives import read_parquet, to_atif, write_parquet
from agentgym_tlm.cli import main
from agentgym_tlm.errors import SchemaError
from agentgym_tlm.prompt import TagsFormat
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories, write_trajectories
from tests.toy_env import expert_trajectories, tiny_policy


def windowed() -> list[Trajectory]:
    """Sampled episodes with a sequence, and the admissible commands, per turn."""
    policy = tiny_policy()
    policy.use_renderer(type(policy.renderer)(policy.tokenizer, TagsFormat()))
    return rollout(policy, "Toy-v0", max_turns=3)[:2]


def episodes() -> list[Trajectory]:
    """Of every kind: with and without tokens, windowed, with mistakes, broken down, without a turn."""
    encoded = tiny_policy().renderer.encode_trajectory(expert_trajectories()[1])
    for turn in encoded.turns:
        assert turn.span is not None
        turn.ref_logprobs, turn.confidence = [-0.5] * (turn.span[1] - turn.span[0]), 0.25
    failed = replace(expert_trajectories()[0], stop_reason=StopReason.ENV_ERROR, error="it broke", metadata={"a": [1]})
    empty = replace(failed, turns=[], sample=7, env={"engine": None, "step": 2})
    return [*expert_trajectories()[:2], encoded, *windowed(), failed, empty]


def test_parquet_gives_back_what_went_in(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    expected = episodes()
    assert write_parquet(tmp_path / "log.parquet", expected) == len(expected)
    assert list(read_parquet(tmp_path / "log.parquet")) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_another_table_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(SchemaError, match="no table of episodes"):
        list(read_parquet(tmp_path / "other.parquet"))


def test_half_a_surrogate_pair_stops_nothing(tmp_path: Path) -> None:
    """Models that write bytes produce them, in one of thousands of episodes."""
    pytest.importorskip("pyarrow")
    episode = expert_trajectories()[0]
    broken = replace(episode, turns=[replace(episode.turns[0], response="caf\u00e9 \ud83d"), *episode.turns[1:]])
    write_parquet(tmp_path / "log.parquet", [broken])
    (found,) = read_parquet(tmp_path / "log.parquet")
    assert found.turns[0].response == "caf\u00e9 ?"


def test_atif_steps_are_the_turns() -> None:
    """Read with the format's own package: observations behind actions, and every token where it was."""
    atif = pytest.importorskip("atif", reason="needs Python 3.11")
    for episode in episodes():
        document = atif.Trajectory.model_validate_json(json.dumps(to_atif(episode)))
        user, *steps = document.steps
        observations = [*(turn.observation for turn in episode.turns), episode.final_observation]
        assert (user.source, user.message) == ("user", observations[0])
        assert [step.observation.results[0].content for step in steps] == observations[1:]
        assert [step.message for step in steps] == [turn.response for turn in episode.turns]
        for step, turn in zip(steps, episode.turns, strict=True):
            actions = [call.arguments["action"] for call in step.tool_calls or ()]
            assert actions == ([] if turn.action is None else [turn.action])
            assert bool(step.is_copied_context) == (not turn.trainable)
            assert (step.extra["reward"], step.extra["action_valid"]) == (turn.reward, turn.action_valid)
            assert step.extra.get("admissible_commands") == turn.admissible_commands
            if turn.span is None:
                assert step.metrics is None
                continue
            ids = episode.sequences[turn.sequence][: turn.span[1]]
            assert step.metrics.prompt_token_ids + step.metrics.completion_token_ids == ids
            assert step.metrics.completion_token_ids == episode.response_ids(turn)
            assert step.metrics.logprobs == turn.logprobs
            assert (step.metrics.extra or {}).get("ref_logprobs") == turn.ref_logprobs
        assert document.extra["stop_reason"] == episode.stop_reason.value
        assert (document.extra["won"], document.extra["metadata"]) == (episode.won, episode.metadata)
    assert len({to_atif(episode)["trajectory_id"] for episode in expert_trajectories()}) == len(expert_trajectories())


@pytest.mark.parametrize("layout", ["atif", "parquet"])
def test_export_keeps_every_episode(tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that ended in a failure of the machinery, which say so; `export` and `data export` are one command."""
    pytest.importorskip("atif" if layout == "atif" else "pyarrow")
    write_trajectories(tmp_path / "log.jsonl", episodes())
    options = [str(tmp_path / "log.jsonl"), "--to", layout, "--output"]
    assert main(["export", *options, str(tmp_path / "a")]) == 0
    assert f"{len(episodes())} rows\n" in capsys.readouterr().out
    assert main(["data", "export", *options, str(tmp_path / "b"), "--won"]) == 0
    assert "left out: not won" in capsys.readouterr().out
    assert main(["export", *options, str(tmp_path / "c"), "--policy", "some/model"]) == 2
    if layout == "parquet":
        assert list(read_parquet(tmp_path / "a")) == list(read_trajectories(tmp_path / "log.jsonl"))
    else:
        documents = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
        assert [d["schema_version"] for d in documents] == ["ATIF-v1.8"] * len(episodes())
