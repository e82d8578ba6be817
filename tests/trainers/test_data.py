"""Which examples an update learns from depends on the seed alone; how it is cut up keeps padding small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.trainers.data import BatchPlan


@given(
    lengths=st.lists(st.integers(1, 500), min_size=1, max_size=60),
    micro=st.integers(1, 5),
    accumulate=st.integers(1, 4),
    world=st.integers(1, 3),
)
def test_every_example_once_per_epoch(lengths: list[int], micro: int, accumulate: int, world: int) -> None:
    plans = [BatchPlan(lengths, 7, micro, accumulate, world, rank) for rank in range(world)]
    seen: list[int] = []
    for step in range(plans[0].updates_per_epoch, 2 * plans[0].updates_per_epoch):  # the second epoch
        members, _ = plans[0].update(step)
        shares = [plan.update(step)[1] for plan in plans]
        assert {len(share) for share in shares} == {len(shares[0])}  # processes stay in step
        flat = [i for share in shares for part in share for i in part]
        assert sorted(flat) == sorted(members)
        assert all(len(part) <= micro for share in shares for part in share)
        seen += members
    assert sorted(seen) == list(range(len(lengths)))


def test_updates_do_not_depend_on_how_they_are_split() -> None:
    """Micro-batches, accumulation and processes may be traded for each other without changing what is learnt."""
    lengths = list(range(100, 150))
    splits = [BatchPlan(lengths, 3, 8), BatchPlan(lengths, 3, 2, 4), BatchPlan(lengths, 3, 2, 2, 2, 1)]
    for step in range(10):
        assert len({tuple(plan.update(step)[0]) for plan in splits}) == 1


def test_rows_of_similar_length_share_a_forward() -> None:
    plan = BatchPlan([10, 500, 12, 480, 11, 490, 13, 470], 0, 4, 2)
    _, (long, short) = plan.update(0)
    assert sorted(long) == [1, 3, 5, 7]
    assert sorted(short) == [0, 2, 4, 6]


def test_seed_and_epoch_change_the_order() -> None:
    lengths = [1] * 30
    orders = {tuple(BatchPlan(lengths, seed, 30).update(0)[0]) for seed in (0, 1)}
    plan = BatchPlan(lengths, 0, 5)
    first, second = plan.update(0)[0], plan.update(6)[0]
    assert first != second
    assert BatchPlan(lengths, 0, 5).update(6)[0] == second
    assert orders == {tuple(range(30))}  # equal lengths are sorted by index inside an update


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to train on"):
        BatchPlan([], 0, 1)
