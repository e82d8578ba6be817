"""``agentgym-tlm train``: the main job on the command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from agentgym_tlm.evaluate import results_table
from agentgym_tlm.experiment import Experiment
from agentgym_tlm.progress import plain_warnings, rollout_progress, training_progress
from agentgym_tlm.recipes import ExperimentConfig


@dataclass(frozen=True, kw_only=True)
class Train(ExperimentConfig):
    """Train an agent: imitate the expert, align with a trainer, evaluate before and after."""

    def run(self) -> int:
        """Run the experiment and print its table."""
        disable_progress_bar()
        experiment = Experiment(self, rollouts=rollout_progress, training=training_progress)
        try:
            with plain_warnings():
                results = experiment.run()
        except KeyboardInterrupt:
            if not (self.run_dir / "config.yaml").exists():
                raise
            again = shlex.join(["agentgym-tlm", "train", "--config", f"{self.run_dir}/config.yaml", "--resume"])
            raise KeyboardInterrupt(f"Go on with: {again}") from None
        console = Console(highlight=False)
        console.print(results_table(results))
        console.print(f"Run folder: {self.run_dir}", soft_wrap=True)
        return 0
