"""The reference: the same games played by TextWorld itself, behind the native engine's interface.

Hazards of the stock stack, and what is done about them here:

1. Its parsers and translator are module globals, so threads corrupt each other: every call holds one lock.
2. The translator overwrites ``sys.argv`` and swaps ``sys.stdout``; importing ``alfworld`` sets ``$ALFWORLD_DATA``: all
   are put back. (What another thread prints while a game loads is lost.)
3. Every TextWorld environment maps a 33 MB planner library that is never unmapped: environments are reused, so there
   are never more of them than engines alive at one time.
4. Game files are handed over in memory: nothing is written to disk but the planner library's own temporary copy.
5. Its parsers keep their last exception, and with it the frames and local variables of every caller: it is dropped.
6. There is no state to copy: clones and pickles replay their actions, at about 1.4 s and 50 ms per action.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from agentgym_tlm.envs.alfworld.engine import PLACE_COMMAND, PLACE_FEEDBACK, PLACE_HELP, ActionStyle
from agentgym_tlm.envs.alfworld.problem import World
from agentgym_tlm.errors import DependencyError

_LOCK = threading.RLock()
_PARSER_MODULES = {"textworld.logic", "textworld.envs.pddl.logic", "textworld.envs.pddl.textgen"}
_IDLE: list[Any] = []  # TextWorld environments whose engine is gone


class TextWorldEngine:
    """One game being played by TextWorld; same methods as :class:`~agentgym_tlm.envs.alfworld.engine.NativeEngine`.

    Raises DependencyError where ``alfworld`` and ``textworld`` are not installed.
    """

    def __init__(self, world: World, action_style: ActionStyle = "move") -> None:
        self.world = world
        self.action_style: ActionStyle = action_style
        require_textworld()
        with _contained():
            self._env = _IDLE.pop() if _IDLE else _make_env()
            self._finalizer = weakref.finalize(self, _IDLE.append, self._env)
            self._env.load(_game_file(world, action_style))
            self._names = _show_names(self._env)
        self.reset()

    def reset(self) -> str:
        """Start over; returns the first observation, welcome line and task sentence included."""
        self.action_valid = True
        self._actions: list[str] = []
        with _contained():
            self._state = self._env.reset()
        return str(self._state.feedback)

    def step(self, action: str) -> str:
        """Play one command and return the feedback."""
        self.action_valid = action.strip() in self._state["admissible_commands"]
        self._actions.append(action)
        with _contained():
            self._state, _, _ = self._env.step(action)
        return str(self._state.feedback)

    def admissible_commands(self) -> list[str]:
        """All commands that do something now, sorted."""
        return list(self._state["admissible_commands"])

    @property
    def won(self) -> bool:
        """Whether the goal holds now, in TextWorld's own word."""
        return bool(self._state["won"])

    @property
    def goal_fraction(self) -> float:
        """Share of the goal's conditions that hold now: see :meth:`World.goal_fraction`."""
        world = self.world
        objects = {name: i for i, name in enumerate(world.objects)}
        receptacles = {name: i for i, name in enumerate(world.receptacles)}
        facts: dict[str, list[list[str]]] = {}
        for fact in self._state["_facts"]:
            names = [self._names[argument.name] for argument in fact.arguments]
            facts.setdefault(fact.name, []).append(names)
        contents: list[list[int]] = [[] for _ in receptacles]
        for o, r in facts.get("inreceptacle", []):
            contents[receptacles[r]].append(objects[o])
        [(_, agent_at)] = facts["atlocation"]
        here = [receptacles[r] for r, place in facts["receptacleatlocation"] if place == agent_at]
        return world.goal_fraction(
            contents=contents,
            treated=[objects[o] for [o] in facts.get(world.goal.treated or "", [])],
            toggled=[objects[o] for [o] in facts.get("istoggled", [])],
            held=next((objects[o] for _, o in facts.get("holds", [])), None),
            location=world.locations[here[0]] if here else world.start_location,
        )

    def clone(self) -> TextWorldEngine:
        """Independent copy, made by replaying the actions in another TextWorld environment."""
        return _replay(self.world, self.action_style, self._actions)

    def close(self) -> None:
        """Give the TextWorld environment back; the engine cannot be used afterwards. Safe to call twice."""
        self._finalizer()
        self.__dict__.pop("_env", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _replay, (self.world, self.action_style, list(self._actions))


def require_textworld() -> None:
    """Raise DependencyError unless ``alfworld`` and ``textworld`` are installed."""
    for name in ("alfworld", "textworld"):
        if importlib.util.find_spec(name) is None:
            raise DependencyError(
                f"engine='textworld' needs the package {name}: pip install 'agentgym-tlm[alfworld]' (Linux and macOS)"
            )


def _replay(world: World, action_style: ActionStyle, actions: list[str]) -> TextWorldEngine:
    engine = TextWorldEngine(world, action_style)
    for action in actions:
        engine.step(action)
    return engine


@contextmanager
def _contained() -> Iterator[None]:
    """One thread at a time, and the process's globals as they were afterwards."""
    with _LOCK:
        argv, stdout, data = sys.argv, sys.stdout, os.environ.get("ALFWORLD_DATA")
        try:
            yield
        finally:
            for name in _PARSER_MODULES & sys.modules.keys():
                sys.modules[name]._PARSER._furthest_exception = None
            sys.argv, sys.stdout = argv, stdout
            if data is None:
                os.environ.pop("ALFWORLD_DATA", None)
            else:
                os.environ["ALFWORLD_DATA"] = data


def _make_env() -> Any:
    import textworld
    from textworld.envs.pddl import PddlEnv

    return PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))


def _show_names(env: Any) -> dict[str, str]:
    """Name the entities as ALFWorld does; returns PDDL id -> shown name."""
    from alfworld.agents.utils.misc import Demangler

    demangler = Demangler(game_infos=env._entity_infos)
    for info in env._entity_infos.values():
        info.name = demangler.demangle_alfred_name(info.id)
    return {name: info.name for name, info in env._entity_infos.items()}


def _game_file(world: World, action_style: ActionStyle) -> dict[str, Any]:
    """What ``game.tw-pddl`` holds, with the domain and the grammar of the installed ``alfworld``."""
    domain, grammar = _logic()
    if action_style == "put":
        for forms, arguments in (
            (PLACE_COMMAND, ("{o}", "{r}")),
            (PLACE_FEEDBACK, ("{o.name}", "{r.name}")),
            ({style: line.rstrip() for style, line in PLACE_HELP.items()}, ()),
        ):
            grammar = grammar.replace(forms["move"].format(*arguments), forms["put"].format(*arguments))
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL.", world.game.task),
        "pddl_problem": world.game.pddl_problem,
        "solvable": world.game.solvable,
        "walkthrough": list(world.game.walkthrough),
    }


@cache
def _logic() -> tuple[str, str]:
    """ALFWorld's domain and grammar, read without importing the package (which sets an environment variable)."""
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    data = Path(spec.submodule_search_locations[0]) / "data"
    return (data / "alfred.pddl").read_text(encoding="utf-8"), (data / "alfred.twl2").read_text(encoding="utf-8")
