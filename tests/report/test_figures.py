"""The paper's figures: they appear when their data exist, and show the numbers that the runs hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tlm.report.canvas import Figure
from agentgym_tlm.report.figures import draw
from agentgym_tlm.report.runs import read_runs
from tests.report.folders import pair, run_folder

CURVE = [{"step": s, "iteration": 0, "loss": 1 / s, "margin": s / 100} for s in (10, 20)]


def figures(*folders: Path) -> dict[str, Figure]:
    return {figure.title: figure for figure in draw(read_runs(folders))}


def test_every_figure_waits_for_its_data(tmp_path: Path) -> None:
    assert figures(run_folder(tmp_path / "bare")) == {}
    with_pairs = run_folder(tmp_path / "pairs", pairs=[pair()])
    assert list(figures(with_pairs)) == ["Confidence per turn", "Distribution of confidence"]
    trained = run_folder(tmp_path / "trained", "dpo", metrics=CURVE)
    assert list(figures(trained)) == ["Reward margin", "Training loss"]
    online = run_folder(tmp_path / "online", "grpo", metrics=[{"step": 0, "iteration": 0, "success": 0.25}])
    assert list(figures(online)) == ["Success while learning"]


def test_confidence_per_turn_and_its_distribution(tmp_path: Path) -> None:
    """Fig. 2 and 5. Three pairs, of which by hand: the second rejected turn has the median 0.5 of 0.4, 0.5, 0.6."""
    pairs = [pair(rejected=(0.95, p, 0.91)) for p in (0.4, 0.5, 0.6)]
    drawn = figures(run_folder(tmp_path / "run", pairs=pairs))
    per_turn = drawn["Confidence per turn"]
    assert ("rejected", "2", "3", "0.450", "0.500", "0.550") in per_turn.table
    assert [row[:3] for row in per_turn.table[1:3]] == [("chosen", "1", "3"), ("chosen", "2", "3")]
    assert "3 pairs of Toy-v0: run" in per_turn.caption
    assert drawn["Distribution of confidence"].table == (
        ("side", "turns", "median pᵢ", "share above 0.9"),
        ("chosen", "6", "0.970", "1.000"),
        ("rejected", "9", "0.910", "0.667"),
    )
    assert "pivot 0.9" in drawn["Distribution of confidence"].inline_svg()


def test_pairs_of_one_sft_policy_count_once(tmp_path: Path) -> None:
    """Methods that go on from the same policy sample the same failures."""
    first = run_folder(tmp_path / "tlm", pairs=[pair()])
    second = run_folder(tmp_path / "dpo", "dpo", pairs=[pair()], sft_policy=first / "sft" / "policy")
    other = run_folder(tmp_path / "other", pairs=[pair(), pair()])
    assert "3 pairs of Toy-v0: tlm, other" in figures(second, first, other)["Confidence per turn"].caption


def test_curves_are_labelled_by_method_and_name_their_runs(tmp_path: Path) -> None:
    """Fig. 3: tlm-DRE and DPO in one plot, the seeds of a method in one colour."""
    drawn = figures(
        run_folder(tmp_path / "a", metrics=CURVE),
        run_folder(tmp_path / "b", seed=1, metrics=CURVE),
        run_folder(tmp_path / "c", "dpo", metrics=CURVE),
    )
    margin = drawn["Reward margin"]
    assert margin.table[0] == ("run", "method", "update", "margin")
    assert ("c", "dpo", "20", "0.2") in margin.table
    assert margin.caption.endswith("From a, b, c.")
    assert margin.inline_svg().count(">tlm-dre</text>") == margin.inline_svg().count(">dpo</text>") == 1
    assert [axes.get_title() for axes in margin.canvas.axes] == ["log-ratio", "implicit reward"]


def test_seeds_of_a_method_have_a_mean_where_all_have_a_point(tmp_path: Path) -> None:
    """Many thin lines cannot be compared by eye; a mean over other seeds at every point would jump."""
    longer = [*CURVE, {"step": 30, "iteration": 0, "loss": 0.1, "margin": 0.9}]
    folders = run_folder(tmp_path / "a", metrics=CURVE), run_folder(tmp_path / "b", seed=1, metrics=longer)
    margin = figures(*folders)["Reward margin"]
    thin, longer_thin, mean = (line.get_xydata().tolist() for line in margin.canvas.axes[0].lines)
    assert (thin, longer_thin) == ([[10, 0.1], [20, 0.2]], [[10, 0.1], [20, 0.2], [30, 0.9]])
    assert mean == [[10, 0.1], [20, 0.2]]
    assert "Thick lines are means over the runs of a method" in margin.caption


def test_omega_search_takes_runs_that_differ_in_nothing_else(tmp_path: Path) -> None:
    """Fig. 6: means over seeds; a setting that was tried with one weight only is no search."""
    drawn = figures(
        run_folder(tmp_path / "a", omega_lower=0.0, won=(2, 1)),
        run_folder(tmp_path / "b", omega_lower=0.2, won=(2, 3)),
        run_folder(tmp_path / "c", omega_lower=0.2, won=(2, 4), seed=1),
        run_folder(tmp_path / "d", omega_lower=0.4, kernel="lsif"),
    )
    table = drawn["Search for the lower weight"].table
    assert [row[1:] for row in table[1:]] == [
        ("valid_seen", "0", "1", "25.0"),
        ("valid_seen", "0.2", "2", "87.5"),
    ]
    searched = drawn["Search for the lower weight"]
    assert [axes.get_title() for axes in searched.canvas.axes] == ["valid_seen"]
    assert "d" not in searched.caption[searched.caption.index("From ") + 5 :]
    single = figures(run_folder(tmp_path / "e"), run_folder(tmp_path / "f", seed=1))
    assert "Search for the lower weight" not in single


def test_omega_search_has_a_line_for_each_setting_whose_default_may_be_spelled_out(tmp_path: Path) -> None:
    """A run with the default reduction and one that names it lie on one line."""
    drawn = figures(
        run_folder(tmp_path / "a", omega_lower=0.2, reduction=None, won=(2, 1)),
        run_folder(tmp_path / "b", omega_lower=0.6, reduction="token_mean", won=(2, 3)),
        run_folder(tmp_path / "c", omega_lower=0.2, reduction="turn_mean", won=(2, 2)),
        run_folder(tmp_path / "d", omega_lower=0.6, reduction="turn_mean", won=(2, 4)),
        run_folder(tmp_path / "e", omega_lower=0.2, loss_type="dpo"),
    )["Search for the lower weight"]
    assert [row[0::2] for row in drawn.table[1:]] == [
        ("token_mean", "0.2", "25.0"),
        ("token_mean", "0.6", "75.0"),
        ("turn_mean", "0.2", "50.0"),
        ("turn_mean", "0.6", "100.0"),
    ]
    assert "a line for each reduction" in drawn.caption


@pytest.mark.parametrize("title", ["Confidence per turn", "Training loss"])
def test_svg_takes_the_colours_of_the_page_and_loads_nothing(tmp_path: Path, title: str) -> None:
    """Black lines would vanish in the dark, and a namespace is all that looks like an address."""
    folder = run_folder(tmp_path / "run", pairs=[pair()], metrics=CURVE)
    svg = figures(folder)[title].inline_svg()
    assert svg == figures(folder)[title].inline_svg()
    assert svg.startswith("<svg ")
    assert "http" not in svg
    assert "<style" not in svg
    assert "#000000" not in svg
    assert "var(--ink)" in svg
    assert "var(--series-1)" in svg
