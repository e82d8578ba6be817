"""DMPO: direct multi-turn preference optimization (Shi et al., EMNLP 2024, arXiv 2406.14868).

A pair (x, y_w, y_l) is an expert trajectory and a failure of the SFT policy π_ref on the same task; turn t = 0..T-1 of
a trajectory of T turns is the response a_t, given everything before it.

    Δ_t    = log π_θ(a_t) - log π_ref(a_t)                            log-ratio of a turn, summed over its tokens
    φ(t,T) = (1 - γ^(T-t)) / (1 - γ^T)                                1 for the first turn, falling       (Eq. 16)
    L      = - E[ log σ(β Σ_t φ(t,T_w) Δ_w,t - β Σ_t φ(t,T_l) Δ_l,t) ]

γ → 0 gives φ ≡ 1, which is trajectory DPO; γ → 1 gives φ = (T - t) / T. Deviations:

1. ``weighting``. The released code multiplies every turn by γ^t on top, α_t = γ^t φ(t,T): ``code``. The default is the
   paper's equation, ``paper``. Both include γ = 0 and γ = 1 by their limits.
2. The paper searches β in 0.1 to 0.9 and γ in 0.1 to 0.99 (small for noisy, large for clean failures); the defaults are
   0.1, and the code's 0.7. Epochs and learning rate are those of the code.
3. "Clean" failures are those left by ``max_repeats``; by default all are used, the paper's "noisy" setting.
4. T counts all turns, those that are not trained on (injected mistakes) included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.pairs import Pair
from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trainers.base import Item, Metrics
from agentgym_tlm.trainers.preference import PreferenceArguments, PreferenceTrainer, preference_metrics
from agentgym_tlm.trajectory import Trajectory

Weighting = Literal["paper", "code"]


@dataclass(frozen=True, kw_only=True)
class DMPOArguments(PreferenceArguments):
    """Options of DMPO. Policies without a recipe of their own get the source's for 7B models."""

    learning_rate: float = 1e-6
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    num_train_epochs: float = 3.0
    """Passes over the pairs."""
    beta: float = 0.1
    """How much a log-ratio counts: the smaller, the further the policy may move from the reference."""
    gamma: float = 0.7
    """Discount: the smaller, the less late turns are discounted; 0 is trajectory DPO."""
    weighting: Weighting = "paper"
    """code multiplies the weight of turn t by gamma^t, as the released code does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, beta="(0, inf)", gamma="[0, 1]")


def turn_weights(turns: int, gamma: float, weighting: Weighting = "paper") -> list[float]:
    """φ(t, T) of the ``turns`` = T turns of a trajectory (Eq. 16), times γ^t for ``code``."""
    phi = [(turns - t) / turns if gamma == 1 else (1 - gamma ** (turns - t)) / (1 - gamma**turns) for t in range(turns)]
    return phi if weighting == "paper" else [gamma**t * weight for t, weight in enumerate(phi)]


def dmpo_loss(logprobs: Tensor, batch: TurnBatch, beta: float) -> tuple[Tensor, Metrics]:
    """Mean loss over the P pairs of ``batch``, whose turn weights are φ, and what to watch; ``logprobs`` is [N].

    Metrics are means over pairs of β Σ φ Δ: ``reward_w``, ``reward_l``, ``margin`` and ``accuracy``.
    """
    delta = batch.turn_sums(logprobs - batch.flat(batch.ref_logprobs))
    reward_w, reward_l = (beta * (batch.turn_weights * delta).sum(-1)).chunk(2)
    metrics = {
        "reward_w": reward_w.detach().mean(),
        "reward_l": reward_l.detach().mean(),
        **preference_metrics(reward_w, reward_l),
    }
    return -logsigmoid(reward_w - reward_l).mean(), metrics


class DMPOTrainer(PreferenceTrainer[DMPOArguments]):
    """Prefers expert trajectories to failures, early turns above all; see :class:`PreferenceTrainer`.

    The reference is the policy as it is given here: the SFT policy.
    """

    reference = "initial"

    def items(self, pairs: Sequence[Pair]) -> list[Item]:
        return [(self._example(pair.chosen), self._example(pair.rejected)) for pair in pairs]

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return dmpo_loss(logprobs, batch, self.args.beta)

    def _example(self, trajectory: Trajectory) -> Example:
        weights = turn_weights(len(trajectory.turns), self.args.gamma, self.args.weighting)
        return Example.from_trajectory(trajectory, weights)
