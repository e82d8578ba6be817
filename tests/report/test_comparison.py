"""What a report says of a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_tlm.report.comparison import comparison_section, draw_differences, read_standings
from agentgym_tlm.standings import Standings
from tests.test_standings import CELLS


def test_the_picture_has_the_numbers_of_the_table() -> None:
    """A line per trainer and suite, at its difference in points, with its interval."""
    standings = Standings.of(CELLS)
    figure = draw_differences(standings)
    assert figure is not None
    dil, dpo = standings.pairs[:2]
    rows = {row[1]: row[2:] for row in figure.table[1:]}
    assert rows["dpo"] == tuple(f"{100 * number:+.1f}" for number in dpo.difference)
    zero, *drawn = figure.canvas.axes[0].lines
    assert zero.get_xdata() == [0, 0]
    assert drawn[0].get_xdata().tolist() == pytest.approx([100 * dil.difference.low, 100 * dil.difference.high])
    assert [label.get_text() for label in figure.canvas.axes[0].get_yticklabels()] == ["dil", "dpo"]
    assert draw_differences(Standings.of([cell for cell in CELLS if cell.trainer == "sft"])) is None


def test_a_comparison_is_shown_as_it_was_last_compared(tmp_path: Path) -> None:
    """With the baseline and the order that were asked for, and with what has been finished since."""
    for cell in CELLS[:6]:
        (tmp_path / cell.name).mkdir(parents=True)
        cell.write(tmp_path / cell.name)
    Standings.of(CELLS[:6], baseline="dpo", order=["sft", "dpo"]).write(tmp_path, CELLS[:6], {})
    for cell in CELLS[6:]:
        (tmp_path / cell.name).mkdir()
        cell.write(tmp_path / cell.name)
    standings = read_standings(tmp_path)
    assert standings is not None
    assert (standings.baseline, standings.trainers) == ("dpo", ["sft", "dpo", "dil"])
    assert read_standings(tmp_path / "seed0") is None
    assert "points more than dpo" in comparison_section(standings)


def test_without_matplotlib_the_tables_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.warns(UserWarning, match="the report has no figures"):
        section = comparison_section(Standings.of([replace(cell) for cell in CELLS]))
    assert "<svg" not in section
    assert "<table" in section
