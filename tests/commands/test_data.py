"""`agentgym-tlm data`: what a newcomer sees when data is missing, imported, broken, or cannot be downloaded."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from tests.envs.alfworld.test_sources import records, write_pack
from tests.envs.hotpotqa.library import TRAIN, record, write_lines


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no data elsewhere."""
    monkeypatch.setenv("AGENTGYM_TLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.delenv("HOTPOTQA_DATA", raising=False)
    return tmp_path / "cache"


def rows(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], str]:
    """The lines of `data list` by asset and part."""
    assert main(["data", "list"]) == 0
    return {tuple(line.split()[:2]): line for line in capsys.readouterr().out.splitlines() if "  " in line}  # type: ignore[misc]


def test_list_says_where_it_looked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absent, set by a variable, imported and broken are told apart."""
    listed = rows(capsys)
    assert [listed[name, "-"].split()[2] for name in ("alfworld", "hotpotqa", "smollm2")] == ["absent"] * 3
    assert f"neither $ALFWORLD_DATA nor {cache}/alfworld" in listed["alfworld", "-"]
    monkeypatch.setenv("ALFWORLD_DATA", "/some/where")
    assert "$ALFWORLD_DATA=/some/where, which comes before the cache" in rows(capsys)["alfworld", "-"]
    pack = write_pack(tmp_path, "train", records("train", 2))
    assert main(["data", "import", "alfworld", str(pack), "--link"]) == 0
    shown = capsys.readouterr().out
    assert "train: 2 games of 3,553 published" in shown
    assert "$ALFWORLD_DATA is set and comes first" in shown
    line = rows(capsys)["alfworld", "train"]
    assert line.split()[2] == "ok"
    assert line.endswith(f"{cache}/alfworld/train.jsonl.xz -> {pack}")
    write_pack(tmp_path, "train", records("train", 3))
    assert rows(capsys)["alfworld", "train"].split()[2] == "changed"
    pack.unlink()
    assert rows(capsys)["alfworld", "train"].split()[2] == "gone"


def test_verify_exits_with_1_when_something_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts stop before they train on half of the data."""
    assert main(["data", "verify"]) == 2
    assert "nothing to verify: no alfworld or hotpotqa has been imported" in capsys.readouterr().err
    pack = write_pack(tmp_path, "train", records("train", 2))
    main(["data", "import", "alfworld", str(pack), "--link"])
    assert main(["data", "verify", "alfworld"]) == 0
    assert "alfworld train: ok, 2 games" in capsys.readouterr().out
    pack.write_bytes(b"")
    assert main(["data", "verify"]) == 1
    shown = capsys.readouterr().out
    assert "checksum differs" in shown
    assert "agentgym-tlm data import NAME PATH" in shown


def test_missing_encyclopedia_is_told_with_the_command_that_builds_it(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Official questions alone cannot be played, and `ok` everywhere would say that they can."""
    write_lines(tmp_path / "train.jsonl", [record(question) for question in TRAIN])
    assert main(["data", "import", "hotpotqa", str(tmp_path)]) == 0
    command = f"data build-wiki {cache}/hotpotqa/train.jsonl --output {cache}/hotpotqa/wiki.sqlite"
    assert f"agentgym-tlm {command}" in capsys.readouterr().out
    assert rows(capsys)["hotpotqa", "wiki"].split()[2] == "missing"
    assert main(["data", "verify", "hotpotqa"]) == 1
    assert f"hotpotqa wiki: missing, so that nothing can be played; build it: agentgym-tlm {command}" in (
        capsys.readouterr().out
    )
    assert main(command.split()) == 0
    capsys.readouterr()
    assert ("hotpotqa", "wiki") not in rows(capsys)
    assert main(["data", "verify", "hotpotqa"]) == 0


def test_import_of_something_else_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a wrong folder."""
    assert main(["data", "import", "alfworld", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path} holds no ALFWorld games: expected")


def test_download_without_network_says_what_else_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Compute nodes have no network: the reason is one line, and so is the way around it."""
    if shutil.which("alfworld-download", path=sysconfig.get_path("scripts")) is None:
        pytest.skip("alfworld is not installed: pip install 'agentgym-tlm[alfworld]'")
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert main(["data", "download", "alfworld"]) == 2
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    assert "alfworld-download failed" in shown
    assert "agentgym-tlm data import alfworld FOLDER" in shown
    assert not (cache / "alfworld").exists()


def test_download_without_alfworld_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package is optional."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["data", "download", "alfworld"]) == 2
    assert "pip install 'agentgym-tlm[alfworld]'" in capsys.readouterr().err
