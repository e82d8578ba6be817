"""Groups and what their members are worth, by hand: advantages decide what every group method learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentgym_tlm.trainers.groups import (
    Array,
    Baseline,
    by_group,
    discounted_returns,
    penalties,
    relative_to_group,
    turn_scores,
)
from tests.trainers.toys import played

A, B, C = (
    played([1.0]),
    played([0.0, 1.0], valid=[False, True]),
    played([0.0, 0.0, 0.0], valid=[True, False, False]),
)
GROUP = [A, B, C]


def scores(over: Baseline) -> list[Array]:
    return [turn_scores(10.0 * each.episode_return, penalties(each, 0.1, "malformed"), over) for each in GROUP]


def test_groups_keep_the_order_of_their_episodes() -> None:
    """Examples and advantages are matched by position."""
    episodes = [played([0.0], task=task, seed=i) for i, task in enumerate("abacb")]
    assert by_group(episodes) == [[episodes[0], episodes[2]], [episodes[1], episodes[4]], [episodes[3]]]


def test_penalties_are_for_what_breaks_the_format_or_for_what_is_refused() -> None:
    """Unreadable, out of form, well formed but refused, fine."""
    episode = played([0.0] * 4, valid=[False, False, False, True])
    episode.turns[0].action = None
    episode.turns[0].well_formed = episode.turns[2].well_formed = True
    assert penalties(episode, 0.5, "malformed").tolist() == [0.5, 0.5, 0, 0]
    assert penalties(episode, 0.5, "refused").tolist() == [0.5, 0.5, 0.5, 0]


def test_scores_over_trajectories() -> None:
    """10 per success and -0.1 per invalid action, of the episode, in every turn."""
    first, second, third = scores("trajectories")
    np.testing.assert_allclose(first, [10.0])
    np.testing.assert_allclose(second, [9.9, 9.9])
    np.testing.assert_allclose(third, [-0.2, -0.2, -0.2])


def test_scores_over_turns() -> None:
    """A turn bears its own penalty and no other's."""
    first, second, third = scores("turns")
    np.testing.assert_allclose(first, [10.0])
    np.testing.assert_allclose(second, [9.9, 10.0])
    np.testing.assert_allclose(third, [0.0, -0.1, -0.1])


def test_baseline_over_trajectories() -> None:
    """Mean 19.7 / 3, each episode once, however long; sample deviation over n - 1 = 2."""
    mean = (10 + 9.9 - 0.2) / 3
    std = math.sqrt(((10 - mean) ** 2 + (9.9 - mean) ** 2 + (-0.2 - mean) ** 2) / 2)
    plain = relative_to_group(scores("trajectories"), "trajectories", std=False)
    scaled = relative_to_group(scores("trajectories"), "trajectories", std=True)
    for found, over, expected in zip(plain, scaled, (10 - mean, 9.9 - mean, -0.2 - mean), strict=True):
        np.testing.assert_allclose(found, [expected] * len(found))
        np.testing.assert_allclose(over, [expected / (std + 1e-6)] * len(found))
    assert [len(each) for each in plain] == [1, 2, 3]


def test_baseline_over_turns() -> None:
    """Mean over all six turns, 29.7 / 6: the long failure weighs three times as much as the short success."""
    values = [10, 9.9, 10, 0, -0.1, -0.1]
    mean = 29.7 / 6
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / 5)
    plain = relative_to_group(scores("turns"), "turns", std=False)
    scaled = relative_to_group(scores("turns"), "turns", std=True)
    np.testing.assert_allclose(np.concatenate(plain), [value - mean for value in values])
    np.testing.assert_allclose(np.concatenate(scaled), [(value - mean) / (std + 1e-6) for value in values])


@pytest.mark.parametrize("over", ["trajectories", "turns"])
def test_leave_one_out_is_the_mean_over_the_others(over: Baseline) -> None:
    """n / (n - 1) times the distance to the mean over all, against a loop that leaves each out."""
    given = scores(over)
    found = relative_to_group(given, over, std=False, leave_one_out=True)
    if over == "trajectories":
        singles = [each[0] for each in given]
        for i, advantages in enumerate(found):
            others = [value for j, value in enumerate(singles) if j != i]
            np.testing.assert_allclose(advantages, [singles[i] - sum(others) / len(others)] * len(advantages))
        return
    flat = np.concatenate(given)
    for i, advantage in enumerate(np.concatenate(found)):
        assert advantage == pytest.approx(flat[i] - np.delete(flat, i).mean())


@pytest.mark.parametrize("over", ["trajectories", "turns"])
@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("alike", [0.1 + 0.2, 1.0])
def test_equal_scores_have_no_advantage(over: Baseline, std: bool, alike: float) -> None:
    """Exactly 0, so that rounding divided by a deviation of rounding is never learnt from."""
    group = [np.full(length, alike) for length in (3, 1, 7)]
    for found in relative_to_group(group, over, std=std):
        assert (found == 0).all()


@pytest.mark.parametrize("over", ["trajectories", "turns"])
def test_scores_that_differ_by_rounding_are_equal(over: Baseline) -> None:
    """Rewards of 0.1 and 0.2 are as good as one of 0.3: their group is degenerate, and is left out where asked for."""
    rewards = [(0.1, 0.2), (0.3,), (0.1, 0.1, 0.1)]
    assert len({sum(each) for each in rewards}) > 1
    group = [np.full(len(each), 10 * sum(each)) for each in rewards]
    for found in relative_to_group(group, over, std=True):
        assert (found == 0).all()


def test_group_of_one_has_no_advantage() -> None:
    """All others may have been lost to failures of the environment; with mean 0 its own return would be one."""
    for leave_one_out in (True, False):
        (alone,) = relative_to_group([np.full(2, 10.0)], "trajectories", std=True, leave_one_out=leave_one_out)
        assert (alone == 0).all()


def test_discounted_returns() -> None:
    assert discounted_returns([1.0, 0.0, 2.0], 0.5).tolist() == [1.0 + 0.5, 1.0, 2.0]
    assert discounted_returns([1.0, 0.0, 2.0], 0.0).tolist() == [1.0, 0.0, 2.0]
    assert discounted_returns([1.0, 0.0, 2.0], 1.0).tolist() == [3.0, 2.0, 2.0]
