"""How to act, as the first observation tells it."""

from __future__ import annotations

from collections.abc import Collection

_FORMS = (
    "go to PLACE, look around, look at THING, look in THING, read THING, open THING, close THING, pick up THING, "
    "put down THING, move THING to THING, pour THING into THING, dunk THING into THING, mix THING, use THING on THING, "
    "activate THING, deactivate THING, eat THING, flush THING"
)
_ENDING = "focus on THING, inventory, objects, task, wait, wait1"
_WARNING = (
    "Do not use focus on for looking: it is for what the task tells you to focus on, and for nothing else. A wrong "
    "focus loses the task at once, and for good; so does a wrong answer."
)


def how_to_act(simplifications: Collection[str]) -> str:
    """The forms of the actions that there are with these simplifications, and what loses the task."""
    forms = [_FORMS]
    if "noElectricalAction" not in simplifications:
        forms.append("connect THING to THING, disconnect THING")
    if "teleportAction" in simplifications:
        forms.append("teleport to PLACE")
    return f"Act with these commands: {', '.join([*forms, _ENDING])}.\n{_WARNING}"
