"""`agentgym-tlm envs`: what there is to play, and where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from agentgym_tlm.envs.args import EnvArgs


def test_every_split_is_listed_with_count_hash_and_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert main(["envs"]) == 0
    rows = {tuple(line.split()[:2]): line for line in capsys.readouterr().out.splitlines()}
    manifest = EnvArgs().manifest("valid_unseen")
    row = rows["ALFWorld-v0", "valid_unseen"]
    assert row.split()[2:4] == [str(len(manifest)), manifest.sha256[:12]]
    assert "embedded generator" in row


def test_split_without_tasks_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    main(["envs"])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if " valid_train " in line)
    assert "embedded generator has the splits" in row


def test_official_data_is_found_by_option_and_by_variable(
    tmp_path: Path, alfworld_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "valid_unseen.jsonl.xz").symlink_to(alfworld_data / "valid_unseen.jsonl.xz")
    main(["envs", "--env", "ALFWorld-v0", "--data-dir", str(tmp_path)])
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    main(["envs", "--env", "ALFWorld-v0"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " valid_unseen  134 " in line]
    assert len(rows) == 2
    assert rows[0] == rows[1]


def test_broken_split_is_the_error_when_no_other_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That the folder has no train split is true, and not what is wrong with it."""
    (tmp_path / "valid_seen.jsonl.xz").write_bytes(b"torn")
    assert main(["envs", "--env", "ALFWorld-v0", "--data-dir", str(tmp_path)]) == 2
    assert "valid_seen.jsonl.xz is corrupt" in capsys.readouterr().err


def test_broken_environment_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever wants to know what can be played must not have to mend what he does not play."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOTPOTQA_DATA", "/no/such/folder")
    assert main(["envs"]) == 0
    rows = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows[1:]} == {"ALFWorld-v0", "ScienceWorld-v0", "HotpotQA-v0"}
    (broken,) = (row for row in rows if row[0] == "HotpotQA-v0")
    assert broken[1:4] == ["-", "-", "-"]
    assert "$HOTPOTQA_DATA=/no/such/folder is no folder" in broken[4]
    assert main(["envs", "--env", "HotpotQA-v0"]) == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--env", "ScienceWorld-v0", "--data-dir", "embedded"), "ScienceWorld-v0 has no data folder: leave out"),
        (("--env", "ALFWorld-v0", "--data-dir", "/no/such/folder"), "/no/such/folder does not exist"),
        (("--data-dir", "/no/such/folder"), "name that with --env"),
        (("--env", "NoSuchWorld-v0"), "NoSuchWorld"),
    ],
)
def test_nothing_to_list_is_an_error(argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", *argv]) == 2
    assert message in capsys.readouterr().err
