"""Measure the speed of the environments.

    python scripts/bench_envs.py [--data-dir DATA]

ALFWorld: the native engine, with the admissible commands listed at every step, against the stock TextWorld in the same
run and on the same games. Without the `alfworld` extra, or with ``--textworld-steps 0``, TextWorld is left out. Times
are CPU times of one process, which other load on the machine disturbs least; both engines do all their work in it.

ScienceWorld: the environment against ``ScienceWorldEnv.step`` of the package ``scienceworld`` on the same random
actions, in CPU time of Python and Java together, and the resident memory of Java for eight environments. Java runs both
warmed up. Linux only; without the `scienceworld` extra, or with ``--scienceworld-steps 0``, it is left out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

import gymnasium as gym
import tyro
from rich.console import Console
from rich.table import Table

import agentgym_tlm  # noqa: F401  (registers the environments)
from agentgym_tlm.envs.alfworld.engine import Engine, NativeEngine
from agentgym_tlm.envs.alfworld.problem import World
from agentgym_tlm.envs.alfworld.sources import open_source
from agentgym_tlm.envs.alfworld.textworld_engine import TextWorldEngine, require_textworld
from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv
from agentgym_tlm.envs.scienceworld.java import find_java, simulator_jar
from agentgym_tlm.envs.scienceworld.simulator import shared_simulator
from agentgym_tlm.errors import DependencyError

T = TypeVar("T")


@dataclass(frozen=True)
class Args:
    """What is measured."""

    data_dir: str | None = None
    """Official ALFWorld data; None: $ALFWORLD_DATA, else generated games of official size."""
    split: str = "valid_unseen"
    native_games: int = 100
    native_steps: int = 500
    """Random steps in each game."""
    textworld_games: int = 4
    textworld_steps: int = 30
    scienceworld_steps: int = 40
    """Random steps in each of eight tasks."""
    seed: int = 0


def main() -> int:
    args = tyro.cli(Args, description=__doc__)
    source = open_source(args.split, args.data_dir, generator="official")
    ids = source.task_ids
    games = [source.load(ids[i * len(ids) // args.native_games]) for i in range(args.native_games)]
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"ALFWorld, {args.split}: {source.description}")

    parsed, seconds = timed(lambda: [World.parse(game) for game in games])
    per_game = seconds / len(games)
    engines, seconds = timed(lambda: [NativeEngine(world) for world in parsed])
    _, reset = timed(lambda: [engine.reset() for engine in engines])
    _, clone = timed(lambda: [engine.clone() for engine in engines])
    native = play(engines, args.native_steps, args.seed)
    rows = [
        ("native: parsed file to first observation", f"{1e3 * (per_game + seconds / len(games)):.2f} ms"),
        ("native: reset of a parsed game", f"{1e6 * reset / len(games):.0f} us"),
        ("native: clone of a running game", f"{1e6 * clone / len(games):.0f} us"),
        ("native: steps, admissible commands listed", f"{native:,.0f} / s"),
        ("native, interleaving the games", f"{play_interleaved(engines, args.native_steps, args.seed):,.0f} / s"),
        ("ALFWorld-v0 environment: steps with info", f"{play_env(args):,.0f} / s"),
    ]
    rows += textworld_rows(args, parsed, native)
    table = Table("what", "speed")
    for row in rows:
        table.add_row(*row)
    console.print(table)

    table = Table("ScienceWorld", "")
    for row in scienceworld_rows(args):
        table.add_row(*row)
    console.print(table)
    return 0


def timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def play(engines: list[NativeEngine] | list[TextWorldEngine], steps: int, seed: int) -> float:
    """Steps per second of random play, one game after another, with won and the admissible commands at every step."""
    rng = Random(seed)
    start = time.process_time()
    for engine in engines:
        commands = engine.admissible_commands()
        for _ in range(steps):
            commands = random_step(engine, commands, rng)
    return len(engines) * steps / (time.process_time() - start)


def play_interleaved(engines: list[NativeEngine], steps: int, seed: int) -> float:
    """The same, one step of every game at a time."""
    rng = Random(seed)
    commands = [engine.admissible_commands() for engine in engines]
    start = time.process_time()
    for _ in range(steps):
        for i, engine in enumerate(engines):
            commands[i] = random_step(engine, commands[i], rng)
    return len(engines) * steps / (time.process_time() - start)


def random_step(engine: Engine, commands: list[str], rng: Random) -> list[str]:
    engine.step(commands[int(rng.random() * len(commands))])
    _ = engine.won
    return engine.admissible_commands()


def play_env(args: Args) -> float:
    """Steps per second of the environment that users make, admissible commands in info."""
    env = gym.make(
        "ALFWorld-v0",
        disable_env_checker=True,
        max_episode_steps=50,
        split=args.split,
        data_dir=args.data_dir,
        admissible_commands=True,
    )
    rng = Random(args.seed)
    steps, start = 0, time.process_time()
    for episode in range(args.native_games):
        _, info = env.reset(seed=episode)
        terminated = truncated = False
        while not (terminated or truncated):
            commands = info["admissible_commands"]
            _, _, terminated, truncated, info = env.step(commands[int(rng.random() * len(commands))])
            steps += 1
    return steps / (time.process_time() - start)


def textworld_rows(args: Args, worlds: list[World], native: float) -> list[tuple[str, str]]:
    """Stock TextWorld on a few of the same games."""
    try:
        require_textworld()
    except DependencyError as error:
        return [("textworld", f"left out: {error}")]
    if not args.textworld_steps or not args.textworld_games:
        return [("textworld", "left out")]
    chosen = [worlds[i * len(worlds) // args.textworld_games] for i in range(args.textworld_games)]
    TextWorldEngine(chosen[0]).close()  # imports
    engines, seconds = timed(lambda: [TextWorldEngine(world) for world in chosen])
    stock = play(engines, args.textworld_steps, args.seed)
    return [
        ("textworld (stock): new episode", f"{seconds / len(chosen):.2f} s"),
        ("textworld (stock): steps", f"{stock:,.1f} / s"),
        ("native : textworld, steps", f"{native / stock:,.0f} x"),
    ]


SCIENCEWORLD_TASKS = (
    "boil",
    "use-thermometer",
    "test-conductivity",
    "find-animal",
    "grow-plant",
    "chemistry-mix",
    "lifespan-longest-lived",
    "inclined-plane-determine-angle",
)


def scienceworld_rows(args: Args) -> list[tuple[str, str]]:
    """Stock ScienceWorld, then the environment on what was played there."""
    try:
        find_java()
        simulator_jar()
    except DependencyError as error:
        return [("left out", str(error))]
    if not args.scienceworld_steps:
        return [("left out", "")]
    played, stock, stock_memory = play_stock(args)
    lean, memory = play_scienceworld(played, admissible_commands=False)
    listing, _ = play_scienceworld(played, admissible_commands=True)
    return [
        ("stock: steps per CPU second", f"{stock:,.1f}"),
        ("ScienceWorld-v0: the same", f"{lean:,.1f} = {lean / stock:.1f} x"),
        ("ScienceWorld-v0 with admissible commands", f"{listing:,.1f} = {listing / stock:.1f} x"),
        ("stock: memory of Java for 8 environments", f"{stock_memory:,.0f} MB"),
        ("ScienceWorld-v0: the same", f"{memory:,.0f} MB = 1 / {stock_memory / memory:.1f}"),
    ]


def play_stock(args: Args) -> tuple[dict[str, list[str]], float, float]:
    """The random actions in each task, steps per CPU second of the second time that they are played, and memory."""
    from scienceworld import ScienceWorldEnv as StockEnv

    rng = Random(args.seed)
    envs = {task: StockEnv("", envStepLimit=10**9) for task in SCIENCEWORLD_TASKS}
    pids = [env._gateway.java_process.pid for env in envs.values()]
    actions: dict[str, list[str]] = {task: [] for task in envs}
    for task, env in envs.items():
        env.load(task, 0, "easy")
        _, info = env.reset()
        for _ in range(args.scienceworld_steps):
            # What ends an episode is left out, and kinds of actions are equally likely, or all would move things.
            valid = [action for action in info["valid"] if not action.startswith(("focus", "reset"))]
            kind = rng.choice(sorted({action.split()[0] for action in valid}))
            actions[task].append(rng.choice([action for action in valid if action.split()[0] == kind]))
            _, _, _, info = env.step(actions[task][-1])
    start, steps = cpu_seconds(pids), 0
    for task, env in envs.items():
        env.load(task, 0, "easy")
        for action in actions[task]:
            env.step(action)
            steps += 1
    speed = steps / (cpu_seconds(pids) - start)
    memory = sum(map(memory_mb, pids))
    for env in envs.values():
        env.close()
    return actions, speed, memory


def play_scienceworld(played: dict[str, list[str]], *, admissible_commands: bool) -> tuple[float, float]:
    """Steps per CPU second of the second time that the actions are played, and memory."""
    envs = {
        task: ScienceWorldEnv(tasks=task, admissible_commands=admissible_commands, max_episode_steps=10**9)
        for task in played
    }
    for _ in range(2):
        for task, env in envs.items():
            env.reset(options={"task_id": f"{task}/0"})
        pid = shared_simulator(find_java(), deterministic=True, timeout=120.0).pid
        start, steps = cpu_seconds([pid]), 0
        for task, env in envs.items():
            for action in played[task]:
                env.step(action)
                steps += 1
        seconds = cpu_seconds([pid]) - start
    return steps / seconds, memory_mb(pid)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that this process and ``pids`` have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
