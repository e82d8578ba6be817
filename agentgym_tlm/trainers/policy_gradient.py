"""The clipped policy gradient that PPO, RLOO, GRPO and GiGPO share; they differ in where the advantage A comes from.

    ρ    = π_θ(token) / π_old(token)                                                            of every token
    L    = - min(ρ A, clip(ρ, 1 - ε, 1 + ε_high) A)         (Schulman et al., 2017, arXiv 1707.06347, Eq. 7)
           + β (exp(q) - q - 1),   q = log π_ref - log π_θ  (k3 estimate of KL(π_θ, π_ref); Shao et al., 2024, Eq. 4)

averaged over all tokens of an update, or over each episode's tokens first. π_old is the policy that sampled, by its own
log-probs: should the trainer's differ from them (another precision, a kernel), ρ corrects for it. Where A < 0,
``dual_clip`` bounds the loss by -c A (Ye et al., 2020, arXiv 1912.09729, Eq. 5).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from agentgym_tlm.batch import TurnBatch
from agentgym_tlm.trainers.base import Metrics

Aggregation = Literal["token_mean", "sequence_mean"]

_MAX_LOG_RATIO = 20.0
"""Larger differences of log-probs would overflow, and are far beyond every clip."""


def k3(log_ratio: Tensor) -> Tensor:
    """exp(q) - q - 1 for q = log-ratio of the other policy to the one that sampled: its KL divergence, unbiased."""
    bounded = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return bounded.exp() - bounded - 1


def aggregate(values: Tensor, batch: TurnBatch, aggregation: Aggregation) -> Tensor:
    """Mean of [N] token values over tokens, or over the M episodes of their means."""
    if aggregation == "token_mean":
        return values.sum() / max(1, values.numel())
    return (batch.turn_sums(values).sum(-1) / batch.turn_counts().sum(-1).clamp(min=1)).mean()


def clipped_loss(
    logprobs: Tensor,
    batch: TurnBatch,
    *,
    epsilon: float,
    epsilon_high: float | None = None,
    dual_clip: float | None = None,
    beta: float = 0.0,
    aggregation: Aggregation = "token_mean",
) -> tuple[Tensor, Metrics]:
    """The loss of the module docstring for [N] log-probs, and what to watch, averaged like the loss.

    Metrics are ``clip_fraction``, the share of tokens whose gradient the clip took away; ``policy_kl``, the k3 estimate
    of the distance from the policy that sampled; and, with ``beta``, ``kl``, that from the reference.
    """
    advantages = batch.flat(batch.advantages)
    log_ratio = (logprobs - batch.flat(batch.old_logprobs)).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    high = epsilon if epsilon_high is None else epsilon_high
    unclipped, clipped = ratio * advantages, ratio.clamp(1 - epsilon, 1 + high) * advantages
    objective = torch.minimum(unclipped, clipped)
    if dual_clip is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)
    losses = -objective
    metrics = {"clip_fraction": (clipped < unclipped).float(), "policy_kl": k3(log_ratio)}
    if beta:
        metrics["kl"] = k3(batch.flat(batch.ref_logprobs) - logprobs)
        losses = losses + beta * metrics["kl"]
    watched = {name: aggregate(values.detach(), batch, aggregation) for name, values in metrics.items()}
    return aggregate(losses, batch, aggregation), watched
