"""``agentgym-tlm report``: run folders in, one file out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from tests.report.folders import run_folder


def test_writes_the_file_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = run_folder(tmp_path / "run"), tmp_path / "new" / "report.html"
    assert main(["report", str(folder), "--output", str(output), "--limit", "2", "--title", "Two & two"]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: 0.")
    assert "<h1>Two &amp; two</h1>" in output.read_text()


def test_mistakes_are_named_and_leave_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "report.html")]) == 2
    assert f"{tmp_path} is no run folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["report"]) == 2
    assert "name at least one run folder" in capsys.readouterr().err
