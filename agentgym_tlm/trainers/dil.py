"""DIL: direct imitation learning by density ratio estimation (Xiao et al., ICLR 2025, arXiv 2503.05079).

A pair (x, y_w, y_l) is an expert trajectory y_w and a failure y_l that the SFT policy π_ref sampled on the same task;
n is the number of tokens that the policy produced in all turns of y.

    d(y) = (log π_θ(y) - log π_ref(y)) / n                            mean log-ratio of a token
    LSIF   L = E[ ½ exp(2 d_l) - exp(d_w) ]
    UKL    L = E[ exp(d_l) - (1 / n_w) log π_θ(y_w) ]
    BCE    L = E[ - log σ(d_w) - log σ(-d_l) ]

Each is the Bregman divergence of π_chosen / π_ref from π_θ / π_ref for one convex function (Sugiyama et al., 2012).
tlm-DRE with ``omega_lower=1`` is this loss (its kernel ``bkl`` is BCE). Deviations:

1. Constants are added so that the losses are those of tlm-DRE: ½ to LSIF, which is 0 at π_θ = π_ref, and the mean
   reference log-prob to UKL, which is 1 there. No gradient changes.
2. The responses of DIL are trajectories here: prompt and observations are no tokens of the loss, as in tlm-DRE.
3. The released code has a ``beta`` that these losses ignore, and DPO on mean log-probs among its losses; neither is
   here (``dpo`` uses sums, as ETO does).
4. Batch of 128, cosine with 10% warm-up and one epoch are the source's. It searched learning rates of 3e-7 to 1e-6; the
   default is within.
5. With ``num_iterations`` > 1, which the source does not have, the failures are sampled anew, while π_ref stays the SFT
   policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_tlm.batch import TurnBatch
from agentgym_tlm.trainers.base import Metrics
from agentgym_tlm.trainers.preference import PreferenceArguments, PreferenceTrainer, preference_metrics

Kernel = Literal["lsif", "ukl", "bce"]


@dataclass(frozen=True, kw_only=True)
class DILArguments(PreferenceArguments):
    """Options of DIL. Policies without a recipe of their own get the source's for 7B models."""

    learning_rate: float = 5e-7
    """Peak learning rate of AdamW; small models trained from scratch need a larger one."""
    gradient_accumulation_steps: int = 16
    """Forward passes per update and process."""
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "cosine"
    """Shape of the learning rate after the warm-up."""
    kernel: Kernel = "lsif"
    """Function of the Bregman divergence."""


def dil_loss(logprobs: Tensor, batch: TurnBatch, kernel: Kernel) -> tuple[Tensor, Metrics]:
    """Mean loss over the P pairs of ``batch`` (chosen trajectories first), and what to watch; ``logprobs`` is [N].

    Metrics are means over pairs: ``z_w`` and ``z_l``, the mean log-ratios d of the two sides, ``margin``, ``accuracy``.
    """
    delta = batch.turn_sums(logprobs - batch.flat(batch.ref_logprobs)).sum(-1)
    d_w, d_l = (delta / batch.turn_counts().sum(-1)).chunk(2)
    if kernel == "lsif":
        losses = ((2 * d_l).exp() - 1) / 2 - (d_w.exp() - 1)
    elif kernel == "ukl":
        losses = d_l.exp() - d_w
    else:
        losses = -logsigmoid(d_w) - logsigmoid(-d_l)
    metrics = {"z_w": d_w.detach().mean(), "z_l": d_l.detach().mean(), **preference_metrics(d_w, d_l)}
    return losses.mean(), metrics


class DILTrainer(PreferenceTrainer[DILArguments]):
    """Imitates the expert where the policy's own failures are least like it; see :class:`PreferenceTrainer`.

    The reference is the policy as it is given here: the SFT policy.
    """

    reference = "initial"

    def loss(self, logprobs: Tensor, batch: TurnBatch) -> tuple[Tensor, Metrics]:
        return dil_loss(logprobs, batch, self.args.kernel)
