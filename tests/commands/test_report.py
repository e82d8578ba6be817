"""``agentgym-tlm report``: run folders in, one file out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from tests.report.folders import pair, run_folder


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


@pytest.mark.parametrize("format", ["svg", "pdf", "png"])
def test_figures_are_files_for_a_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    """In colours of their own, on white, with the numbers; the same runs draw the same file."""
    folder = run_folder(tmp_path / "run", pairs=[pair()], metrics=[{"step": 10, "iteration": 0, "loss": 0.5}])
    figures = tmp_path / "new" / "figures"
    command = ["report", str(folder), "--output", str(tmp_path / "report.html"), "--figures", str(figures)]
    assert main([*command, "--figure-format", format]) == 0
    names = ["confidence-per-turn", "confidence", "training-loss"]
    assert f"{figures}: {' '.join(names)}" in capsys.readouterr().out
    assert sorted(file.name for file in figures.iterdir()) == sorted(
        file for name in names for file in (f"{name}.{format}", f"{name}.csv")
    )
    assert (figures / "training-loss.csv").read_text() == "run,method,update,loss\nrun,tlm-dre,10,0.5\n"
    drawn = (figures / f"confidence.{format}").read_bytes()
    assert drawn.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[format])
    assert b"var(" not in drawn
    if format == "svg":
        assert b"#1f5fa8" in drawn  # the first light series of viewer.css
    assert main([*command, "--figure-format", format]) == 0
    assert (figures / f"confidence.{format}").read_bytes() == drawn


def test_figures_without_matplotlib_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = run_folder(tmp_path / "run"), tmp_path / "report.html"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(folder), "--output", str(output), "--figures", str(tmp_path / "figures")]) == 2
    assert "agentgym-tlm[report]" in capsys.readouterr().err
    assert not output.exists()
