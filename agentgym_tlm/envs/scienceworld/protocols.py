"""Which tasks, variations, simplifications and turn limits a published result was measured with, by name.

``short``
    Nine tasks that the expert finishes in at most 8 turns when it may teleport: for small models.
``full``
    All 30 tasks and 7,207 variations, simplified as ``easy``.
``eto``
    The protocol of ETO (Song et al., 2024, arXiv:2403.02502) and of the papers that compare with it: 24 tasks, easy,
    a turn limit per task; ``valid_seen`` is its choice of 194 items of the development split, ``valid_unseen`` the
    first ten test variations of each task, 211 in all. Its metric is the mean of ``best_score``. ETO trained on 1,483
    items, of which 357 lie in the development split, 54 of them among the 194. Here ``train`` is the official training
    split of the 24 tasks instead, so that what is trained here has not seen ``valid_seen``.
``eto-clean``
    ``eto`` without those 54, for models that were trained on ETO's own list.
``agentgym``
    The 23 tasks of AgentGym (Xi et al., 2024, arXiv:2406.04151), no simplification, 30 turns. Its lists of 2,120
    training and 200 evaluation items index a running number of its own and are not reproduced: the splits are the
    official ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentgym_tlm.envs.scienceworld.tasks import TASKS
from agentgym_tlm.errors import ConfigError

TURN_LIMITS = {
    "boil": 100,
    "melt": 80,
    "freeze": 80,
    "change-the-state-of-matter-of": 80,
    "use-thermometer": 30,
    "measure-melting-point-known-substance": 120,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 30,
    "test-conductivity": 30,
    "test-conductivity-of-unknown-substances": 30,
    "find-living-thing": 15,
    "find-non-living-thing": 15,
    "find-plant": 15,
    "find-animal": 15,
    "grow-plant": 30,
    "grow-fruit": 60,
    "chemistry-mix": 60,
    "chemistry-mix-paint-secondary-color": 15,
    "chemistry-mix-paint-tertiary-color": 30,
    "lifespan-longest-lived": 10,
    "lifespan-shortest-lived": 10,
    "lifespan-longest-lived-then-shortest-lived": 12,
    "identify-life-stages-1": 30,
    "identify-life-stages-2": 30,
}
"""Turns that ETO allows, for its 24 tasks."""
_LONG_TASKS_LIMIT = 200
"""Turns for the six tasks that ETO leaves out, most of which the expert needs more than 100 for."""

_ETO_SEEN = {
    "boil": (14, 15, 16, 17, 19, 20),
    "use-thermometer": (284, 285, 291, 314, 358, 360, 364, 378, 384, 385),
    "measure-melting-point-known-substance": (253, 280, 281, 286, 287, 292, 299, 300, 325, 326),
    "power-component": (11, 12, 13),
    "power-component-renewable-vs-nonrenewable-energy": (10, 13, 14),
    "test-conductivity": (474, 479, 485, 523, 528, 579, 587, 640, 655, 662),
    "test-conductivity-of-unknown-substances": (313, 352, 376, 386, 389, 394, 409, 413, 418, 448),
    "find-living-thing": (161, 180, 186, 202, 206, 209, 214, 216, 218, 221),
    "find-non-living-thing": (150, 158, 179, 184, 185, 187, 192, 198, 209, 214),
    "find-plant": (154, 164, 165, 175, 177, 179, 181, 203, 206, 209),
    "find-animal": (159, 173, 176, 188, 193, 211, 213, 216, 218, 221),
    "grow-plant": (64, 65, 68, 77, 78, 84, 85, 86, 87, 88),
    "grow-fruit": (62, 65, 68, 71, 72, 80, 84, 85, 88, 90),
    "lifespan-longest-lived": (66, 68, 72, 73, 78, 80, 83, 84, 88, 92),
    "lifespan-shortest-lived": (69, 70, 71, 76, 80, 82, 84, 85, 87, 91),
    "lifespan-longest-lived-then-shortest-lived": (64, 66, 67, 68, 69, 72, 78, 80, 85, 87),
}
"""Development variations that ETO evaluates on; of the other tasks, all."""
_ETO_LEAKED = {
    "use-thermometer": (284,),
    "measure-melting-point-known-substance": (280, 287, 326),
    "test-conductivity": (587,),
    "test-conductivity-of-unknown-substances": (386, 394),
    "find-living-thing": (180, 186, 206, 209, 214, 216),
    "find-non-living-thing": (150, 179, 184, 214),
    "find-plant": (164, 165, 175, 203, 206),
    "find-animal": (188, 193, 216, 218, 221),
    "grow-plant": (64, 78, 84, 85, 86),
    "grow-fruit": (68, 72, 80, 90),
    "lifespan-longest-lived": (72, 73, 78, 80, 83, 84, 92),
    "lifespan-shortest-lived": (69, 76, 80, 82, 84, 85, 91),
    "lifespan-longest-lived-then-shortest-lived": (64, 67, 72, 80),
}
"""Those of them that ETO also trained on."""


def _official_variations(task: str, split: str) -> Sequence[int]:
    return TASKS[task].variations(split)


@dataclass(frozen=True)
class Protocol:
    """A choice of tasks and conditions; ``turn_limits`` hold per task."""

    name: str
    tasks: tuple[str, ...]
    simplifications: str
    turn_limits: Mapping[str, int]
    choose: Callable[[str, str], Sequence[int]] = _official_variations
    """Variations of a task in a split."""


def _eto_variations(task: str, split: str) -> Sequence[int]:
    official = _official_variations(task, split)
    if split == "valid_seen":
        return _ETO_SEEN.get(task, official)
    return official[:10] if split == "valid_unseen" else official


def _eto_clean_variations(task: str, split: str) -> Sequence[int]:
    leaked = _ETO_LEAKED.get(task, ()) if split == "valid_seen" else ()
    return [variation for variation in _eto_variations(task, split) if variation not in leaked]


_SHORT = tuple(
    name
    for name in TASKS
    if name.startswith(("find-", "lifespan-")) or name in {"power-component", "chemistry-mix-paint-secondary-color"}
)
_AGENTGYM = tuple(name for name, task in TASKS.items() if task.number.partition("-")[0] not in {"5", "9", "10"})
_ALL_LIMITS = {name: TURN_LIMITS.get(name, _LONG_TASKS_LIMIT) for name in TASKS}

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("short", _SHORT, "easy", TURN_LIMITS),
        Protocol("full", tuple(TASKS), "easy", _ALL_LIMITS),
        Protocol("eto", tuple(TURN_LIMITS), "easy", TURN_LIMITS, _eto_variations),
        Protocol("eto-clean", tuple(TURN_LIMITS), "easy", TURN_LIMITS, _eto_clean_variations),
        Protocol("agentgym", _AGENTGYM, "none", dict.fromkeys(_AGENTGYM, 30)),
    )
}


def find_protocol(name: str) -> Protocol:
    """Raises ConfigError when there is none of this name."""
    try:
        return PROTOCOLS[name]
    except (KeyError, TypeError):
        raise ConfigError(f"no protocol {name!r}; there are {', '.join(PROTOCOLS)}") from None
