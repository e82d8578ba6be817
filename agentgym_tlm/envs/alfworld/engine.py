"""ALFWorld's dynamics in Python: text, admissible commands and success identical to TextWorld's, command for command.

The rules are those of ``alfred.pddl`` and the sentences those of ``alfred.twl2`` (ALFWorld 0.4, data format 2.1.2; MIT,
(c) 2020 Mohit Shridhar and others). What players meet as quirks is kept, because published numbers depend on it:

1. ``go to X`` is refused for every receptacle at the place where the agent already stands.
2. ``examine <object>`` works for the held object only.
3. ``look`` away from every receptacle says "you see nothing", although the first observation listed the room.
4. An object listed in two receptacles (a pan on two burners) stays in the other one when it is taken.
5. ``use`` always turns a lamp *on*; clean, heat and cool ask for neither an open door nor an empty appliance; ``slice``
   reaches into closed receptacles.
6. ``look`` lists, as lying on the floor, what was taken from a receptacle here and put back elsewhere at this place.
7. Receptacles are never full; one object is held at a time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from agentgym_tlm.envs.alfworld.problem import World

ActionStyle = Literal["move", "put"]

NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-\n\n"
PLACE_COMMAND = {"move": "move {} to {}", "put": "put {} in/on {}"}
PLACE_FEEDBACK = {"move": "You move the {} to the {}.", "put": "You put the {} in/on the {}."}
PLACE_HELP = {
    "move": "  move (object) to (receptacle):  place an object in or on a receptacle\n",
    "put": "  put (object) in/on (receptacle):  place an object in or on a receptacle\n",
}
_HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
{place}  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


class Engine(Protocol):
    """One game being played: what the environment needs of the native engine and of TextWorld."""

    action_valid: bool  # whether the last command was admissible

    def reset(self) -> str:
        """Start over; returns the first observation, welcome line and task sentence included."""
        ...

    def step(self, action: str) -> str:
        """Play one command and return the feedback."""
        ...

    def admissible_commands(self) -> list[str]:
        """All commands that do something now, sorted."""
        ...

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        ...

    @property
    def goal_fraction(self) -> float:
        """Share of the goal's conditions that hold now: see :meth:`World.goal_fraction`."""
        ...

    def close(self) -> None:
        """Release what the game holds; it cannot be played afterwards."""
        ...


Command = tuple[Callable[["NativeEngine", int, int], str], int, int]  # what runs it, and its two arguments
Menu = tuple[dict[str, Command], list[str]]  # the admissible commands, and their sorted list


class NativeEngine:
    """One game being played. Holds no global state: engines may run in any number of threads or processes.

    Commands must match exactly, save for surrounding white space; anything else is answered "Nothing happens.".
    ``action_style`` is the wording of placing an object: ``move X to Y`` (data format 2.1.2) or ``put X in/on Y``
    (2.1.1). ``allow_revisit`` lifts quirk 1.
    """

    def __init__(self, world: World, action_style: ActionStyle = "move", *, allow_revisit: bool = False) -> None:
        self.world = world
        self.action_style: ActionStyle = action_style
        self.allow_revisit = allow_revisit
        self._standing: dict[int, dict[str, Command]] = {}  # commands that a place always has
        self.reset()

    def reset(self) -> str:
        """Start over; returns the first observation, welcome line and task sentence included."""
        world = self.world
        self.action_valid = True
        self._location = world.start_location
        self._held: int | None = None
        self._contents = [list(objects) for objects in world.start_contents]  # sorted, of each receptacle
        self._opened = set(world.start_opened)
        self._positions = set(world.start_positions)  # (object, location)
        self._taken_from: set[tuple[int, int]] = set()  # (object, receptacle), until it is put back there
        self._states = {name: set(world.affordances[name]) for name in _STATES}
        # What follows from the state and is remembered until it changes. The receptacles of a place change only while
        # the agent stands there, so that forgetting the place's menus (by held object) then is enough.
        self._menus: dict[int, dict[int | None, Menu]] = {}
        self._views: dict[int, str] = {}  # what each receptacle looks like
        self._fraction: float | None = None
        return f"{WELCOME}{self._introduction()}\n\nYour task is to: {world.game.task}"

    def step(self, action: str) -> str:
        """Play one command and return the feedback."""
        command = self._menu()[0].get(action.strip())
        self.action_valid = command is not None
        if command is None:
            return NOTHING_HAPPENS
        run, first, second = command
        return run(self, first, second)

    def admissible_commands(self) -> list[str]:
        """All commands that do something now, sorted."""
        return self._menu()[1].copy()

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        return self.goal_fraction == 1.0

    @property
    def goal_fraction(self) -> float:
        """Share of the goal's conditions that hold now: see :meth:`World.goal_fraction`."""
        if self._fraction is None:
            treated = self.world.goal.treated
            self._fraction = self.world.goal_fraction(
                self._contents,
                self._states[treated] if treated else (),
                self._states["istoggled"],
                self._held,
                self._location,
            )
        return self._fraction

    def clone(self) -> NativeEngine:
        """Independent copy of the running game; the static world is shared."""
        copy: NativeEngine = object.__new__(NativeEngine)
        copy.__dict__.update(self.__dict__)
        copy._contents = [objects.copy() for objects in self._contents]
        copy._opened = self._opened.copy()
        copy._positions = self._positions.copy()
        copy._taken_from = self._taken_from.copy()
        copy._states = {name: objects.copy() for name, objects in self._states.items()}
        copy._menus, copy._views = {}, self._views.copy()
        return copy

    def close(self) -> None:
        """Nothing to release."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_standing": {}, "_menus": {}, "_views": {}}

    # What can be done

    def _menu(self) -> Menu:
        menus = self._menus.get(self._location)
        if menus is None:
            menus = self._menus[self._location] = {}
        menu = menus.get(self._held)
        if menu is None:
            commands = self._standing_commands() | self._passing_commands()
            menu = menus[self._held] = commands, sorted(commands)
        return menu

    def _standing_commands(self) -> dict[str, Command]:
        """What can be done at this place whatever has happened."""
        world, engine, location = self.world, NativeEngine, self._location
        commands = self._standing.get(location)
        if commands is None:
            commands = self._standing[location] = {
                "look": (engine._look, 0, 0),
                "inventory": (engine._inventory, 0, 0),
                "help": (engine._help, 0, 0),
            }
            for r, name in enumerate(world.receptacles):
                if world.locations[r] == location:
                    commands[f"examine {name}"] = (engine._examine_receptacle, r, 0)
                if self.allow_revisit or world.locations[r] != location:
                    commands[f"go to {name}"] = (engine._go, r, 0)
        return commands

    def _passing_commands(self) -> dict[str, Command]:
        """What can be done here as things are now."""
        world, engine, location, held = self.world, NativeEngine, self._location, self._held
        able = world.affordances
        commands: dict[str, Command] = {}
        for r in world.here.get(location, ()):
            name = world.receptacles[r]
            if r in world.openable:
                if r in self._opened:
                    commands[f"close {name}"] = (engine._close, r, 0)
                else:
                    commands[f"open {name}"] = (engine._open, r, 0)
            for o in able["toggleable"].intersection(self._contents[r]):
                commands[f"use {world.objects[o]}"] = (engine._use, o, 0)
            if held is None and self._accessible(r):
                for o in self._contents[r]:
                    if o in able["pickupable"]:
                        commands[f"take {world.objects[o]} from {name}"] = (engine._take, o, r)
        if held is None:
            return commands

        thing = world.objects[held]
        commands[f"examine {thing}"] = (engine._examine_object, held, 0)
        place = PLACE_COMMAND[self.action_style]
        for r in world.here.get(location, ()):
            name = world.receptacles[r]
            if self._accessible(r) and (world.receptacle_types[r], world.object_types[held]) in world.can_contain:
                commands[place.format(thing, name)] = (engine._place, held, r)
            for verb, affordance, run in _TREATMENTS:
                if held in able[affordance] and r in world.appliances[verb]:
                    commands[f"{verb} {thing} with {name}"] = (run, held, r)
        if held in world.knives:
            for o in able["sliceable"]:
                if (o, location) in self._positions:
                    commands[f"slice {world.objects[o]} with {thing}"] = (engine._slice, o, held)
        return commands

    def _accessible(self, receptacle: int) -> bool:
        return receptacle not in self.world.openable or receptacle in self._opened

    # What it does, and what is said

    def _introduction(self) -> str:
        if self.world.here.get(self._location):
            return self._look(0, 0)
        return _in_the_middle([f"a {name}" for name in self.world.receptacles])

    def _look(self, _first: int, _second: int) -> str:
        world, location = self.world, self._location
        here = world.here.get(location)
        if not here:
            return _in_the_middle([])
        floor = [
            world.phrases[o] for o, r in sorted(self._taken_from) if r in here and (o, location) in self._positions
        ]
        facing = _listing([world.receptacles[r] for r in here])
        return f"You are facing the {facing}. Next to it, you see {_listing(floor)}."

    def _inventory(self, _first: int, _second: int) -> str:
        if self._held is None:
            return "You are not carrying anything."
        return f"You are carrying: {self.world.phrases[self._held]}."

    def _help(self, _first: int, _second: int) -> str:
        return _HELP.format(place=PLACE_HELP[self.action_style])

    def _go(self, r: int, _second: int) -> str:
        self._location = self.world.locations[r]
        if self._states["istoggled"]:
            self._fraction = None
        return f"You arrive at {self.world.receptacles[r]}. {self._examine_receptacle(r, 0)}"

    def _examine_receptacle(self, r: int, _second: int) -> str:
        view = self._views.get(r)
        if view is None:
            view = self._views[r] = self._look_at(r)
        return view

    def _look_at(self, r: int) -> str:
        world, name = self.world, self.world.receptacles[r]
        if not self._accessible(r):
            return f"The {name} is closed."
        contents = _listing([world.phrases[o] for o in self._contents[r]])
        if r in world.openable:
            return f"The {name} is open. In it, you see {contents}."
        return f"On the {name}, you see {contents}."

    def _examine_object(self, o: int, _second: int) -> str:
        world, name = self.world, self.world.objects[o]
        if o in world.affordances["isreceptacleobject"]:
            inside = _listing([world.phrases[inner] for inner in world.inside.get(o, ())])
            return f"This is a normal {name}. In it, you see {inside}."
        clean, hot, cool, sliced, toggled = (o in self._states[state] for state in _STATES)
        if sliced and (clean or hot or cool):
            prefix = "hot and clean" if clean and hot else "cool and clean" if clean and cool else ""
            return f"This is a {prefix or ('clean' if clean else 'hot' if hot else 'cool')} sliced {name}."
        if clean and (hot or cool):
            return f"This is a {'hot' if hot else 'cool'} and clean {name}."
        if hot or clean or cool:
            return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {name}."
        if toggled and o in world.affordances["toggleable"]:
            return f"This {name} is on."
        if sliced and o in world.affordances["sliceable"]:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    def _change(self, r: int) -> None:
        """Forget what followed from the state of a receptacle here."""
        self._menus.pop(self._location, None)
        self._views.pop(r, None)
        self._fraction = None

    def _open(self, r: int, _second: int) -> str:
        self._opened.add(r)
        self._change(r)
        return f"You open the {self.world.receptacles[r]}. {self._examine_receptacle(r, 0)}"

    def _close(self, r: int, _second: int) -> str:
        self._opened.remove(r)
        self._change(r)
        return f"You close the {self.world.receptacles[r]}."

    def _take(self, o: int, r: int) -> str:
        self._contents[r].remove(o)
        self._taken_from.add((o, r))
        self._positions.discard((o, self._location))
        self._held = o
        self._change(r)
        return f"You pick up the {self.world.objects[o]} from the {self.world.receptacles[r]}."

    def _place(self, o: int, r: int) -> str:
        if o not in self._contents[r]:
            insort(self._contents[r], o)
        self._taken_from.discard((o, r))
        self._positions.add((o, self._location))
        self._held = None
        self._change(r)
        return PLACE_FEEDBACK[self.action_style].format(self.world.objects[o], self.world.receptacles[r])

    def _clean(self, o: int, r: int) -> str:
        self._states["isclean"].add(o)
        self._fraction = None
        return f"You clean the {self.world.objects[o]} using the {self.world.receptacles[r]}."

    def _heat(self, o: int, r: int) -> str:
        self._states["ishot"].add(o)
        self._states["iscool"].discard(o)
        self._fraction = None
        return f"You heat the {self.world.objects[o]} using the {self.world.receptacles[r]}."

    def _cool(self, o: int, r: int) -> str:
        self._states["iscool"].add(o)
        self._states["ishot"].discard(o)
        self._fraction = None
        return f"You cool the {self.world.objects[o]} using the {self.world.receptacles[r]}."

    def _use(self, o: int, _second: int) -> str:
        self._states["istoggled"].add(o)
        self._fraction = None
        return f"You turn on the {self.world.objects[o]}."

    def _slice(self, o: int, knife: int) -> str:
        self._states["issliced"].add(o)
        return f"You sliced the {self.world.objects[o]} with the {self.world.objects[knife]}."


_STATES = ("isclean", "ishot", "iscool", "issliced", "istoggled")
_TREATMENTS = (
    ("clean", "cleanable", NativeEngine._clean),
    ("heat", "heatable", NativeEngine._heat),
    ("cool", "coolable", NativeEngine._cool),
)


def _in_the_middle(receptacles: Sequence[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {_listing(receptacles)}."


def _listing(items: Sequence[str]) -> str:
    """``nothing``, ``a``, ``a, and b``, ``a, b, and c``."""
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"
