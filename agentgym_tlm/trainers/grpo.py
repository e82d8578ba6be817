"""GRPO: group relative policy optimization (Shao et al., 2024, arXiv 2402.03300), for episodes of many turns.

G episodes of one task are a group. Episode i has the return R_i, and all tokens of all its turns the advantage

    A_i = (R_i - mean_j R_j) / std_j R_j                                                        (outcome supervision)

for the clipped policy gradient with the k3 estimate of the KL divergence in the loss (``policy_gradient.py``), averaged
over each episode's tokens first. Deviations and choices:

1. R_i is ``reward_scale`` times the episode's summed rewards less ``invalid_action_penalty`` for every invalid action,
   as in verl-agent. There, an action is invalid when the response breaks the prompt format; with
   ``penalized="refused"`` one that the environment refuses is, too. With ``scale_rewards`` a group that fails as a
   whole is compared by its penalties alone, as if they were wins and losses: leave the penalty out where they are many.
2. The standard deviation is that of a sample (n - 1), plus 1e-6, as in verl. ``scale_rewards=False`` leaves it out
   (Dr. GRPO, Liu et al., 2025, arXiv 2503.20783).
3. ``baseline_over="turns"`` is what verl-agent does: mean and deviation are taken over all turns of the group, so that
   long episodes weigh more, and a turn bears its own penalty only.
4. A group of one has no advantage; in verl it would have its return.
5. Episodes that the environment's machinery ended are not in the group: an error is not a reward of 0.
6. ``beta`` is the paper's; group and batch sizes are verl-agent's, of which those of the paper (64, 1024) are out of
   proportion for environments. No entropy bonus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from agentgym_tlm.batch import Example
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.trainers.groups import Array, Baseline, by_group, relative_to_group, turn_scores
from agentgym_tlm.trainers.online import OnlineArguments, OnlineTrainer
from agentgym_tlm.trainers.policy_gradient import Aggregation
from agentgym_tlm.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class GRPOArguments(OnlineArguments):
    """Options of GRPO."""

    scale_rewards: bool = True
    """Divide by the standard deviation of the group."""
    baseline_over: Baseline = "trajectories"
    """What the group's mean and deviation are taken over."""
    loss_aggregation: Aggregation = "sequence_mean"
    """What weighs the same: every token of an update, or every episode."""
    beta: float = 0.04
    """Weight of the KL divergence from the policy as it was given; 0: no reference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_task < 2:
            raise ConfigError("an episode is compared with others of its task: samples_per_task must be at least 2")


GRPOArgsT = TypeVar("GRPOArgsT", bound=GRPOArguments)


class GroupTrainer(OnlineTrainer[GRPOArgsT]):
    """Compares the episodes of a group with each other: no critic. See :class:`OnlineTrainer`."""

    leave_one_out: ClassVar[bool] = False
    """Whether an episode is compared with the mean of the others, or with that of all."""

    def episode_return(self, episode: Trajectory) -> float:
        """What an episode earned, before penalties."""
        return self.args.reward_scale * episode.episode_return

    def advantages(self, group: Sequence[Trajectory]) -> list[Array]:
        """[turns] advantages of every episode of a group."""
        args = self.args
        scores = [
            turn_scores(self.episode_return(episode), self.penalties(episode), args.baseline_over) for episode in group
        ]
        return relative_to_group(scores, args.baseline_over, std=args.scale_rewards, leave_one_out=self.leave_one_out)

    def examples(self, episodes: Sequence[Trajectory]) -> list[Example]:
        known = {
            id(episode): advantages
            for group in by_group(episodes)
            for episode, advantages in zip(group, self.advantages(group), strict=True)
        }
        examples = []
        for episode in episodes:
            example = Example.from_trajectory(episode)
            examples.append(example.with_token_values(advantages=example.of_turns(known[id(episode)])))
        return examples


class GRPOTrainer(GroupTrainer[GRPOArguments]):
    """GRPO; see :class:`GroupTrainer`."""
