"""tlm-DRE: turn-level multiscale density ratio estimation (Zhao et al., arXiv 2609.16760).

A pair (x, y_w, y_l) is an expert trajectory y_w and a failure y_l that the SFT policy π_ref sampled on the same task;
turn i of a trajectory is the response a_i (thought and action together) of n_i tokens, given everything before it.

    Δ_i  = log π_θ(a_i) - log π_ref(a_i)                              per-turn log-ratio              (Eq. 6)
    log r̂ = Σ_i ω_i Δ_i                                               multiscale ratio                (Eq. 7-8)
    log p_i = (1 / n_i) Σ_j log π_ref(a_ij)                           confidence of the SFT policy    (Eq. 9)
    ω_i  = ω_L if p_i > p_pivot else ω_U                              confident turns weigh less      (Eq. 10)
    C    = Π_i π_ref(a_w,i)^(1 - ω_w,i)                               in (0, 1], constant in θ        (Eq. 11-15)
    L    = E[ f'(r̂_l) r̂_l - f(r̂_l) - C f'(r̂_w) ]                      Bregman divergence of f         (Eq. 16)
    L    = E[ r̂_l - C log r̂_w ]                                       for UKL, f(r) = r log r - r     (Eq. 17)

and f'(r) r - f(r), f'(r) of the other kernels (Eq. 18-25): LSIF f = (r - 1)² / 2; BKL f = r log r - (r + 1) log(r + 1);
Basu f = (r^(1+α) - r) / α. ω ≡ 1 gives C = 1 and DIL (arXiv 2503.05079): the ablation "w/o tlm", ``omega_lower=1``.
The ablation "w/o DRE", ``loss_type="dpo"``, is L = -log σ(β (log r̂_w - log r̂_l)).

Deviations and choices where the paper leaves one:

1. ``reduction``. Taken literally (``sum``), C is a product over hundreds of tokens and vanishes, and with it the chosen
   side. The default ``token_mean`` divides log r̂ and log C by the trajectory's number of tokens, which for ω ≡ 1 is the
   code of DIL; ``turn_mean`` uses each turn's mean over its tokens, the unit of Eq. 9. DPO uses ``sum``, as ETO does.
2. ``coefficient``. The indices of Eq. 17 also admit a reading in which every chosen turn has a factor of its own:
   ``turn_local`` weights turn i's log-ratio by p_i^(1 - ω_i) (with the length-normalised p_i under every reduction). It
   is defined for UKL only, whose f' is a sum over turns. ``none`` sets C = 1.
3. ``weight_side="rejected"`` weights the rejected side only, as in the paper's Figure 1; then ω_w ≡ 1 and C = 1.
4. Whether p_i counts the end-of-turn token is unstated; by default it does, being part of the loss.
5. Exponentials continue as straight lines beyond ``z_clip``, so that a ratio that ran away gives a large, finite loss
   whose gradient still points back. The paper says nothing of it; in ordinary training it is never reached.
6. ``p_pivot_quantile`` places the pivot at a quantile of the turn confidences of both sides, computed once; the paper
   chose 0.9 by eye from their histogram.
7. Schedule (10% warm-up, then constant), batch of 32 and beta = 0.1 are ETO's; the paper gives none of them.
8. With ``num_iterations`` > 1 the failures are sampled anew from the current policy, while π_ref stays the SFT policy.
   An iteration in which nothing is left to pair is passed over.
9. ``pairing="group"`` is the online form that the paper leaves open: y_w is a win of the same group as the failure y_l,
   of the episodes, that is, that the current policy sampled on one task in one iteration; the group's wins take turns.
   Where a group has no win, y_w is the expert's. ``tasks_per_iteration`` draws fresh tasks for every iteration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.pairs import Pair, build_pairs, turn_confidence
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.base import Item, Metrics
from agentgym_tlm.trainers.collect import draw_tasks
from agentgym_tlm.trainers.preference import PreferenceArguments, PreferenceTrainer
from agentgym_tlm.trajectory import Trajectory

Kernel = Literal["ukl", "lsif", "bkl", "basu"]
Reduction = Literal["token_mean", "turn_mean", "sum"]
Coefficient = Literal["full", "turn_local", "none"]
Pairing = Literal["expert", "group"]


@dataclass(frozen=True, kw_only=True)
class TLMDREArguments(PreferenceArguments):
    """Options of tlm-DRE. Policies without a recipe of their own get the paper's for 7B models on ALFWorld."""

    learning_rate: float = 7e-7
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    loss_type: Literal["dre", "dpo"] = "dre"
    """dpo is the ablation "w/o DRE": turn-weighted DPO."""
    kernel: Kernel = "ukl"
    """Function f of the Bregman divergence."""
    alpha: float = 0.5
    """Exponent of the basu kernel, above 0."""
    beta: float = 0.1
    """Temperature of loss_type="dpo"; DRE has none."""
    reduction: Reduction | None = None
    """From token to trajectory log-ratios; None: token_mean for dre, sum for dpo."""
    coefficient: Coefficient = "full"
    """Correction C of the chosen side."""
    weight_side: Literal["both", "rejected"] = "both"
    """Which trajectories get turn weights."""
    p_pivot: float = 0.9
    """Confidence above which a turn gets omega_lower."""
    p_pivot_quantile: float | None = None
    """Quantile of all turn confidences to use as the pivot instead."""
    omega_lower: float = 0.2
    """Weight of confident turns; 1 is the ablation "w/o tlm"."""
    omega_upper: float = 1.0
    """Weight of all other turns."""
    include_end_of_turn: bool = True
    """Count the end-of-turn token in the confidence."""
    z_clip: float = 10.0
    """Exponents are extrapolated linearly beyond this value."""
    pairing: Pairing = "expert"
    """Whose win a failure is paired with; group: one sampled beside it, the expert's if there is none."""
    tasks_per_iteration: int | None = None
    """Training tasks that an iteration plays, others than the last one did; None: all of num_tasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            beta="(0, inf)",
            p_pivot="[0, 1]",
            p_pivot_quantile="[0, 1]",
            z_clip="(0, inf]",
            tasks_per_iteration=COUNT,
        )
        if self.pairing == "group" and self.samples_per_task < 2:
            raise ConfigError('pairing="group" looks for a win beside a failure: samples_per_task must be at least 2')
        if not 0.0 <= self.omega_lower <= self.omega_upper <= 1.0:
            raise ConfigError(
                f"omega_lower={self.omega_lower} and omega_upper={self.omega_upper} must be in [0, 1], in this order"
            )
        if self.kernel == "basu" and self.alpha <= 0:
            raise ConfigError(f"alpha must be above 0 for the basu kernel, not {self.alpha}")
        if self.coefficient == "turn_local" and (self.kernel != "ukl" or self.loss_type == "dpo"):
            raise ConfigError('coefficient="turn_local" is defined for loss_type="dre" with kernel="ukl" only')
        if self.coefficient == "turn_local" and not self.include_end_of_turn:
            raise ConfigError('coefficient="turn_local" counts the end-of-turn token: leave include_end_of_turn on')

    @property
    def resolved_reduction(self) -> Reduction:
        """``reduction`` with its default filled in."""
        return self.reduction or default_reduction(self.loss_type)


def default_reduction(loss_type: str) -> Reduction:
    """Of log-ratios, where none is given."""
    return "token_mean" if loss_type == "dre" else "sum"


def confidence(ref_turn_sums: Tensor, n: Tensor) -> Tensor:
    """p [M, T] in (0, 1] from summed reference log-probs and token counts (Eq. 9); 1 where a turn has no tokens."""
    return (ref_turn_sums / n.clamp(min=1)).exp()


def turn_weights(p: Tensor, pivot: float, omega_lower: float, omega_upper: float) -> Tensor:
    """ω, shaped like ``p``: ``omega_lower`` where p > pivot, else ``omega_upper`` (Eq. 10)."""
    return torch.where(p > pivot, omega_lower, omega_upper)


def log_ratio(delta: Tensor, n: Tensor, weights: Tensor, reduction: Reduction) -> Tensor:
    """z = log r̂ [M] from summed per-turn log-ratios, token counts and weights, each [M, T] (Eq. 7-8)."""
    if reduction == "sum":
        return (weights * delta).sum(-1)
    if reduction == "turn_mean":
        return (weights * delta / n.clamp(min=1)).sum(-1)
    return (weights * delta).sum(-1) / n.sum(-1).clamp(min=1)


def coefficient(ref_turn_sums: Tensor, n: Tensor, weights: Tensor, reduction: Reduction) -> Tensor:
    """C [M] in (0, 1], without gradient, from reference log-probs of the chosen turns [M, T] (Eq. 15)."""
    return log_ratio(ref_turn_sums.detach(), n, 1 - weights, reduction).exp()


def bregman_loss(
    kernel: Kernel, z_w: Tensor, z_l: Tensor, c: Tensor, *, alpha: float = 0.5, z_clip: float = 10.0
) -> Tensor:
    """f'(r_l) r_l - f(r_l) - C f'(r_w) [P] at r = exp(z) for pairs of log-ratios (Eq. 16 with Eq. 18-25)."""
    if kernel == "ukl":
        return _exp(z_l, z_clip) - c * z_w
    if kernel == "lsif":
        return (_exp(2 * z_l, z_clip) - 1) / 2 - c * (_exp(z_w, z_clip) - 1)
    if kernel == "bkl":
        return -logsigmoid(-z_l) - c * logsigmoid(z_w)
    return _exp((1 + alpha) * z_l, z_clip) - c * ((1 + alpha) * _exp(alpha * z_w, z_clip) - 1) / alpha


def tlm_dre_loss(logprobs: Tensor, batch: TurnBatch, args: TLMDREArguments) -> tuple[Tensor, Metrics]:
    """Mean loss over the P pairs of ``batch`` (chosen trajectories first), and what to watch; ``logprobs`` is [N].

    Metrics are means over pairs: ``z_w``, ``z_l``, ``margin`` = z_w - z_l, ``C``, ``accuracy`` = share with z_w > z_l,
    and per side the share of turns that carry the lower weight.
    """
    ref, n, weights = batch.flat(batch.ref_logprobs), batch.turn_counts(), batch.turn_weights
    reduction = args.resolved_reduction
    delta = batch.turn_sums(logprobs - ref)
    z_w, z_l = log_ratio(delta, n, weights, reduction).chunk(2)
    (n_w, _), (weights_w, _), (delta_w, _) = n.chunk(2), weights.chunk(2), delta.chunk(2)
    ref_w, _ = batch.turn_sums(ref).chunk(2)
    c = torch.ones_like(z_w)
    if args.loss_type == "dpo":
        losses = -logsigmoid(args.beta * (z_w - z_l))
    elif args.coefficient == "turn_local":
        factors = confidence(ref_w, n_w) ** (1 - weights_w)
        losses = bregman_loss(
            "ukl", log_ratio(delta_w, n_w, factors * weights_w, reduction), z_l, c, z_clip=args.z_clip
        )
    else:
        if args.coefficient == "full":
            c = coefficient(ref_w, n_w, weights_w, reduction)
        losses = bregman_loss(args.kernel, z_w, z_l, c, alpha=args.alpha, z_clip=args.z_clip)
    with torch.no_grad():
        lower_w, lower_l = ((weights <= args.omega_lower) & (n > 0)).sum(-1).chunk(2)
        turns_w, turns_l = (n > 0).sum(-1).chunk(2)
        metrics = {
            "z_w": z_w.mean(),
            "z_l": z_l.mean(),
            "margin": (z_w - z_l).mean(),
            "accuracy": (z_w > z_l).float().mean(),
            "C": c.mean(),
            "lower_weight_share_w": (lower_w / turns_w.clamp(min=1)).mean(),
            "lower_weight_share_l": (lower_l / turns_l.clamp(min=1)).mean(),
        }
    return losses.mean(), {name: value.detach() for name, value in metrics.items()}


class TLMDRETrainer(PreferenceTrainer[TLMDREArguments]):
    """Aligns an SFT policy on pairs of expert trajectories and its own failures.

    The reference π_ref is the policy as it is given here: the SFT policy. See :class:`Trainer`.
    """

    reference = "initial"

    @property
    def include_end_of_turn(self) -> bool:
        return self.args.include_end_of_turn

    def tasks(self) -> list[str]:
        tasks, size = super().tasks(), self.args.tasks_per_iteration
        return tasks if size is None else draw_tasks(tasks, size, self.state.iteration, self.args.seed)

    def pair(self, expert: Sequence[Trajectory], sampled: Sequence[Trajectory]) -> tuple[list[Pair], Counter[str]]:
        limit, group = self.args.max_pairs_per_task, self.args.pairing == "group"
        return build_pairs(expert, sampled, max_pairs_per_task=limit, within_group=group, **self.filters)

    def items(self, pairs: Sequence[Pair]) -> list[Item]:
        pivot = self.pivot(pairs)
        if self._resume_from is None:
            self.log({"pairs": len(pairs), "p_pivot": pivot, **self._confidences(pairs, pivot)})
        return [(self._example(pair.chosen, pivot, "w"), self._example(pair.rejected, pivot, "l")) for pair in pairs]

    def pivot(self, pairs: Sequence[Pair]) -> float:
        """``p_pivot``, or the quantile of the turn confidences of both sides of the scored ``pairs``."""
        if self.args.p_pivot_quantile is None:
            return self.args.p_pivot
        both = [trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected)]
        return float(np.quantile(self._turn_confidences(both), self.args.p_pivot_quantile))

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return tlm_dre_loss(logprobs, batch, self.args)

    def _turn_confidences(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return [
            turn_confidence(turn, include_end_of_turn=self.args.include_end_of_turn)
            for trajectory in trajectories
            for turn in trajectory.turns
            if turn.trainable
        ]

    def _confidences(self, pairs: Sequence[Pair], pivot: float) -> dict[str, float]:
        """Median turn confidence and share of turns above the pivot, per side: the two have to be apart (App. D.1)."""
        sides = {"w": [pair.chosen for pair in pairs], "l": [pair.rejected for pair in pairs]}
        p = {side: np.asarray(self._turn_confidences(trajectories)) for side, trajectories in sides.items()}
        return {
            **{f"confidence_median_{side}": float(np.median(values)) for side, values in p.items()},
            **{f"above_pivot_{side}": float((values > pivot).mean()) for side, values in p.items()},
        }

    def _example(self, trajectory: Trajectory, pivot: float, side: Literal["w", "l"]) -> Example:
        """Arrays of a scored trajectory with the weights of its turns."""
        args = self.args
        weights = torch.ones(len(trajectory.turns))
        if side == "l" or args.weight_side == "both":
            p = [
                turn_confidence(turn, include_end_of_turn=args.include_end_of_turn) if turn.trainable else math.nan
                for turn in trajectory.turns
            ]
            weights = turn_weights(torch.tensor(p, dtype=torch.float64), pivot, args.omega_lower, args.omega_upper)
        return Example.from_trajectory(trajectory, weights.tolist())


def _exp(x: Tensor, clip: float) -> Tensor:
    """exp(x) up to ``clip``, its tangent beyond."""
    return x.clamp(max=clip).exp() * (1 + (x - clip).relu())  # relu, unlike clamp, has slope 0 at 0
