"""`agentgym-tlm data import-trajectories` and `data export`: one line each, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from agentgym_tlm.pairs import Pair, write_pairs
from agentgym_tlm.trajectory import StopReason, read_trajectories, write_trajectories
from tests.test_formats import TURNS, eto, write
from tests.toy_env import expert_trajectories, tiny_policy


def test_import_reports_every_broken_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user must see which of thousands of records did not make it, and scripts must notice."""
    file = write(tmp_path / "eto.jsonl", [eto(*TURNS, id="lamp-hall-study"), {}, eto(*TURNS, id=7)], lines=True)
    command = ["data", "import-trajectories", str(file), "--env", "Toy-v0", "--output", str(tmp_path / "expert.jsonl")]
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "2 episodes, 2 of them won, 4 turns" in shown.out
    assert "1 name a training task of Toy-v0" in shown.out
    assert f"{file}: line 2 (record 2): no list of" in shown.err
    assert "1 of 3 records were left out" in shown.err
    assert [t.task_id for t in read_trajectories(tmp_path / "expert.jsonl")] == ["lamp-hall-study", ""]
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err


def test_export_says_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dataset with failures of the machinery in it would teach them."""
    first, second, third = (tiny_policy().renderer.encode_trajectory(t) for t in expert_trajectories()[:3])
    second.stop_reason = StopReason.ENV_ERROR
    third.won = False
    write_trajectories(tmp_path / "log.jsonl", [first, second, third])
    for layout in ("messages", "trl-sft"):
        output = tmp_path / f"{layout}.jsonl"
        command = ["data", "export", str(tmp_path / "log.jsonl"), "--to", layout, "--output", str(output)]
        assert main([*command, "--won"]) == 0
        assert "1 rows, 1 left out: env_error, 1 left out: not won" in capsys.readouterr().out
        (row,) = map(json.loads, output.read_text().splitlines())
    assert row["input_ids"] == first.sequences[0][: len(row["input_ids"])]


def test_export_of_text_as_tokens_needs_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trajectories(tmp_path / "log.jsonl", expert_trajectories()[:1])
    command = ["data", "export", str(tmp_path / "log.jsonl"), "--to", "trl-sft", "--output", str(tmp_path / "o.jsonl")]
    assert main(command) == 2
    assert "--policy" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]
    policy = tiny_policy()
    policy.save(tmp_path / "policy")
    assert main([*command, "--policy", str(tmp_path / "policy")]) == 0
    expected = policy.renderer.encode_trajectory(expert_trajectories()[0]).sequences[0]
    ids = json.loads((tmp_path / "o.jsonl").read_text())["input_ids"]
    assert ids == expected[: len(ids)]


def test_export_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(tmp_path / "pairs", [Pair(*expert_trajectories()[:2])])
    output = tmp_path / "pairs.jsonl"
    command = ["data", "export", str(tmp_path / "pairs"), "--to", "trl-dpo", "--output", str(output)]
    assert main(command) == 0
    assert {"prompt", "chosen", "rejected"} <= json.loads(output.read_text()).keys()
    output.unlink()
    command[2] = str(tmp_path)
    assert main(command) == 2
    assert "no folder of pairs" in capsys.readouterr().err
    command = ["export", str(tmp_path / "pairs"), "--output", str(output)]
    assert main(command) == 2
    assert "is a folder: name one of the turn logs in it" in capsys.readouterr().err
