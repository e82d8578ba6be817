"""What a policy achieves on a split: success with its interval, turns, invalid actions, per task type.

Success is ``won``, the simulator's own word, and nothing else. Episodes in which machinery failed, the environment's
or the policy's, say nothing about the agent: they are counted apart and leave every rate.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.trajectory import StopReason, Trajectory

Z_95 = 1.959963984540054  # two-sided 95% quantile of the standard normal


def wilson_interval(successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a success rate (Wilson 1927), as two fractions; (0, 1) when ``n`` is 0."""
    if not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n, got {successes} of {n}")
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Rate:
    """``successes`` out of ``n`` episodes."""

    successes: int
    n: int

    @property
    def value(self) -> float:
        """Success as a fraction; nan without episodes."""
        return self.successes / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95% Wilson interval."""
        return wilson_interval(self.successes, self.n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]" if self.n else "-"


@dataclass(frozen=True)
class EvalResult:
    """One policy on one split.

    ``mean_turns`` and ``mean_score`` are per episode, the rates per turn: ``malformed_rate`` is the share of responses
    that break the rules of the prompt format, whatever the environment makes of them.
    """

    env_id: str
    split: str
    policy: str
    success: Rate
    by_task_type: dict[str, Rate]
    mean_score: float
    mean_turns: float
    invalid_action_rate: float
    stop_reasons: dict[str, int]
    env_errors: int = 0
    policy_errors: int = 0
    label: str = ""
    malformed_rate: float = math.nan
    protocol: str = ""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], label: str = "", protocol: str = "") -> EvalResult:
        """Summarise the episodes of one policy on one split. Raises ValueError for none, or for a mixture."""
        kinds = {(t.env_id, t.split, t.policy) for t in trajectories}
        if len(kinds) != 1:
            raise ValueError(f"expected episodes of one environment, split and policy, got {sorted(kinds) or 'none'}")
        ((env_id, split, policy),) = kinds
        played = [t for t in trajectories if not t.stop_reason.is_breakdown]
        turns = sum(len(t.turns) for t in played)
        return cls(
            env_id=env_id,
            split=split,
            policy=policy,
            success=_rate(played),
            by_task_type={
                kind: _rate([t for t in played if t.task_type == kind])
                for kind in sorted({t.task_type for t in played})
            },
            mean_score=fmean(t.score for t in played) if played else math.nan,
            mean_turns=turns / len(played) if played else math.nan,
            invalid_action_rate=sum(t.invalid_actions for t in played) / turns if turns else math.nan,
            stop_reasons=dict(sorted(Counter(t.stop_reason.value for t in trajectories).items())),
            env_errors=sum(t.stop_reason is StopReason.ENV_ERROR for t in trajectories),
            policy_errors=sum(t.stop_reason is StopReason.POLICY_ERROR for t in trajectories),
            label=label,
            malformed_rate=sum(not turn.well_formed for t in played for turn in t.turns) / turns if turns else math.nan,
            protocol=protocol,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary, interval included."""
        return {**asdict(self), "success_rate": self.success.value, "success_interval_95": self.success.interval}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> EvalResult:
        """Inverse of :meth:`to_dict`."""
        record = {k: v for k, v in record.items() if k not in ("success_rate", "success_interval_95")}
        for name in ("mean_score", "mean_turns", "invalid_action_rate", "malformed_rate"):
            record[name] = math.nan if record.get(name) is None else record[name]
        record["success"] = Rate(**record["success"])
        record["by_task_type"] = {kind: Rate(**rate) for kind, rate in record["by_task_type"].items()}
        return cls(**record)


def _rate(trajectories: Sequence[Trajectory]) -> Rate:
    return Rate(sum(t.won for t in trajectories), len(trajectories))


def write_results(path: Path, results: Sequence[EvalResult]) -> None:
    """Write results as JSON, atomically."""
    write_text(path, to_json([result.to_dict() for result in results], indent=2) + "\n")


def read_results(path: Path) -> list[EvalResult]:
    """Read what :func:`write_results` wrote."""
    return [EvalResult.from_dict(record) for record in json.loads(path.read_text(encoding="utf-8"))]


class FittingTable(Table):
    """A table that shows each row as a block of lines where it is too wide, so that no number is ever cut short."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = Measurement.get(console, options.update(width=10_000), self).maximum
        if natural <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        headings = [str(column.header).replace("\n", " ") for column in self.columns]
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            lines = (f"{heading}: {cell}" for heading, cell in zip(headings, cells, strict=True))
            yield Text("\n".join(lines) + "\n", overflow="fold")


def results_table(results: Sequence[EvalResult]) -> FittingTable:
    """A rich table, one row per result."""
    table = FittingTable()
    table.add_column("policy", no_wrap=True)
    table.add_column("split", no_wrap=True)
    protocols = any(result.protocol for result in results)
    if protocols:
        table.add_column("protocol", no_wrap=True)
    table.add_column("success %\n[95% CI]", justify="right", no_wrap=True)
    for heading in ("mean\nscore", "n", "mean\nturns", "invalid\nturns %"):
        table.add_column(heading, justify="right")
    errors = [name for name in ("env_errors", "policy_errors") if any(getattr(result, name) for result in results)]
    for name in errors:
        table.add_column(name.replace("_", "\n"), justify="right")
    for result in results:
        row = [
            result.label or result.policy,
            result.split,
            *([result.protocol] if protocols else []),
            str(result.success),
            f"{100 * result.mean_score:.1f}",
            str(result.success.n),
            f"{result.mean_turns:.1f}",
            f"{100 * result.invalid_action_rate:.1f}",
        ]
        table.add_row(*row, *(str(getattr(result, name)) for name in errors))
    return table


def task_type_table(results: Sequence[EvalResult]) -> FittingTable:
    """A rich table of success, one row per task type, one column per result."""
    table = FittingTable("success % [95% CI]")
    for result in results:
        table.add_column(f"{result.label or result.policy}\n{result.split}", justify="right")
    for kind in sorted({kind for result in results for kind in result.by_task_type}):
        table.add_row(kind, *(str(result.by_task_type.get(kind, Rate(0, 0))) for result in results))
    return table
