"""``agentgym-tlm eval``: success of a policy on held-out tasks."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from agentgym_tlm.commands.rollout import PlayOptions, new_folder, play
from agentgym_tlm.evaluate import EvalResult, results_table, task_type_table, write_results
from agentgym_tlm.ranges import check_splits


@dataclass(frozen=True, kw_only=True)
class Evaluate(PlayOptions):
    """Success of a policy on held-out tasks, each played once. Give the same --output-dir again after a stop."""

    splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits of the environment."""
    by_task_type: bool = False
    """Show success for every task type, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_splits(self.splits)

    def run(self) -> int:
        """Play every split, write ``results.json``, print the table."""
        folder = self.output_dir or new_folder("eval", self.policy)
        played = play(self, folder, "eval", self.splits)
        results = [EvalResult.of(trajectories) for trajectories in played]
        write_results(folder / "results.json", results)
        console = Console(highlight=False)
        console.print(results_table(results))
        if self.by_task_type:
            console.print(task_type_table(results))
        print(f"Turn logs and results.json: {folder}")
        return 0
