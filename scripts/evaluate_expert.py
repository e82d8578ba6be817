"""Win rate of ALFWorld's explorer expert, per split and task type.

python scripts/evaluate_expert.py                                      # generated games, both presets
python scripts/evaluate_expert.py --data-dir DIR                       # official games
python scripts/evaluate_expert.py --mistakes 0.12 --max-steps 50       # with injected wrong actions
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from agentgym_tlm.envs.alfworld.engine import NativeEngine
from agentgym_tlm.envs.alfworld.explorer import Explorer
from agentgym_tlm.envs.alfworld.generator import PRESETS
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES, World
from agentgym_tlm.envs.alfworld.sources import EmbeddedSource, GameSource, open_source


@dataclass(frozen=True)
class Args:
    data_dir: Path | None = None
    """Folder with the official games; generated games without it."""
    splits: tuple[str, ...] = ("train", "valid_seen", "valid_unseen")
    num_games: int = 1000
    """Generated games per split and preset."""
    max_steps: int = 40
    mistakes: float = 0.0
    """Chance that a turn is a plausible mistake instead of what the expert would do."""
    seed: int = 0


class Episode(NamedTuple):
    won: bool
    turns: int
    invalid: int


def play(world: World, args: Args, rng: np.random.Generator) -> Episode:
    engine, explorer = NativeEngine(world), Explorer()
    observation = engine.reset()
    turns = invalid = 0
    while not engine.won and turns < args.max_steps:
        wrong = explorer.mistake(observation, rng) if rng.random() < args.mistakes else None
        _, action = wrong or explorer.act(observation)
        observation = engine.step(action)
        turns += 1
        invalid += not engine.action_valid
    return Episode(engine.won, turns, invalid)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    sources: list[tuple[str, GameSource]] = []
    for split in args.splits:
        if args.data_dir is not None:
            sources.append((split, open_source(split, args.data_dir)))
        else:
            sources += [(f"{split}, {preset}", EmbeddedSource(split, args.num_games, preset)) for preset in PRESETS]
    kinds = ("place", "look", "clean", "heat", "cool", "two")
    table = Table("games", "number", "won %", *(f"{kind} %" for kind in kinds), "turns", "invalid %", "seconds")
    for name, source in sources:
        rng, start = np.random.default_rng(args.seed), time.perf_counter()
        episodes: dict[str, list[Episode]] = defaultdict(list)
        for task_id in source.task_ids:
            game = source.load(task_id)
            episodes[game.task_type].append(play(World.parse(game), args, rng))
        everything = [episode for group in episodes.values() for episode in group]
        turns = sum(episode.turns for episode in everything)
        table.add_row(
            name,
            str(len(everything)),
            *(_percent_won(group) for group in (everything, *(episodes[task_type] for task_type in TASK_TYPES))),
            f"{turns / len(everything):.1f}",
            f"{100 * sum(episode.invalid for episode in everything) / turns:.1f}",
            f"{time.perf_counter() - start:.1f}",
        )
    Console(width=140).print(table)


def _percent_won(episodes: list[Episode]) -> str:
    return f"{100 * sum(episode.won for episode in episodes) / len(episodes):.1f}" if episodes else "-"


if __name__ == "__main__":
    main()
