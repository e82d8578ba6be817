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
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import Example, TurnBatch
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import CheckpointError, ConfigError
from agentgym_tlm.pairs import Pair, build_pairs, is_scored, read_pairs, score_pairs, turn_confidence, write_pairs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.ranges import COUNT, check_ranges
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.base import Item, Metrics, Trainer
from agentgym_tlm.trainers.collect import expert_play, play, sampling_at, within_context
from agentgym_tlm.trajectory import Trajectory

Kernel = Literal["ukl", "lsif", "bkl", "basu"]
Reduction = Literal["token_mean", "turn_mean", "sum"]
Coefficient = Literal["full", "turn_local", "none"]


@dataclass(frozen=True, kw_only=True)
class TLMDREArguments(TrainingArguments):
    """Options of tlm-DRE. Policies without a recipe of their own get the paper's for 7B models on ALFWorld."""

    learning_rate: float = 7e-7
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    per_device_train_batch_size: int = 8
    """Pairs per forward pass and process."""
    gradient_accumulation_steps: int = 4
    """Forward passes per update and process."""
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    """Shape of the learning rate after the warm-up."""
    warmup_ratio: float = 0.1
    """Share of the updates over which the learning rate rises from 0."""
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
    num_iterations: int = 1
    """Rounds of sampling with the newest policy and learning from it; max_steps and epochs are per round."""
    num_tasks: int | None = None
    """Training tasks to play, evenly spaced over the manifest; None: all."""
    samples_per_task: int = 1
    """Episodes that the policy samples on each task."""
    max_pairs_per_task: int | None = None
    """Most pairs of one task; None: all failures."""
    temperature: float = 1.0
    """Sampling temperature."""
    n_slots: int = 64
    """Episodes that are sampled side by side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            beta="(0, inf)",
            p_pivot="[0, 1]",
            p_pivot_quantile="[0, 1]",
            z_clip="(0, inf]",
            num_iterations=COUNT,
            num_tasks=COUNT,
            samples_per_task=COUNT,
            max_pairs_per_task=COUNT,
            temperature="[0, inf)",
            n_slots=COUNT,
        )
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
        return self.reduction or ("token_mean" if self.loss_type == "dre" else "sum")


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


class TLMDRETrainer(Trainer[TLMDREArguments]):
    """Aligns an SFT policy on pairs of expert trajectories and its own failures.

    The reference π_ref is the policy as it is given here: the SFT policy. See :class:`Trainer`.
    """

    dropout = False

    def __init__(
        self,
        policy: LanguageModelPolicy,
        envs: EnvArgs,
        args: TLMDREArguments,
        *,
        evaluate: Callable[[LanguageModelPolicy], Mapping[str, float]] | None = None,
        on_log: Callable[[Mapping[str, float]], None] | None = None,
    ) -> None:
        super().__init__(policy, envs, args, evaluate=evaluate, on_log=on_log)
        self._reference = copy.deepcopy(policy.model) if args.num_iterations > 1 and args.lora is None else None

    def train(self) -> None:
        """Sample with the policy, pair its failures with the expert, learn; ``num_iterations`` times."""
        while True:
            self.train_pairs(self.collect())
            if self.state.iteration + 1 == self.args.num_iterations:
                return
            self.state.iteration += 1

    def collect(self) -> list[Pair]:
        """Scored pairs of the current iteration, from the run folder if they are there already."""
        self.begin()
        folder = self._folder / "pairs"
        if self._resume_from is not None and folder.exists():
            return read_pairs(folder)  # fit compares them with what the checkpoint was trained on
        self.claim_folder(self._folder.name)
        if folder.exists():
            return read_pairs(folder)
        args = self.args
        tasks = self.envs.manifest("train").take(args.num_tasks)
        path = self.output_dir / "expert.jsonl"
        expert = within_context(
            expert_play(self.accelerator, self.policy, self.envs, tasks, path, seed=args.seed), self.policy.max_context
        )
        with sampling_at(self.policy, args.temperature):
            sampled = play(
                self.accelerator,
                self.policy,
                self.envs,
                tasks,
                self._folder / "sampled.jsonl",
                samples_per_task=args.samples_per_task,
                seed=self.iteration_seed,
                n_slots=args.n_slots,
                progress=self.on_rollout,
            )
        pairs, dropped = build_pairs(expert, sampled, max_pairs_per_task=args.max_pairs_per_task)
        self.log({f"dropped_{reason}": n for reason, n in sorted(dropped.items())})
        if not pairs:
            raise ConfigError(_no_pair(dropped))
        return pairs

    def train_pairs(self, pairs: Sequence[Pair]) -> None:
        """Learn from the given pairs. Those without reference scores are scored once and kept in the run folder.

        Raises ConfigError when there is none.
        """
        if not pairs:
            raise ConfigError(_no_pair({}))
        self.begin(trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected))
        scored = self._scored(pairs)
        pivot = self.pivot(scored)
        if self._resume_from is None:
            self.log({"pairs": len(scored), "p_pivot": pivot, **self._confidences(scored, pivot)})
        self.fit(
            [(self._example(pair.chosen, pivot, "w"), self._example(pair.rejected, pivot, "l")) for pair in scored]
        )

    def _scored(self, pairs: Sequence[Pair]) -> list[Pair]:
        if all(is_scored(pair.chosen) and is_scored(pair.rejected) for pair in pairs):
            return list(pairs)
        folder = self._folder / "pairs"
        if folder.exists():
            kept = read_pairs(folder)
            if [_ids(pair) for pair in kept] != [_ids(pair) for pair in pairs]:
                raise CheckpointError(f"{folder} holds the scores of other pairs: choose a new output_dir")
            return kept
        model: Any = self.policy.model
        accelerator = self.accelerator
        rank, world = accelerator.process_index, accelerator.num_processes
        adapters_off = model.disable_adapter() if self.args.lora is not None else nullcontext()
        with accelerator.autocast(), adapters_off:
            mine = score_pairs(
                self._reference or model,
                pairs[rank::world],
                batch_size=2 * self.args.per_device_train_batch_size,
                include_end_of_turn=self.args.include_end_of_turn,
            )
        if world > 1:
            shares = gather_object([mine])
            mine = [shares[i % world][i // world] for i in range(len(pairs))]
        if accelerator.is_main_process:
            write_pairs(folder, mine)
        accelerator.wait_for_everyone()
        return mine

    @property
    def _folder(self) -> Path:
        return self.output_dir / f"iteration-{self.state.iteration}"

    def pivot(self, pairs: Sequence[Pair]) -> float:
        """``p_pivot``, or the quantile of the turn confidences of both sides of the scored ``pairs``."""
        if self.args.p_pivot_quantile is None:
            return self.args.p_pivot
        both = [trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected)]
        return float(np.quantile(self._turn_confidences(both), self.args.p_pivot_quantile))

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return tlm_dre_loss(logprobs, batch, self.args)

    def units(self, item: Item) -> int:
        """Every pair weighs the same."""
        return 1

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


_DROPPED = {
    "won": ("were won", "raise num_tasks or samples_per_task"),
    "no_tokens": ("left the policy no room for a response", "raise its max_context"),
    "nothing_trainable": ("have no response to learn from", "look at sampled.jsonl"),
    "empty_turn": ("have an empty response", "train the SFT policy longer"),
    "env_error": ("ended in a failure of the environment", "see their errors in sampled.jsonl"),
    "aborted": ("were broken off", "sample them again"),
    "no_expert": ("are of tasks that the expert did not win", "raise num_tasks or the environment's max_episode_steps"),
}
"""What the counts of :func:`build_pairs` mean, and the remedy when nothing else is left."""


def _no_pair(dropped: Mapping[str, int]) -> str:
    """Why there is no pair: the counts, and what to do about the most frequent reason."""
    reasons = sorted(dropped, key=lambda reason: -dropped[reason])
    counts = ", ".join(f"{dropped[reason]} {_DROPPED[reason][0]}" for reason in reasons)
    found = (
        f"of {sum(dropped.values())} sampled episodes {counts}; {_DROPPED[reasons[0]][1]}" if reasons else "none given"
    )
    return f"there is no pair to learn from: {found}"


def _ids(pair: Pair) -> tuple[list[list[int]], list[list[int]]]:
    return pair.chosen.sequences, pair.rejected.sequences


def _exp(x: Tensor, clip: float) -> Tensor:
    """exp(x) up to ``clip``, its tangent beyond."""
    return x.clamp(max=clip).exp() * (1 + (x - clip).relu())  # relu, unlike clamp, has slope 0 at 0
