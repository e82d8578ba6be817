"""What is known of a finished cell of a comparison: a trainer with a seed, and what became of every test task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentgym_tlm.files import to_json, write_text
from agentgym_tlm.trajectory import Trajectory
from agentgym_tlm.variants import Variant

CELL_FILE = "cell.json"


@dataclass(frozen=True)
class Outcome:
    """What became of one test task."""

    task_id: str
    task_type: str
    won: bool
    score: float
    turns: int
    stop_reason: str
    breakdown: bool

    @classmethod
    def of(cls, trajectory: Trajectory) -> Outcome:
        t = trajectory
        return cls(
            t.task_id, t.task_type, t.won, t.score, len(t.turns), t.stop_reason.value, t.stop_reason.is_breakdown
        )


@dataclass(frozen=True)
class Cell:
    """A finished cell: outcomes by suite, and the environment steps that its trainer sampled.

    ``start`` are the weights of the SFT policy; ``unknown`` is the share of unknown words, by suite.
    """

    trainer: str
    seed: int
    start: str
    env_steps: int
    seconds: float
    outcomes: dict[str, list[Outcome]]
    unknown: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its folder within the comparison's."""
        return cell_name(Variant.parse(self.trainer), self.seed)

    @classmethod
    def read(cls, folder: Path) -> Cell:
        record = json.loads((folder / CELL_FILE).read_text(encoding="utf-8"))
        outcomes = {suite: [Outcome(**each) for each in found] for suite, found in record["outcomes"].items()}
        return cls(**{**record, "outcomes": outcomes})

    def write(self, folder: Path) -> None:
        write_text(folder / CELL_FILE, to_json(asdict(self)) + "\n")


def cell_name(variant: Variant, seed: int) -> str:
    """``seed0/dpo``."""
    return f"seed{seed}/{variant.folder}"


def last_outcomes(trajectories: Sequence[Trajectory]) -> list[Outcome]:
    """The newest episode of every task: one that machinery broke off was played again."""
    last = {trajectory.task_id: trajectory for trajectory in trajectories}
    return [Outcome.of(last[task_id]) for task_id in sorted(last)]


def finished_cells(folder: Path) -> Iterator[tuple[Path, Cell]]:
    """Folder and contents of the finished cells of a comparison."""
    for file in sorted(folder.glob(f"seed*/*/{CELL_FILE}")):
        yield file.parent, Cell.read(file.parent)
