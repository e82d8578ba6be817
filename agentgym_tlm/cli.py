"""The ``agentgym-tlm`` command: finds the sub-command, fills its options, reports errors in one line.

A sub-command is imported when it is used, so that help and listings do not wait for PyTorch.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, TypeVar

from gymnasium.error import Error as GymnasiumError
from rich.console import Console

import agentgym_tlm
from agentgym_tlm import config
from agentgym_tlm.errors import AgentGymError, ConfigError

PROG = "agentgym-tlm"
T = TypeVar("T")


class Command(NamedTuple):
    """Where a sub-command is defined, and what it is for.

    ``options`` names a class in a module of ``agentgym_tlm.commands``; or a mapping, for a command that is followed by
    another, of classes that have their ``summary`` as an attribute.
    """

    module: str
    options: str
    summary: str


COMMANDS = {
    "train": Command("train", "Train", "the main job: imitate the expert, sample, align, evaluate before and after"),
    "eval": Command("evaluate", "Evaluate", "success of a policy on held-out tasks, with confidence intervals"),
    "compare": Command("compare", "Compare", "trainers on one shared benchmark, from the same starts, with statistics"),
    "rollout": Command("rollout", "Rollout", "let a policy play and write every turn to JSONL"),
    "report": Command("report", "Report", "tables, figures and a viewer of the episodes of runs, as one HTML file"),
    "play": Command("play", "Play", "play a task yourself in the terminal"),
    "envs": Command("envs", "Envs", "list environments, splits, task counts and where the data is"),
    "doctor": Command("doctor", "Doctor", "check what is installed, which data is found, and the device"),
    "export": Command(
        "trajectories", "Export", "write turn logs as messages, as a dataset for TRL, as ATIF or as Parquet"
    ),
    "data": Command(
        "data", "COMMANDS", "get, list and check data and pretrained models; import and export trajectories"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    stderr = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt as interrupt:
        stderr.print(f"\nInterrupted. {' '.join(map(str, interrupt.args))}".rstrip())
        return 130
    except BrokenPipeError:  # the reader of the output has gone, as in `agentgym-tlm envs | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (AgentGymError, GymnasiumError, OSError) as error:
        if os.environ.get("AGENTGYM_TLM_DEBUG") == "1":
            raise
        stderr.print(f"error: {_explain(error)}", style="red")
        return 2


def _explain(error: Exception) -> str:
    """One line on an error; for one of the operating system, such as a full disk, what failed on which file."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join([str(name) for name in (error.filename, error.filename2) if name] + [error.strerror])
    return str(error).replace("\n", " ")


def _run(argv: Sequence[str]) -> int:
    name, *arguments = argv or ["--help"]
    if name in ("-h", "--help"):
        summaries = {name: command.summary for name, command in COMMANDS.items()}
        _overview(PROG, "Multi-turn text environments, and agents that learn in them.", summaries)
        return 0
    if name == "--version":
        print(PROG, agentgym_tlm.__version__)
        return 0
    command = _chosen(name, COMMANDS)
    prog = f"{PROG} {name}"
    options = getattr(import_module(f"agentgym_tlm.commands.{command.module}"), command.options)
    if isinstance(options, Mapping):
        word, *arguments = arguments or ["--help"]
        if word in ("-h", "--help"):
            summaries = {word: inner.summary for word, inner in options.items()}
            _overview(prog, f"{command.summary.capitalize()}.", summaries)
            return 0
        options, prog = _chosen(word, options), f"{prog} {word}"
    code: int = config.parse(options, arguments, prog=prog).run()
    return code


def _chosen(name: str, commands: Mapping[str, T]) -> T:
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(commands)}"
        raise ConfigError(f"there is no command {name!r}; {hint}")
    return commands[name]


def _overview(prog: str, about: str, summaries: Mapping[str, str]) -> None:
    print(f"usage: {prog} COMMAND [OPTIONS]\n\n{about}\n")
    for name, summary in summaries.items():
        print(f"  {name:<{max(map(len, summaries)) + 2}}{summary}")
    print(f"\n`{prog} COMMAND --help` lists a command's options. A file can give them, too: --config FILE.yaml")
