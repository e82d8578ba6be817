"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al., 2024, arXiv 2402.14740), for episodes of many turns.

    R_i = return of episode i - β Σ (log π_old(token) - log π_ref(token)) over the tokens of all its turns       (Eq. 1)
    A_i = R_i - mean_{j≠i} R_j                                                                                   (Eq. 8)

is the advantage of the whole episode, that of all its tokens. Deviations and choices:

1. The update is the clipped policy gradient (``policy_gradient.py``), as in TRL and verl: one on the very weights that
   sampled is REINFORCE, whatever ``epsilon``.
2. The return is that of GRPO's file, with its scale and its penalty for invalid actions; the paper's is that of a
   reward model.
3. ``kl_in="loss"`` moves the KL divergence from the reward to the loss, as verl-agent does; ``baseline_over="turns"``
   is its leave-one-out over all turns of the group.
4. ``beta`` and ``loss_aggregation`` are TRL's; the paper sums over tokens instead of averaging.
5. The rest as in GRPO's file, items 4 and 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentgym_tlm.trainers.grpo import GroupTrainer, GRPOArguments
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class RLOOArguments(GRPOArguments):
    """Options of RLOO."""

    scale_rewards: bool = False
    """Divide by the standard deviation of the group."""
    beta: float = 0.05
    """Weight of the KL divergence from the policy as it was given; 0: no reference."""
    kl_in: Literal["reward", "loss"] = "reward"
    """Where the KL divergence counts."""


def sequence_kl(episode: Trajectory) -> float:
    """Σ log π_old - log π_ref over the tokens of a sampled and scored episode: an estimate of the KL divergence."""
    return math.fsum(
        old - ref
        for turn in episode.turns
        if turn.trainable
        for old, ref in zip(turn.logprobs or (), turn.ref_logprobs or (), strict=True)
    )


class RLOOTrainer(GroupTrainer[RLOOArguments]):
    """RLOO; see :class:`GroupTrainer`."""

    leave_one_out = True

    @property
    def loss_beta(self) -> float:
        return self.args.beta if self.args.kl_in == "loss" else 0.0

    def episode_return(self, episode: Trajectory) -> float:
        """What an episode earned, less its KL divergence if that counts in the reward."""
        earned = super().episode_return(episode)
        if self.args.beta and self.args.kl_in == "reward":
            return earned - self.args.beta * sequence_kl(episode)
        return earned
