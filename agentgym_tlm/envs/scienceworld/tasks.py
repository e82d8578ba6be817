"""The 30 tasks of ScienceWorld, their 7,207 variations, and the official splits.

Facts about ScienceWorld 1.2.3, kept here so that the tasks can be listed without starting Java; a test compares them
with the simulator. A task is always named, never numbered: the order of the simulator's own list has changed between
versions, and with it the meaning of every index into it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_tlm.errors import ConfigError

SPLITS = ("train", "valid_seen", "valid_unseen")
OFFICIAL_NAMES = {"dev": "valid_seen", "test": "valid_unseen"}
"""ScienceWorld's own names of two splits -> the names that they have in all environments."""


@dataclass(frozen=True)
class Task:
    """One kind of task; ``number`` is the paper's, ``electrical`` says that it cannot be done without wiring."""

    number: str
    name: str
    n_variations: int
    electrical: bool = False

    def variations(self, split: str) -> range:
        """The split's variations: the first half for training, a quarter each for development and test."""
        quarter = self.n_variations // 4
        bounds = (0, 2 * quarter, 3 * quarter, self.n_variations)
        i = SPLITS.index(split)
        return range(bounds[i], bounds[i + 1])


TASKS = {
    task.name: task
    for task in (
        Task("1-1", "boil", 30),
        Task("1-2", "melt", 30),
        Task("1-3", "freeze", 30),
        Task("1-4", "change-the-state-of-matter-of", 30),
        Task("2-1", "use-thermometer", 540),
        Task("2-2", "measure-melting-point-known-substance", 436),
        Task("2-3", "measure-melting-point-unknown-substance", 300),
        Task("3-1", "power-component", 20, electrical=True),
        Task("3-2", "power-component-renewable-vs-nonrenewable-energy", 20, electrical=True),
        Task("3-3", "test-conductivity", 900, electrical=True),
        Task("3-4", "test-conductivity-of-unknown-substances", 600, electrical=True),
        Task("4-1", "find-living-thing", 300),
        Task("4-2", "find-non-living-thing", 300),
        Task("4-3", "find-plant", 300),
        Task("4-4", "find-animal", 300),
        Task("5-1", "grow-plant", 126),
        Task("5-2", "grow-fruit", 126),
        Task("6-1", "chemistry-mix", 32),
        Task("6-2", "chemistry-mix-paint-secondary-color", 36),
        Task("6-3", "chemistry-mix-paint-tertiary-color", 36),
        Task("7-1", "lifespan-longest-lived", 125),
        Task("7-2", "lifespan-shortest-lived", 125),
        Task("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
        Task("8-1", "identify-life-stages-1", 14),
        Task("8-2", "identify-life-stages-2", 10),
        Task("9-1", "inclined-plane-determine-angle", 168),
        Task("9-2", "inclined-plane-friction-named-surfaces", 1386),
        Task("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
        Task("10-1", "mendelian-genetics-known-plant", 120),
        Task("10-2", "mendelian-genetics-unknown-plant", 480),
    )
}


def split_name(name: str) -> str:
    """The split's name in this package. Raises ConfigError for a name that is none."""
    name = OFFICIAL_NAMES.get(name, name) if isinstance(name, str) else name
    if name not in SPLITS:
        raise ConfigError(
            f"ScienceWorld has the splits {', '.join(SPLITS)} (the last two also as dev and test), not {name!r}"
        )
    return name


def task_names(names: str | Collection[str]) -> tuple[str, ...]:
    """The names, in the order of ``TASKS``; a string may be several with commas.

    Raises ConfigError for an unknown one, or when there is none.
    """
    wanted = set(several("tasks", names.split(",") if isinstance(names, str) else names, str))
    wanted = {name.strip() for name in wanted if name.strip()}
    if unknown := sorted(wanted - TASKS.keys()):
        close = [name for name in TASKS if any(word in name for word in unknown)] or list(TASKS)
        raise ConfigError(f"no such ScienceWorld tasks: {unknown}; there are {', '.join(close)}")
    if not wanted:
        raise ConfigError("tasks is empty: name at least one task, or leave it out")
    return tuple(name for name in TASKS if name in wanted)


def several(option: str, value: Any, kind: type) -> list[Any]:
    """One value of a kind, or a collection of them, as a list. Raises ConfigError for anything else."""
    values = [value] if isinstance(value, kind) else value
    if not isinstance(values, Collection) or isinstance(values, (str, Mapping)):
        values = [None]
    if not all(isinstance(each, kind) for each in values):
        raise ConfigError(f"{option} must be of type {kind.__name__}, or several of them in a list, not {value!r}")
    return list(values)


def parse_task_id(task_id: str) -> tuple[str, int]:
    """Task name and variation of an id such as ``boil/0``."""
    name, _, variation = task_id.rpartition("/")
    return name, int(variation)
