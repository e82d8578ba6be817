"""Ranges of options, checked where the options are made, so that a wrong one is found before any work is done."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from agentgym_tlm.errors import ConfigError

SEED = "[0, 2147483647]"
"""What every random generator takes, with room for the seeds made from it."""
COUNT = "[1, inf)"
"""Numbers of things of which there must be one."""


def check_range(name: str, value: Any, interval: str) -> None:
    """Raise ConfigError unless ``value`` is in an interval such as ``[0, 1)``; None always is, nan never."""
    low, high = map(float, interval[1:-1].split(","))
    if value is None:
        return
    if not isinstance(value, Real):
        raise ConfigError(f"{name} must be a number in {interval}, not {value!r}")
    number = float(value)
    if low < number < high:
        return
    if not ((number == low and interval[0] == "[") or (number == high and interval[-1] == "]")):
        raise ConfigError(f"{name} must be in {interval}, not {value}")


def check_count(name: str, value: Any, interval: str = COUNT) -> None:
    """Raise ConfigError unless ``value`` is a whole number in ``interval``; None always is."""
    if value is not None and not isinstance(value, Integral):
        raise ConfigError(f"{name} must be a whole number in {interval}, not {value!r}")
    check_range(name, value, interval)


def check_ranges(options: object, **intervals: str) -> None:
    """:func:`check_range` of attributes of ``options``, by name."""
    for name, interval in intervals.items():
        check_range(name, getattr(options, name), interval)


def check_splits(splits: tuple[str, ...]) -> None:
    """Raise ConfigError unless there is a split, and none of them twice."""
    if not splits or len(set(splits)) < len(splits):
        raise ConfigError(f"splits must name at least one split, and each once, not {' '.join(splits) or 'nothing'}")
