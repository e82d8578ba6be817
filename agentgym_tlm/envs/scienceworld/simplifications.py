"""What can be made easier, by name; presets are spelled out.

``easy`` is the preset that nearly all published results use. It is the simulator's own: no electrical actions except
in the electricity tasks, and *not* ``openContainers``, whatever the paper and ScienceWorld's documentation say
(allenai/ScienceWorld#76). The word itself is never sent to the simulator, which understands it in some places only.
"""

from __future__ import annotations

from collections.abc import Collection

from agentgym_tlm.envs.scienceworld.tasks import TASKS, several
from agentgym_tlm.errors import ConfigError

SIMPLIFICATIONS = {
    "noElectricalAction": "no connecting and disconnecting of wires",
    "openContainers": "containers are open",
    "openDoors": "doors are open",
    "selfWateringFlowerPots": "flower pots water themselves",
    "teleportAction": "`teleport to ROOM` instead of walking",
}
"""Name -> what it does, in the order in which they are sent to the simulator."""

PRESETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "easy": ("noElectricalAction", "openDoors", "selfWateringFlowerPots", "teleportAction"),
}
"""``noElectricalAction`` of ``easy`` is left out for the tasks that need it."""


def parse(simplifications: str | Collection[str]) -> str:
    """A preset's name, or names with commas, in the simulator's order. Raises ConfigError for anything else.

    A string is a preset, one simplification, or several with commas.
    """
    if isinstance(simplifications, str):
        if simplifications in PRESETS:
            return simplifications
        simplifications = [name.strip() for name in simplifications.split(",") if name.strip()]
    names = set(several("simplifications", simplifications, str))
    if presets := sorted(names & PRESETS.keys()):
        raise ConfigError(
            f"the preset {presets[0]!r} stands alone; spell it out to add to it: {', '.join(PRESETS[presets[0]])}"
        )
    if unknown := sorted(names - SIMPLIFICATIONS.keys()):
        raise ConfigError(
            f"no such simplifications: {unknown}; there are {', '.join(SIMPLIFICATIONS)} and the presets "
            f"{' and '.join(PRESETS)}"
        )
    return ",".join(name for name in SIMPLIFICATIONS if name in names) or "none"


def for_task(simplifications: str, task: str) -> str:
    """What the simulator is given: ``simplifications`` as ``parse`` returns it, without presets.

    Raises ConfigError when the task cannot be done so.
    """
    electrical = TASKS[task].electrical
    names = PRESETS.get(simplifications)
    if names is None:
        names = tuple(simplifications.split(","))
        if electrical and "noElectricalAction" in names:
            raise ConfigError(f"{task} cannot be done with noElectricalAction: leave out one of the two")
    return ",".join(
        name for name in SIMPLIFICATIONS if name in names and not (electrical and name == "noElectricalAction")
    )
