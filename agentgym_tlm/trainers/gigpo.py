"""GiGPO: group-in-group policy optimization (Feng et al., NeurIPS 2025, arXiv 2505.10978).

N episodes of one task are a group, and all turns in it that answer the same observation are a group within:

    A^E(τ_i)  = (R(τ_i) - mean_j R(τ_j)) / F                            of the episode                       (Eq. 3)
    R_t       = Σ_{k≥t} γ^(k-t) r_k                                     return from turn t on                (Eq. 5)
    G^S(s)    = { (a_t^i, R_t^i) : s_t^i = s, any i, any t }            turns with the anchor state s        (Eq. 6)
    A^S(a_t)  = (R_t - mean over G^S) / F                               of the turn                          (Eq. 7)
    A         = A^E + ω A^S                                             of all tokens of turn t              (Eq. 8)

for the clipped policy gradient with the k3 estimate of the KL divergence in the loss (Eq. 9, ``policy_gradient.py``).
F is the standard deviation (``scale_rewards``) or 1. The defaults are what the released code does, where that differs
from the equations:

1. ``baseline_over="turns"``: mean and deviation of A^E are taken over all turns of the group, so that long episodes
   weigh more; ``trajectories`` is Eq. 3.
2. R(τ) and r_k are scaled by ``reward_scale``; a turn with an invalid action loses ``invalid_action_penalty`` in its
   own A^E and, after discounting, in its own R_t. With ``baseline_over="trajectories"`` the penalty is a reward like
   any other: it counts in R(τ), and in R_t of all turns before it.
3. The anchor state is the text of the current observation alone, compared exactly, within the group.
   ``anchor_similarity`` < 1 puts an observation with the first earlier one to which its ratio of matching characters
   (difflib) is at least that.
4. A turn that nobody else answers has A^S = 0. The standard deviation is that of a sample, plus 1e-6.
5. The paper's prompts are windowed, one per turn (``--prompt-format tags``); with the full history the method is the
   same.
6. The released code fills batches up with copies of random turns; here no turn counts twice. Its updates take turns,
   ours whole episodes, of about as many turns. Its entropy bonus of 0.001 is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from agentgym_tlm.ranges import check_ranges
from agentgym_tlm.trainers.groups import (
    Array,
    Baseline,
    discounted_returns,
    relative_to_group,
)
from agentgym_tlm.trainers.grpo import GroupTrainer, GRPOArguments
from agentgym_tlm.trainers.policy_gradient import Aggregation
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class GiGPOArguments(GRPOArguments):
    """Options of GiGPO."""

    baseline_over: Baseline = "turns"
    """What the group's mean and deviation are taken over."""
    loss_aggregation: Aggregation = "token_mean"
    """What weighs the same: every token of an update, or every episode."""
    beta: float = 0.01
    """Weight of the KL divergence from the policy as it was given; 0: no reference."""
    gamma: float = 0.95
    """Discount of later rewards in the return from a turn on."""
    step_advantage_weight: float = 1.0
    """ω: how much the advantage of a turn counts beside that of its episode."""
    anchor_similarity: float = 1.0
    """Observations at least this similar are one anchor state; 1: equal ones only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, gamma="[0, 1]", step_advantage_weight="[0, inf)", anchor_similarity="(0, 1]")


def anchors(group: Sequence[Trajectory], similarity: float = 1.0) -> list[list[int]]:
    """Per episode, per turn, the number of the anchor state that the turn answers (Eq. 6)."""
    known: dict[str, int] = {}
    first: list[str] = []  # of every anchor state, its first observation
    numbers = []
    for episode in group:
        for turn in episode.turns:
            text = turn.observation
            if text in known:
                continue
            alike = (
                number
                for number, other in enumerate(first)
                if similarity < 1 and SequenceMatcher(None, text, other).ratio() >= similarity
            )
            known[text] = next(alike, len(first))
            if known[text] == len(first):
                first.append(text)
        numbers.append([known[turn.observation] for turn in episode.turns])
    return numbers


def step_advantages(returns: Sequence[Array], states: Sequence[Sequence[int]], *, std: bool) -> list[Array]:
    """A^S of every turn: its return less the mean over the turns of its anchor state (Eq. 7); 0 where it is alone."""
    flat, keys = np.concatenate(returns), np.concatenate([np.asarray(each) for each in states])
    advantages = np.zeros(len(flat))
    for key in np.unique(keys):
        members = keys == key
        (advantages[members],) = relative_to_group([flat[members]], "turns", std=std)
    return np.split(advantages, np.cumsum([len(each) for each in returns])[:-1])


class GiGPOTrainer(GroupTrainer[GiGPOArguments]):
    """GiGPO; see :class:`GroupTrainer`."""

    def returns(self, episode: Trajectory) -> Array:
        """R_t of every turn (Eq. 5)."""
        args = self.args
        rewards = args.reward_scale * np.array([turn.reward for turn in episode.turns])
        paid = self.penalties(episode)
        if args.baseline_over == "trajectories":
            return discounted_returns((rewards - paid).tolist(), args.gamma)
        return discounted_returns(rewards.tolist(), args.gamma) - paid

    def advantages(self, group: Sequence[Trajectory]) -> list[Array]:
        args = self.args
        of_episodes = super().advantages(group)
        returns = [self.returns(episode) for episode in group]
        of_turns = step_advantages(returns, anchors(group, args.anchor_similarity), std=args.scale_rewards)
        return [a + args.step_advantage_weight * b for a, b in zip(of_episodes, of_turns, strict=True)]
