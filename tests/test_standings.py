"""Tables and verdicts of a comparison, from outcomes that are known."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agentgym_tlm.cells import Cell, Outcome
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.evaluate import wilson_interval
from agentgym_tlm.standings import Standings

TASKS = 40


def outcome(i: int, *, won: bool, broken: bool = False) -> Outcome:
    stop = "env_error" if broken else "won" if won else "max_steps"
    return Outcome(f"task{i}", "pick" if i % 2 else "heat", won, float(won), 5, stop, broken)


def cell(trainer: str, seed: int, wins: int, *, broken: int = 0) -> Cell:
    """The first ``wins`` tasks are won; the last ``broken`` have no outcome."""
    outcomes = [outcome(i, won=i < wins, broken=i >= TASKS - broken) for i in range(TASKS)]
    return Cell(trainer, seed, "weights", 100 * (trainer != "sft"), 1.0, {"unseen": outcomes})


CELLS = [
    *(cell("sft", seed, 20 - seed) for seed in range(3)),
    *(cell("dpo", seed, 30 + seed) for seed in range(3)),
    *(cell("dil", seed, 20) for seed in range(3)),
]


def test_says_which_is_better_by_how_much_and_how_sure() -> None:
    standings = Standings.of(CELLS)
    dil, dpo = standings.pairs[:2]
    assert (dpo.trainer, dpo.other, dpo.seeds) == ("dpo", "sft", 3)
    assert dpo.difference.value == pytest.approx((10 + 12 + 14) / (3 * TASKS))
    assert dpo.difference.excludes_zero
    assert dpo.probability_of_improvement == 1.0
    assert standings.verdicts[1].startswith("unseen: dpo is better than sft by 30.0 points [+")
    assert standings.verdicts[1].endswith("; the data tell them apart.")
    assert dil.difference.value == pytest.approx(3 / (3 * TASKS))
    assert standings.verdicts[0].endswith("; the data do not tell them apart.")
    assert dil.p == 2 / 8  # three differences of one sign
    assert standings.verdicts[2].startswith("unseen: dpo is better than dil by")


def test_policies_that_differ_do_not_make_trainers_that_do() -> None:
    """One seed that was much better by chance: sure of these policies, not of the trainer."""
    cells = [cell("sft", 0, 20), cell("sft", 1, 20), cell("dpo", 0, 20), cell("dpo", 1, 32)]
    (pair,) = Standings.of(cells).pairs
    assert pair.p < 0.01
    assert not pair.difference.excludes_zero
    assert "these policies do differ, p = 0.00049" in pair.verdict


def test_few_tasks_cannot_tell_trainers_apart() -> None:
    """All of three won against none: resampled, that is always so, and by chance it is so in one of four cases."""
    cells = [cell("sft", 0, 0), cell("dpo", 0, 3)]
    cells = [replace(c, outcomes={"unseen": c.outcomes["unseen"][:3]}) for c in cells]
    (pair,) = Standings.of(cells).pairs
    assert (pair.p, pair.difference.value) == (2 / 8, 1.0)
    assert "the data do not tell them apart" in pair.verdict


def test_a_difference_that_cancels_is_not_better() -> None:
    """One task won by each alone: nobody is better by 0.0 points, and they did not do the same."""
    first, second = cell("sft", 0, 20), cell("dpo", 0, 20)
    changed = [replace(o, won=o.won != (i in (0, 30))) for i, o in enumerate(second.outcomes["unseen"])]
    (pair,) = Standings.of([first, replace(second, outcomes={"unseen": changed})]).pairs
    assert pair.changed == 2
    assert pair.verdict.startswith("unseen: dpo and sft are equal on average [-")


def test_worse_is_said_with_the_interval_turned_round() -> None:
    standings = Standings.of(CELLS, baseline="dpo", order=["sft", "dpo", "dil"])
    assert [pair.trainer for pair in standings.pairs] == ["sft", "dil"]
    assert standings.verdicts[0].startswith("unseen: sft is worse than dpo by 30.0 points [+")


def test_tests_against_the_baseline_are_corrected_for_their_number() -> None:
    standings = Standings.of(CELLS)
    dil, dpo = standings.pairs[:2]
    assert dpo.p_holm == pytest.approx(2 * dpo.p)
    assert dil.p_holm == dil.p


def test_seeds_that_only_one_has_are_not_paired() -> None:
    standings = Standings.of([c for c in CELLS if not (c.trainer == "dpo" and c.seed == 2)])
    dpo = next(pair for pair in standings.pairs if pair.trainer == "dpo")
    assert dpo.seeds == 2
    assert dpo.difference.value == pytest.approx((10 + 12) / (2 * TASKS))


def test_failures_of_machinery_are_reported_apart() -> None:
    """They are neither lost nor won, and their number is in the table."""
    cells = [cell("sft", 0, 10, broken=20), cell("dpo", 0, 10)]
    standings = Standings.of(cells)
    sft, dpo = sorted(standings.standings, key=lambda s: s.breakdowns, reverse=True)
    assert (sft.mean.value, sft.breakdowns, dpo.mean.value) == (10 / 20, 20, 10 / 40)
    headings, rows = standings.success_table()
    assert headings[-1] == "broken-off\nepisodes"
    assert {row[0]: row[-1] for row in rows} == {"sft": "20", "dpo": "0"}
    assert standings.pairs[0].difference.value == 0.0  # on the tasks that both played


def test_one_seed_has_wilsons_interval_and_a_warning() -> None:
    standings = Standings.of([cell("sft", 0, 10), cell("dpo", 0, 30)])
    assert standings.standings[0].mean == pytest.approx((30 / 40, *wilson_interval(30, 40)))
    assert "one seed" in standings.verdicts[0]


def test_no_success_at_all_is_not_certainty() -> None:
    """Resampling zeros gives zeros; 0 of 40 tasks still leaves up to 9%."""
    standing = Standings.of([cell("sft", seed, 0) for seed in range(3)]).standings[0]
    assert standing.mean == pytest.approx((0.0, *wilson_interval(0, TASKS)))


def test_words_that_a_policy_cannot_read_are_noted() -> None:
    blind = replace(CELLS[0], unknown={"unseen": 0.25})
    assert "unseen: sft does not know 25.0% of the words." in Standings.of([blind]).verdicts


def test_nothing_finished_or_no_baseline_is_said() -> None:
    with pytest.raises(ConfigError, match="no cell is finished"):
        Standings.of([])
    with pytest.raises(ConfigError, match="no finished cell of rft; there are dil, dpo, sft"):
        Standings.of(CELLS, baseline="rft")


def test_files_hold_every_record(tmp_path: Path) -> None:
    """A reader can compute all of it again."""
    hostile = [replace(c, trainer="dpo:x=<script>|") if c.trainer == "dpo" else c for c in CELLS]
    standings = Standings.of(hostile)
    standings.write(tmp_path, hostile, {"seed1/rft": "no memory"})
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert len(record["records"]) == len(CELLS) * TASKS
    wins = [r["won"] for r in record["records"] if r["trainer"] == "sft"]
    assert sum(wins) / len(wins) == pytest.approx(record["standings"][-1]["mean"][0])
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert [row["trainer"] for row in rows] == ["dil", "dpo:x=<script>|", "sft"]
    assert float(rows[1]["difference"]) == pytest.approx(0.3)
    text = (tmp_path / "comparison.md").read_text()
    assert "| dpo:x=<script>\\| | 3 | 100 |" in text
    assert "- seed1/rft failed and is missing: no memory" in text
    assert "<script>" not in standings.html({})
    assert standings.html({}).count('<div class="scroll" tabindex="0"><table>') == 2  # on a narrow screen, too


def test_terminal_shows_both_tables() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        for table in Standings.of(CELLS).tables():
            console.print(table)
    assert "77.5 [" in capture.get()
    assert "+30.0 [" in capture.get()
