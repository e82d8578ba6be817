"""Groups of episodes that began alike, and what an episode or a turn is worth compared with the others of its group.

Advantages are one [turns] array per episode. An episode that an environment's failure ended is in no group, so that
groups may be of different sizes; a group of one tells nothing, and nor does one whose scores are all equal: their
advantages are exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from agentgym_tlm.trajectory import Trajectory

Array = npt.NDArray[np.float64]
Baseline = Literal["trajectories", "turns"]
Penalized = Literal["malformed", "refused"]

STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it, as in verl."""
ROUNDING = 1e-9
"""Scores that are no further apart are equal: sums of the same rewards differ by less, of 0.1 and 0.2 and of 0.3."""


def by_group(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The episodes of each ``group_id``, groups and members in the order in which they come."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return list(groups.values())


def penalties(trajectory: Trajectory, penalty: float, penalized: Penalized) -> Array:
    """[turns] ``penalty`` where the response was ``malformed``, or also where its action was ``refused``, else 0."""
    malformed = [turn.action is None or not turn.well_formed for turn in trajectory.turns]
    refused = [penalized == "refused" and not turn.action_valid for turn in trajectory.turns]
    return penalty * np.logical_or(malformed, refused)


def turn_scores(episode_return: float, paid: Array, over: Baseline) -> Array:
    """[turns] what each turn is credited with: the episode's return, less the penalties ``paid`` [turns].

    Over ``trajectories`` all turns bear the penalties of all; over ``turns`` each bears its own (as in verl-agent).
    """
    return episode_return - (np.full(len(paid), paid.sum()) if over == "trajectories" else paid)


def relative_to_group(
    scores: Sequence[Array], over: Baseline, *, std: bool, leave_one_out: bool = False
) -> list[Array]:
    """Scores less the group's mean, over its ``trajectories`` (by their first turns) or over all its ``turns``.

    ``std`` divides by the sample standard deviation, ``leave_one_out`` takes the mean over the others instead.
    """
    values = np.array([each[0] for each in scores]) if over == "trajectories" else np.concatenate(scores)
    if len(values) < 2 or np.ptp(values) < ROUNDING:
        return [np.zeros(len(each)) for each in scores]
    factor = len(values) / (len(values) - 1) if leave_one_out else 1.0
    if std:
        factor /= float(values.std(ddof=1)) + STD_EPSILON
    return [factor * (each - values.mean()) for each in scores]


def discounted_returns(rewards: Sequence[float], gamma: float) -> Array:
    """[turns] Σ_k≥t γ^(k-t) r_k."""
    returns = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        following = returns[t] = rewards[t] + gamma * following
    return returns
