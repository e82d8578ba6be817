"""Intervals are what mathematics says, ends and nan included: a wrong option must not slip through."""

from __future__ import annotations

import math

import pytest

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.ranges import COUNT, SEED, check_range, check_splits


@pytest.mark.parametrize(
    ("value", "interval"),
    [(0, "[0, 1)"), (0.5, "(0, 1)"), (1, "(0, 1]"), (None, COUNT), (math.inf, "(0, inf]"), (0, SEED)],
)
def test_inside(value: float | None, interval: str) -> None:
    check_range("x", value, interval)


@pytest.mark.parametrize(
    ("value", "interval"),
    [(1, "[0, 1)"), (0, "(0, 1)"), (2, "(0, 1]"), (0, COUNT), (math.inf, COUNT), (math.nan, "[0, inf]"), (-1, SEED)],
)
def test_outside(value: float, interval: str) -> None:
    with pytest.raises(ConfigError, match="x must be in"):
        check_range("x", value, interval)


@pytest.mark.parametrize("splits", [(), ("valid_seen", "valid_seen")])
def test_splits_are_some_and_different(splits: tuple[str, ...]) -> None:
    """A split that is named twice would be played once and counted twice."""
    with pytest.raises(ConfigError, match="splits"):
        check_splits(splits)
