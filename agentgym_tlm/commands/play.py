"""``agentgym-tlm play``: a person plays one task, in a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from agentgym_tlm.envs.args import EnvArgs, text_env
from agentgym_tlm.envs.base import Info, TextEnv
from agentgym_tlm.ranges import SEED, check_ranges
from agentgym_tlm.trajectory import StopReason, Trajectory, TrajectoryWriter, Turn

HELP = "One command a line. ? lists the possible ones, :undo takes the last one back, :q quits."


@dataclass(frozen=True, kw_only=True)
class Play:
    """Play a task yourself: one command a line; ? lists the possible ones, :undo takes one back, :q quits."""

    task_id: str | None = None
    """Task of the split to play; None: the seed chooses."""
    split: str = "valid_unseen"
    """Split of the environment."""
    seed: int | None = None
    """Chooses the task, unless that is given; None: a different one each time."""
    log: Path | None = None
    """JSONL file to which the episode is appended, in the format of rollouts."""
    envs: tyro.conf.OmitArgPrefixes[EnvArgs] = field(default_factory=EnvArgs)

    def __post_init__(self) -> None:
        check_ranges(self, seed=SEED)

    def run(self) -> int:
        """Play one episode on stdin and stdout."""
        # The environment itself counts steps and takes snapshots, of which Gymnasium's wrappers know nothing.
        env = text_env(self.envs.make(self.split, admissible_commands=True))
        options = {} if self.task_id is None else {"task_id": self.task_id}
        observation, info = env.reset(seed=self.seed, options=options)
        console = Console(highlight=False, markup=False)
        console.soft_wrap = not console.is_terminal  # a pipe keeps lines whole
        game = Game(env, self.envs.env, self.seed or 0, observation, info, console)
        try:
            game.play(_commands(console, lambda: game.info["admissible_commands"]))
        finally:
            trajectory = game.trajectory()
            if self.log is not None:
                with TrajectoryWriter(self.log) as writer:
                    writer.write(trajectory)
                console.print(f"Logged to {self.log}", style="dim")
            env.close()
        return 0


class Game:
    """One episode that can be taken back turn by turn."""

    def __init__(self, env: TextEnv, env_id: str, seed: int, observation: str, info: Info, console: Console) -> None:
        self.env = env
        self.env_id = env_id
        self.seed = seed
        self.observation = observation
        self.info = info
        self.console = console
        self.turns: list[Turn] = []
        self.undone = 0
        self._snapshots: list[Any] = []

    @property
    def over(self) -> bool:
        """Won, lost, or out of steps."""
        return self.info["stop_reason"] is not None

    def play(self, commands: Iterator[str]) -> None:
        """Carry out commands until the episode or the input ends."""
        info, console = self.info, self.console
        console.print(f"{self.env_id}, {info['split']}, {info['task_type']}: {info['task_id']}", style="dim")
        console.print(f"{HELP}\n", style="dim")
        console.print(self.observation)
        for command in commands:
            match command.strip():
                case "":
                    continue
                case ":q" | ":quit":
                    break
                case ":undo" | ":u":
                    self.undo()
                case "?" | "help!":
                    console.print("\n".join(self.info["admissible_commands"]), style="cyan")
                case word if word.startswith(":"):
                    console.print(f"There is no {word}. {HELP}", style="dim")
                case action:
                    self.step(action)
            if self.over:
                break
        steps = f"{len(self.turns)} step{'' if len(self.turns) == 1 else 's'}"
        if self.info["won"]:
            console.print(f"\nWon in {steps}.", style="bold green")
        else:
            reason = {None: "ended early", "lost": "lost", "max_steps": "no steps left"}[self.info["stop_reason"]]
            console.print(f"\nNot won ({reason}), {steps}.", style="bold yellow")

    def step(self, action: str) -> None:
        """Play an action."""
        before = self.observation
        self._snapshots.append(self.env.snapshot())
        self.observation, reward, _, _, self.info = self.env.step(action)
        self.turns.append(Turn(before, action, action, bool(self.info["action_valid"]), float(reward)))
        self.console.print(self.observation)

    def undo(self) -> None:
        """Take the last action back."""
        if not self._snapshots:
            self.console.print("Nothing to take back.", style="dim")
            return
        self.observation, self.info = self.env.restore(self._snapshots.pop())
        self.turns.pop()
        self.undone += 1
        self.console.print(f"Taken back. {self.observation}", style="dim")

    def trajectory(self) -> Trajectory:
        """The record of the episode, without the turns that were taken back."""
        return Trajectory(
            env_id=self.env_id,
            task_id=self.info["task_id"],
            task_type=self.info["task_type"],
            split=self.info["split"],
            instruction=self.info["instruction"],
            seed=self.seed,
            turns=self.turns,
            final_observation=self.observation,
            score=float(self.info["score"]),
            won=bool(self.info["won"]),
            stop_reason=StopReason(self.info["stop_reason"] or StopReason.ABORTED),
            policy="human",
            env=dict(self.env.version()),
            metadata={"undone_turns": self.undone} if self.undone else {},
        )


def _commands(console: Console, admissible: Callable[[], list[str]]) -> Iterator[str]:
    """Lines of stdin until it ends; on a terminal with history and completion, from a pipe echoed."""
    terminal = sys.stdin.isatty()
    if terminal:
        _complete_with(admissible)
    while True:
        try:
            line = input("\n> " if terminal else "")
        except (EOFError, KeyboardInterrupt):
            return
        if not terminal:
            console.print(f"\n> {line}")
        yield line


def _complete_with(admissible: Callable[[], list[str]]) -> None:
    try:
        import readline
    except ImportError:  # not on every platform; then there is no completion
        return

    def complete(_: str, state: int) -> str | None:
        # Whole lines are completed, for which readline must not split them into words.
        matches = [command for command in admissible() if command.startswith(readline.get_line_buffer())]
        return matches[state] if state < len(matches) else None

    readline.set_completer_delims("")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
