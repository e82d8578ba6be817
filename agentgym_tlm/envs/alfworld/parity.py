"""Plays the native engine and TextWorld side by side, and says where they differ.

A comparison covers what a player can see: the observation, letter for letter, the sorted admissible commands, whether
the command was admissible, ``won``, and the goal fraction that is computed from each engine's own state.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any
from unittest.mock import patch

from agentgym_tlm.envs.alfworld.engine import ActionStyle, Engine, NativeEngine
from agentgym_tlm.envs.alfworld.env import normalize_action
from agentgym_tlm.envs.alfworld.problem import World
from agentgym_tlm.envs.alfworld.textworld_engine import TextWorldEngine

INVALID_SHARE = 0.05
_VERB_WEIGHTS = {"go": 2, "take": 4, "move": 4, "put": 4, "look": 1, "inventory": 0.5, "help": 0.2, "examine": 1}
_OTHER_VERBS = 2  # open, close, clean, heat, cool, use, slice


@dataclass
class Comparison:
    """What was compared, and the differences that were found."""

    steps: int = 0
    wins: int = 0
    invalid: int = 0
    verbs: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def add(self, other: Comparison) -> None:
        """Take in the outcome of another game."""
        self.steps += other.steps
        self.wins += other.wins
        self.invalid += other.invalid
        self.verbs += other.verbs
        self.differences += other.differences


def compare(world: World, seed: int = 0, steps: int = 40, action_style: ActionStyle = "move") -> Comparison:
    """Play a game on both engines: its walkthrough and then ``steps`` random actions, and again those from the start.

    Random play prefers actions that change something; 5% of its commands are misspelt. Stops at the first difference.
    """
    native, reference = NativeEngine(world, action_style), TextWorldEngine(world, action_style)
    rng = Random(f"{world.game.id}/{seed}")
    found = Comparison()
    try:
        walkthrough = [normalize_action(action, action_style) for action in world.game.walkthrough]
        for plan in (walkthrough, []):
            history: list[str] = []
            _check(found, history, native, reference, native.reset(), reference.reset())
            for i in range(len(plan) + steps):
                if found.differences:
                    return found
                command = plan[i] if i < len(plan) else random_command(native, rng)
                history.append(command)
                _check(found, history, native, reference, native.step(command), reference.step(command))
                found.steps += 1
                found.wins += native.won and i == len(plan) - 1
                found.invalid += not native.action_valid
                found.verbs[command.split()[0] if native.action_valid else "(invalid)"] += 1
    finally:
        reference.close()
    return found


def random_command(engine: NativeEngine, rng: Random) -> str:
    """A command for the engine's current state: verbs by weight, then any of their commands; or an inadmissible one."""
    commands = engine.admissible_commands()
    if rng.random() < INVALID_SHARE:
        command = rng.choice(commands)
        return rng.choice((_misspell(command, rng), command.upper(), f" {command} ", "", "think: where am I?"))
    by_verb: dict[str, list[str]] = {}
    for command in commands:
        by_verb.setdefault(command.partition(" ")[0], []).append(command)
    if rng.random() < 0.2:  # appliances and goals are few among the places
        world = engine.world
        lit = [r for r, objects in enumerate(world.start_contents) if world.affordances["toggleable"] & {*objects}]
        places = set().union(lit, *world.appliances.values(), _goal_receptacles(world))
        names = {f"go to {world.receptacles[r]}" for r in places}
        if useful := sorted(names.intersection(commands)):
            return rng.choice(useful)
    verbs = sorted(by_verb)
    [verb] = rng.choices(verbs, [_VERB_WEIGHTS.get(verb, _OTHER_VERBS) for verb in verbs])
    return rng.choice(by_verb[verb])


def _goal_receptacles(world: World) -> frozenset[int]:
    return frozenset() if world.goal.task_type == "look_at_obj_in_light" else world.goal_targets


def _misspell(command: str, rng: Random) -> str:
    words = command.split()
    words[rng.randrange(len(words))] = rng.choice(("", "9", "desk", "to", "mug 1", "\N{TEACUP WITHOUT HANDLE}"))
    return " ".join(words)


def _check(found: Comparison, history: list[str], native: Engine, reference: Engine, text: str, expected: str) -> None:
    pairs = {
        "observation": (text, expected),
        "admissible commands": (native.admissible_commands(), reference.admissible_commands()),
        "action_valid": (native.action_valid, reference.action_valid),
        "won": (native.won, reference.won),
        "goal fraction": (native.goal_fraction, reference.goal_fraction),
        "won, from the goal fraction": (native.won, reference.goal_fraction == 1.0),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            found.differences.append(f"{what} after {history}:\n  native    {ours!r}\n  textworld {theirs!r}")


@contextmanager
def textworld_caches() -> Iterator[None]:
    """Make TextWorld about ten times faster without changing what it says.

    Stock TextWorld parses the same few templates for every admissible command of every step, copies their contexts
    deeply, and translates every problem four times per episode. Here parses and the latest translation are remembered,
    and contexts are copied shallowly (their values are never changed).
    """
    import fast_downward
    from textworld.envs.pddl import textgen

    def shallow_context(context: dict[str, Any]) -> dict[str, Any]:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    def shallow_symbol(symbol: Any, context: dict[str, Any]) -> Any:
        symbol = copy.copy(symbol)
        symbol.context = shallow_context(context)
        return symbol

    translate = lru_cache(maxsize=1)(fast_downward.pddl2sas)

    def translate_once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        return translate(domain, problem)

    with ExitStack() as stack:
        for target, name, replacement in (
            (textgen, "_parse_and_convert", lru_cache(maxsize=4096)(textgen._parse_and_convert)),
            (textgen, "copy_context", shallow_context),
            (textgen.Symbol, "copy", shallow_symbol),
            (textgen.Rule, "parse_conjunctive_query", lru_cache(maxsize=256)(textgen.Rule.parse_conjunctive_query)),
            (fast_downward, "pddl2sas", translate_once),
        ):
            stack.enter_context(patch.object(target, name, replacement))
        yield
