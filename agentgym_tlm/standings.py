"""What a comparison says: success of every trainer on every suite, differences, and how sure they are.

Numbers are in percent (points), 95% intervals in brackets; see :mod:`agentgym_tlm.statistics` for what they mean. An
interval is about the trainers, with other seeds and other tasks; a p-value is about the policies that were trained, and
can be small where a trainer's seeds differ too much among themselves to say anything about trainers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from agentgym_tlm.cells import Cell, Outcome
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.evaluate import FittingTable, Rate
from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.statistics import (
    Estimate,
    Floats,
    bootstrap_mean,
    holm,
    iqm,
    paired_difference,
    permutation_test,
    probability_of_improvement,
)
from agentgym_tlm.suites import UNKNOWN_SHARE

Metric = Literal["success", "score"]
COMPARISON_FILE = "comparison.json"
_COLUMNS = (
    "suite trainer seeds tasks mean low high iqm env_steps breakdowns unknown "
    "difference difference_low difference_high p p_holm probability_of_improvement"
)
_FOR_FILES = ("p", "IQM %")
"""Columns that a terminal has no room for."""


@dataclass(frozen=True)
class Standing:
    """A trainer on a suite. ``breakdowns`` are episodes that machinery broke off, which are in no other number."""

    suite: str
    trainer: str
    seeds: list[int]
    tasks: int
    mean: Estimate
    iqm: float
    env_steps: float
    breakdowns: int
    unknown: float


@dataclass(frozen=True)
class Pair:
    """``trainer`` against ``other`` on a suite, over the seeds and tasks of both; ``changed`` end differently."""

    suite: str
    trainer: str
    other: str
    seeds: int
    changed: int
    difference: Estimate
    p: float
    p_holm: float | None
    probability_of_improvement: float

    @property
    def verdict(self) -> str:
        """In plain words."""
        value, low, high = (100 * number for number in self.difference)
        if np.isnan(value):
            return f"{self.suite}: {self.trainer} and {self.other} have no seed and task in common."
        if not self.changed:
            return f"{self.suite}: {self.trainer} and {self.other} had the same outcome on every task."
        word, bounds = ("better", (low, high)) if value >= 0 else ("worse", (-high, -low))
        apart = self.difference.excludes_zero and self.p < 0.05  # resampling few episodes shows too little noise
        sure = "the data tell them apart" if apart else "the data do not tell them apart"
        if self.p < 0.05 and not apart:
            sure += f" (these policies do differ, p = {self.p:.2g}, but others of the same trainers may not)"
        alone = "" if self.seeds > 1 else " (one seed: another training of the same may differ by more)"
        said = f"{self.trainer} is {word} than {self.other} by {abs(value):.1f} points"
        if f"{abs(value):.1f}" == "0.0":
            said = f"{self.trainer} and {self.other} are equal on average"
        return f"{self.suite}: {said} [{bounds[0]:+.1f}, {bounds[1]:+.1f}]; {sure}{alone}."


@dataclass(frozen=True)
class Standings:
    """See the module docstring; ``pairs`` are every trainer against the baseline, then the best against the others."""

    baseline: str
    metric: Metric
    suites: list[str]
    trainers: list[str]
    standings: list[Standing]
    pairs: list[Pair]

    @classmethod
    def of(
        cls,
        cells: Sequence[Cell],
        *,
        baseline: str | None = None,
        metric: Metric = "success",
        order: Sequence[str] = (),
    ) -> Standings:
        """Trainers come in ``order``, others by name. Raises ConfigError without cells, or without the baseline."""
        names = sorted({cell.trainer for cell in cells})
        trainers = [name for name in order if name in names] + [name for name in names if name not in order]
        if not trainers:
            raise ConfigError("no cell is finished: there is nothing to compare")
        if baseline is not None and baseline not in trainers:
            raise ConfigError(f"baseline: there is no finished cell of {baseline}; there are {', '.join(trainers)}")
        baseline = baseline or ("sft" if "sft" in trainers else trainers[0])
        suites = list(dict.fromkeys(chain.from_iterable(cell.outcomes for cell in cells)))
        standings: list[Standing] = []
        pairs: list[Pair] = []
        for suite in suites:
            table = _Table(suite, [cell for cell in cells if suite in cell.outcomes], metric)
            present = [name for name in trainers if name in table.trainers]
            found = [table.standing(name) for name in present]
            standings += found
            against = [table.pair(name, baseline) for name in present if name != baseline and baseline in present]
            corrected = holm([pair.p for pair in against])
            pairs += [Pair(**{**vars(pair), "p_holm": p}) for pair, p in zip(against, corrected, strict=True)]
            best = max(found, key=lambda s: -1.0 if np.isnan(s.mean.value) else s.mean.value).trainer
            rest = [name for name in present if name not in (best, baseline)]
            pairs += [table.pair(best, name) for name in rest if best != baseline]
        return cls(baseline, metric, suites, trainers, standings, pairs)

    @property
    def verdicts(self) -> list[str]:
        """Plain words for every pair, then what has to be known beside the numbers."""
        notes = [
            f"{s.suite}: {s.trainer} does not know {100 * s.unknown:.1f}% of the words."
            for s in self.standings
            if s.unknown > UNKNOWN_SHARE
        ]
        return [pair.verdict for pair in self.pairs] + notes

    def success_table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: a trainer in each row, a suite in each column."""
        by_cell = {(s.trainer, s.suite): s for s in self.standings}
        broken = any(s.breakdowns for s in self.standings)
        headings = ["trainer", "seeds", "env steps\nper seed", *(f"{suite}\n% [95% CI]" for suite in self.suites)]
        rows = []
        for trainer in self.trainers:
            own = [s for s in self.standings if s.trainer == trainer]
            row = [trainer, str(max(len(s.seeds) for s in own)), f"{own[0].env_steps:,.0f}"]
            row += [
                _percent(by_cell[trainer, suite].mean) if (trainer, suite) in by_cell else "-" for suite in self.suites
            ]
            rows.append(row + ([str(sum(s.breakdowns for s in own))] if broken else []))
        return headings + (["broken-off\nepisodes"] if broken else []), rows

    def difference_table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: every trainer against the baseline, on every suite."""
        iqms = {(s.trainer, s.suite): s.iqm for s in self.standings}
        headings = [
            "suite",
            "trainer",
            f"minus {self.baseline}\npoints [95% CI]",
            "p",
            "p (Holm)",
            "P(better)",
            "IQM %",
        ]
        rows = [
            [
                pair.suite,
                pair.trainer,
                _points(pair.difference),
                f"{pair.p:.4f}",
                f"{pair.p_holm:.4f}",
                f"{pair.probability_of_improvement:.2f}",
                f"{100 * iqms[pair.trainer, pair.suite]:.1f}",
            ]
            for pair in self.pairs
            if pair.p_holm is not None
        ]
        return headings, rows

    def tables(self) -> list[FittingTable]:
        """Both tables for the terminal."""
        shown = []
        for headings, rows in (self.success_table(), self.difference_table()):
            table = FittingTable()
            for i, heading in enumerate(headings):
                if heading not in _FOR_FILES:
                    table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
            for row in rows:
                table.add_row(*(cell for cell, name in zip(row, headings, strict=True) if name not in _FOR_FILES))
            shown.append(table)
        return [table for table in shown if table.row_count]

    def markdown(self, failures: Mapping[str, str]) -> str:
        """Tables and verdicts."""
        parts = [_markdown(*self.success_table())]
        if self.difference_table()[1]:
            parts.append(_markdown(*self.difference_table()))
        parts.append("\n".join(f"- {line}" for line in (*self.verdicts, *_failed(failures))))
        return "\n\n".join(part for part in parts if part) + "\n"

    def html(self, failures: Mapping[str, str]) -> str:
        """Tables and verdicts; everything from outside is escaped."""
        lines = "".join(f"<li>{escape(line)}</li>" for line in (*self.verdicts, *_failed(failures)))
        return f"<ul>{lines}</ul>{_html(*self.success_table())}{_html(*self.difference_table())}"

    def csv(self) -> str:
        """One line per suite and trainer; rates as fractions."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS.split())
        against = {(pair.suite, pair.trainer): pair for pair in self.pairs if pair.p_holm is not None}
        for s in self.standings:
            pair = against.get((s.suite, s.trainer))
            compared = (
                [""] * 6 if pair is None else [*pair.difference, pair.p, pair.p_holm, pair.probability_of_improvement]
            )
            row = [s.suite, s.trainer, len(s.seeds), s.tasks, *s.mean, s.iqm, s.env_steps, s.breakdowns, s.unknown]
            writer.writerow([*row, *compared])
        return text.getvalue()

    def write(self, folder: Path, cells: Sequence[Cell], failures: Mapping[str, str]) -> None:
        """``comparison.json`` with every record, ``comparison.md``, ``comparison.csv``."""
        record: dict[str, Any] = {
            **asdict(self),
            "verdicts": self.verdicts,
            "failures": dict(failures),
            "records": [
                {"trainer": cell.trainer, "seed": cell.seed, "suite": suite, **asdict(outcome)}
                for cell in cells
                for suite, outcomes in cell.outcomes.items()
                for outcome in outcomes
            ],
        }
        write_text(folder / COMPARISON_FILE, to_json(record, indent=1) + "\n")
        write_text(folder / "comparison.md", self.markdown(failures))
        write_text(folder / "comparison.csv", self.csv())


class _Table:
    """Outcomes of a suite: an array [seeds, tasks] for every trainer, all with the same seeds and tasks."""

    def __init__(self, suite: str, cells: Sequence[Cell], metric: Metric) -> None:
        self.suite = suite
        self._cells = cells
        self._metric = metric
        self.trainers = {cell.trainer for cell in cells}
        types = {o.task_id: o.task_type for cell in cells for o in cell.outcomes[suite]}
        for cell in cells:  # an episode that broke at once does not know its type
            types |= {o.task_id: o.task_type for o in cell.outcomes[suite] if not o.breakdown}
        self._column = {task: i for i, task in enumerate(sorted(types))}
        self._kinds = [types[task] for task in self._column]
        self._row = {seed: i for i, seed in enumerate(sorted({cell.seed for cell in cells}))}
        self._values = {name: self._array(name) for name in self.trainers}

    def _array(self, trainer: str) -> Floats:
        values = np.full((len(self._row), len(self._column)), np.nan)
        for cell in self._of(trainer):
            for outcome in cell.outcomes[self.suite]:
                if not outcome.breakdown:
                    values[self._row[cell.seed], self._column[outcome.task_id]] = self._value(outcome)
        return values

    def _value(self, outcome: Outcome) -> float:
        return float(outcome.won) if self._metric == "success" else outcome.score

    def _of(self, trainer: str) -> list[Cell]:
        return [cell for cell in self._cells if cell.trainer == trainer]

    def _by_type(self, values: Floats) -> Floats:
        """Means [seeds, task types]."""
        kinds = np.asarray(self._kinds)
        columns = []
        for kind in np.unique(kinds):
            of_kind = values[:, kinds == kind]
            found = ~np.isnan(of_kind)
            sums, counts = np.where(found, of_kind, 0.0).sum(1), found.sum(1)
            columns.append(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))
        return np.stack(columns, axis=1)

    def standing(self, trainer: str) -> Standing:
        cells, values = self._of(trainer), _present(self._values[trainer])
        return Standing(
            suite=self.suite,
            trainer=trainer,
            seeds=sorted(cell.seed for cell in cells),
            tasks=len(self._column),
            mean=self._mean(values),
            iqm=iqm(self._by_type(values)),
            env_steps=fmean(cell.env_steps for cell in cells),
            breakdowns=sum(o.breakdown for cell in cells for o in cell.outcomes[self.suite]),
            unknown=fmean(cell.unknown.get(self.suite, 0.0) for cell in cells),
        )

    def _mean(self, values: Floats) -> Estimate:
        """With Wilson's interval for the success of one seed, and where resampling shows no noise: all won, or none."""
        found = values[~np.isnan(values)]
        if self._metric == "success" and len(found) and (len(values) == 1 or found.min() == found.max()):
            tasks = int((~np.isnan(values)).any(axis=0).sum())
            return Estimate(float(found.mean()), *Rate(round(found.mean() * tasks), tasks).interval)
        return bootstrap_mean(values, self._kinds)

    def pair(self, trainer: str, other: str) -> Pair:
        ours, theirs = self._values[trainer], self._values[other]
        difference = _present(ours - theirs)
        return Pair(
            suite=self.suite,
            trainer=trainer,
            other=other,
            seeds=len(difference),
            changed=int(np.count_nonzero(np.nan_to_num(difference))),
            difference=paired_difference(difference, np.zeros_like(difference), self._kinds),
            p=permutation_test(difference),
            p_holm=None,
            probability_of_improvement=probability_of_improvement(self._by_type(ours), self._by_type(theirs)),
        )


def _present(values: Floats) -> Floats:
    """The rows of seeds that have an outcome."""
    rows: Floats = values[~np.isnan(values).all(axis=1)]
    return rows


def _percent(estimate: Estimate) -> str:
    value, low, high = (100 * number for number in estimate)
    return "-" if np.isnan(value) else f"{value:.1f} [{low:.1f}, {high:.1f}]"


def _points(estimate: Estimate) -> str:
    value, low, high = (100 * number for number in estimate)
    return "-" if np.isnan(value) else f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _failed(failures: Mapping[str, str]) -> list[str]:
    return [f"{name} failed and is missing: {reason}" for name, reason in failures.items()]


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[heading.replace("\n", " ") for heading in headings], ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def _html(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'
