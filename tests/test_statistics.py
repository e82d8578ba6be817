"""The numbers that a reviewer checks: against scipy, by hand, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from agentgym_tlm.statistics import (
    Estimate,
    Floats,
    bootstrap_mean,
    holm,
    iqm,
    paired_difference,
    permutation_test,
    probability_of_improvement,
)


def test_permutation_test_is_exact_for_few_differences() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    differences = np.array([0.5, 1.0, -0.25, 0.75, 1.0, -1.0, 0.125])
    exact = scipy_stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", vectorized=False, n_resamples=np.inf
    )
    assert permutation_test(differences) == pytest.approx(exact.pvalue)


def test_permutation_test_of_wins_and_losses_is_the_sign_test() -> None:
    """Of binary outcomes the sum is binomial: 40 tasks that only one trainer solved against 20 of the other."""
    scipy_stats = pytest.importorskip("scipy.stats")
    differences = np.array([1.0] * 40 + [-1.0] * 20 + [0.0] * 200)
    exact = scipy_stats.binomtest(40, 60).pvalue
    assert permutation_test(differences) == pytest.approx(exact, abs=3 * (exact / 10_000) ** 0.5)
    assert permutation_test(differences) == permutation_test(differences)


def test_permutation_test_by_hand() -> None:
    """Of the 8 sign changes of three ones, two are as far out; zeros and failures tell nothing."""
    assert permutation_test(np.array([1.0, 1.0, 1.0, 0.0, np.nan])) == 2 / 8
    assert permutation_test(np.array([0.0, np.nan])) == 1.0


def test_iqm_is_a_trimmed_mean() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).random((5, 6))
    assert iqm(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25, axis=None))
    assert iqm(np.array([0.0, 1.0, 2.0, np.nan, 100.0])) == 1.5
    assert np.isnan(iqm(np.array([np.nan])))


def test_probability_of_improvement_is_the_mann_whitney_statistic() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    x, y = rng.integers(4, size=(5, 3)).astype(float), rng.integers(4, size=(4, 3)).astype(float)
    expected = [scipy_stats.mannwhitneyu(x[:, k], y[:, k]).statistic / 20 for k in range(3)]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(expected))


def test_probability_of_improvement_by_hand() -> None:
    """Two runs against two: (1, 3) over (2, 1) is won, won, lost and drawn."""
    assert probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[2.0], [1.0]])) == (2 + 0.5) / 4
    assert probability_of_improvement(np.array([[1.0], [np.nan]]), np.array([[0.0], [0.0]])) == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.9]) == [1.0, 1.0]


def test_one_seed_has_the_interval_of_its_tasks() -> None:
    """Of one stratum the standard error of a rate is sqrt(p (1 - p) / n)."""
    outcomes = np.array([[1.0] * 120 + [0.0] * 80])
    value, low, high = bootstrap_mean(outcomes)
    half = 1.96 * (0.6 * 0.4 / 200) ** 0.5
    assert (value, low, high) == pytest.approx((0.6, 0.6 - half, 0.6 + half), abs=0.006)


def test_task_types_are_strata() -> None:
    """A type that is always solved and one that never is: there is no noise, however the tasks of a type are drawn."""
    outcomes = np.array([[1.0] * 10 + [0.0] * 30])
    assert bootstrap_mean(outcomes, ["a"] * 10 + ["b"] * 30) == Estimate(0.25, 0.25, 0.25)
    assert bootstrap_mean(outcomes).low < 0.2


def test_tasks_of_types_of_their_own_are_resampled_together() -> None:
    """Four tasks of four types: drawing each from itself would show no noise, and any difference would look sure."""
    outcomes = np.array([[1.0, 0.0, -1.0, 1.0]])
    assert bootstrap_mean(outcomes, list("abcd")) == bootstrap_mean(outcomes)
    assert not bootstrap_mean(outcomes, list("abcd")).excludes_zero
    assert bootstrap_mean(np.repeat(outcomes, 2, axis=1), list("abcdabcd")).low < 0.25


def test_differences_that_are_all_alike_are_not_sure_beyond_the_number_of_tasks() -> None:
    """Two policies that did the same on 16 tasks may differ on others: up to Wilson's z^2 / (n + z^2) of them."""
    same, ones = np.zeros((2, 16)), np.ones((2, 16))
    unseen = 1.959964**2 / (16 + 1.959964**2)
    assert paired_difference(same, same) == pytest.approx((0, -unseen, unseen))
    assert paired_difference(ones, same) == pytest.approx((1, 1 - 2 * unseen, 1))
    assert paired_difference(same, ones) == pytest.approx((-1, -1, -1 + 2 * unseen))
    assert paired_difference(np.zeros((1, 1000)), np.zeros((1, 1000))).high < 0.004


def test_failures_of_machinery_are_no_outcomes() -> None:
    outcomes = np.array([[1.0, np.nan, 0.0], [1.0, 1.0, np.nan]])
    assert bootstrap_mean(outcomes).value == 3 / 4
    assert paired_difference(outcomes, np.zeros((2, 3))).value == 3 / 4
    assert np.isnan(bootstrap_mean(np.full((2, 2), np.nan)).value)


def test_pairing_takes_the_difficulty_of_tasks_out() -> None:
    """Two trainers that solve the same tasks, but for a few: the difference is sure though the rates are not."""
    rng = np.random.default_rng(0)
    base = np.repeat(rng.random((1, 100)) < 0.5, 5, axis=0).astype(float)
    better = base.copy()
    better[:, :10] = 1.0
    difference = paired_difference(better, base)
    assert difference.excludes_zero
    rate = bootstrap_mean(base)
    assert difference.high - difference.low < 0.8 * (rate.high - rate.low)


def _outcomes(rng: np.random.Generator, seeds: int, tasks: int, seed_effect: float, task_effect: float) -> Floats:
    """Paired differences of two equally good trainers: -1, 0 or 1, more often one of them for some seeds and tasks."""
    shift = rng.normal(0, seed_effect, (seeds, 1)) + rng.normal(0, task_effect, (1, tasks))
    chance = np.clip(shift, -0.25, 0.25)
    u = rng.random((seeds, tasks))
    return (u < (0.25 + chance) / 2).astype(float) - (u > 1 - (0.25 - chance) / 2)


@pytest.mark.parametrize(("seeds", "seed_effect", "task_effect"), [(5, 0.0, 0.0), (5, 0.05, 0.1), (3, 0.02, 0.05)])
def test_intervals_cover_what_they_claim(seeds: int, seed_effect: float, task_effect: float) -> None:
    """Of 200 comparisons of equals at least 93% must not see a difference, be it in seeds, in tasks or in luck."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        estimate = bootstrap_mean(_outcomes(rng, seeds, 60, seed_effect, task_effect), draws=500)
        covered += not estimate.excludes_zero
    assert covered >= 186
