"""Trajectory DPO, as in ETO (Song et al., ACL 2024, arXiv 2403.02502; DPO: Rafailov et al., 2023, arXiv 2305.18290).

A pair (x, y_w, y_l) is the better and the worse of two trajectories of a task, the expert's and one that the policy
sampled; lp(y) is the sum of log-probs over all tokens that the policy produced in all turns of y.

    Δ(y) = lp_θ(y) - lp_ref(y)                                        log-ratio of a trajectory
    L    = - E[ log σ(β (Δ(y_w) - Δ(y_l))) ]                          (ETO Eq. 11)

π_ref is the policy at the start of the iteration. Deviations:

1. Failures are sampled anew in every iteration with the newest policy, as in ETO, but β and the learning rate are the
   same in all of them (ETO's script goes on with β = 0.5 and half the learning rate: a run of its own here).
2. ETO's paper has a learning rate of 1e-6, three epochs and β = 0.1; these are the defaults. Its script explores
   greedily, so does the default temperature of 0.
3. ETO cuts failures off 5 turns after the expert's length on ScienceWorld and WebShop; that is ``max_extra_turns=5``,
   and off by default.
4. ETO's mask includes the separator that the chat template puts after a response; here the end-of-turn token is the
   last token of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import TurnBatch
from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trainers.base import Metrics
from agentgym_tlm.trainers.preference import (
    PreferenceArguments,
    PreferenceTrainer,
    implicit_rewards,
    preference_metrics,
)


@dataclass(frozen=True, kw_only=True)
class DPOArguments(PreferenceArguments):
    """Options of trajectory DPO. Policies without a recipe of their own get ETO's for 7B models."""

    learning_rate: float = 1e-6
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    num_train_epochs: float = 3.0
    """Passes over the pairs of an iteration."""
    temperature: float = 0.0
    """Sampling temperature; 0 explores greedily."""
    beta: float = 0.1
    """How much a log-ratio counts: the smaller, the further the policy may move from the reference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, beta="(0, inf)")


def dpo_loss(logprobs: Tensor, batch: TurnBatch, beta: float) -> tuple[Tensor, Metrics]:
    """Mean loss over the P pairs of ``batch`` (chosen trajectories first), and what to watch; ``logprobs`` is [N].

    Metrics are means over pairs of the implicit rewards βΔ: ``reward_w``, ``reward_l``, ``margin`` and ``accuracy``.
    """
    reward_w, reward_l = implicit_rewards(logprobs, batch, beta)
    metrics = {
        "reward_w": reward_w.detach().mean(),
        "reward_l": reward_l.detach().mean(),
        **preference_metrics(reward_w, reward_l),
    }
    return -logsigmoid(reward_w - reward_l).mean(), metrics


class DPOTrainer(PreferenceTrainer[DPOArguments]):
    """Prefers the better trajectory of every pair to the worse; see :class:`PreferenceTrainer`."""

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return dpo_loss(logprobs, batch, self.args.beta)
