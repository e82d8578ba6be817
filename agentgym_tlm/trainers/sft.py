"""Supervised fine-tuning on expert trajectories (behaviour cloning, as in ETO, arXiv 2403.02502, Eq. 3-5).

    L = - (1 / N) Σ_i Σ_j log π_θ(y_ij | h_i, y_i<j)

over the N tokens y_ij that the expert produced in all turns i of all trajectories of an update, end-of-turn tokens
included; h_i is everything before turn i. ``loss_type="dft"`` weights every token by its probability, without gradient
(dynamic fine-tuning, Wu et al., 2025, arXiv 2508.05629, Eq. 9):

    L = - (1 / N) Σ_i Σ_j sg(π_θ(y_ij | h_i, y_i<j)) log π_θ(y_ij | h_i, y_i<j)

``normalization="trajectories"`` takes the mean over each trajectory's tokens first, then over the trajectories of an
update. Deviations:

1. Turns marked ``trainable=False`` (injected mistakes) are context, never targets.
2. N counts the tokens of the whole update, over micro-batches and processes, so that long trajectories weigh more than
   short ones in the same way whatever the batch is split into.
3. With a windowed prompt format, which has one sequence per turn, an example of the batch is a turn; a trajectory with
   ``normalization="trajectories"``, which needs all of its turns at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.base import Item, Metrics, Trainer
from agentgym_tlm.trainers.collect import expert_play, within_context
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class SFTArguments(TrainingArguments):
    """Options of SFT. Policies without a recipe of their own get the paper's for 7B models: three epochs at 1e-5."""

    learning_rate: float = 1e-5
    """Peak learning rate of AdamW; models trained from scratch need one near 1e-3."""
    num_train_epochs: float = 3.0
    """Passes over the trajectories."""
    loss_type: Literal["nll", "dft"] = "nll"
    """dft weights every token by its probability."""
    normalization: Literal["tokens", "trajectories"] = "tokens"
    """What weighs the same: every token of an update, or every trajectory."""
    num_tasks: Annotated[int | None, tyro.conf.Suppress] = None
    """Training tasks that the expert plays, evenly spaced over the manifest; None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, num_tasks=COUNT)


def sft_loss(
    logprobs: Tensor,
    batch: TurnBatch,
    loss_type: Literal["nll", "dft"] = "nll",
    normalization: Literal["tokens", "trajectories"] = "tokens",
) -> Tensor:
    """Mean loss of the tokens, or over trajectories of their means; ``logprobs`` is [N]. 0 when there is no token."""
    losses = -logprobs if loss_type == "nll" else -logprobs * logprobs.detach().exp()
    if normalization == "tokens":
        return losses.sum() / max(1, losses.numel())
    return (batch.turn_sums(losses).sum(-1) / batch.turn_counts().sum(-1).clamp(min=1)).mean()


class SFTTrainer(Trainer[SFTArguments]):
    """Imitates expert trajectories."""

    def train(self) -> None:
        """Let the environment's expert play the training tasks, and imitate its wins."""
        self.begin()
        tasks = self.envs.manifest("train").take(self.args.num_tasks)
        path = self.output_dir / "expert" / "expert.jsonl"
        self.train_trajectories(expert_play(self.accelerator, self.policy, self.envs, tasks, path, seed=self.args.seed))

    def train_trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        """Learn from the given expert trajectories, as far as they fit into the policy's context.

        Raises TrajectoryError if one of them cannot be trained on, ConfigError if none fits.
        """
        self.begin(trajectories)
        examples = [Example.from_trajectory(t) for t in within_context(trajectories, self.policy.max_context)]
        if self.args.normalization == "tokens":
            examples = [part for example in examples for part in example.rows_apart()]
        self.fit([(example,) for example in examples])

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return sft_loss(logprobs, batch, self.args.loss_type, self.args.normalization), {}

    def units(self, item: Item) -> int:
        """Tokens of the loss, or the one trajectory."""
        return 1 if self.args.normalization == "trajectories" else sum(example.loss_tokens for example in item)
