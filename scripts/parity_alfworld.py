"""Compare the native ALFWorld engine with TextWorld, command by command.

    python scripts/parity_alfworld.py --data-dir DATA --games 200 --generated 50

plays official games of every split (evenly over the task types, through their walkthroughs and at random) and generated
ones on both engines, and compares everything a player can see. Needs `pip install 'agentgym-tlm[alfworld]'`. TextWorld
runs with its parses and translations remembered, which makes it about ten times faster; the first ``--stock`` games are
played on the stock one as well. Exit status 1 and the first differences when there are any.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import tyro

from agentgym_tlm.envs.alfworld.parity import Comparison, compare, textworld_caches
from agentgym_tlm.envs.alfworld.problem import Game, World
from agentgym_tlm.envs.alfworld.sources import EmbeddedSource, GameSource, open_source


@dataclass(frozen=True)
class Args:
    """Which games are compared, and for how long."""

    data_dir: str | None = None
    """Official data; None: $ALFWORLD_DATA, and where that is not set, generated games only."""
    splits: tuple[str, ...] = ("train", "valid_seen", "valid_unseen", "valid_train")
    """Splits of the official data."""
    games: int = 200
    """Official games in all."""
    generated: int = 50
    """Generated games in all, of both presets."""
    steps: int = 40
    """Random actions, played once after the walkthrough and once from the start."""
    stock: int = 6
    """Games that the unpatched TextWorld plays as well."""
    action_style: Literal["move", "put"] = "move"
    seed: int = 0


def chosen_games(args: Args) -> Iterator[tuple[str, Game]]:
    """(where from, game), evenly spaced over the sorted ids and so over the task types."""
    sources: list[tuple[str, GameSource, int]] = []
    for preset in ("small", "official"):
        for split in ("train", "valid_seen", "valid_unseen"):
            count = max(1, round(args.generated / 6)) if args.generated else 0
            sources.append((f"generated {preset} {split}", EmbeddedSource(split, 200, preset), count))
    for split in args.splits if args.games else ():
        source = open_source(split, args.data_dir)
        if not isinstance(source, EmbeddedSource):
            sources.append((f"official {split}", source, max(1, round(args.games / len(args.splits)))))
    for name, source, count in sources:
        task_ids = source.task_ids
        count = min(count, len(task_ids))
        for i in range(count):
            yield name, source.load(task_ids[i * len(task_ids) // count])


def main() -> int:
    args = tyro.cli(Args, description=__doc__)
    total = Comparison()
    games: Counter[str] = Counter()
    task_types: Counter[str] = Counter()
    stock_games = stock_steps = 0
    start = time.perf_counter()
    for number, (name, game) in enumerate(chosen_games(args)):
        world = World.parse(game)
        for stock in (False, True) if number % 20 == 0 and stock_games < args.stock else (False,):
            with nullcontext() if stock else textworld_caches():
                found = compare(world, args.seed, args.steps, args.action_style)
            stock_games += stock
            stock_steps += found.steps * stock
            if not stock:
                total.add(found)
            if found.differences:
                print(f"{game.id}{' (stock TextWorld)' if stock else ''}: {found.differences[0]}", file=sys.stderr)
                total.differences += found.differences if stock else []
        games[name] += 1
        task_types[game.task_type] += 1
        if (number + 1) % 20 == 0:
            print(f"{number + 1} games, {total.steps} steps, {len(total.differences)} differences", file=sys.stderr)
    print(f"{sum(games.values())} games, {total.steps} steps, {len(total.differences)} differences")
    print(f"  games: {dict(games)}")
    print(f"  task types: {dict(task_types)}")
    print(f"  won by their walkthrough: {total.wins}")
    print(f"  commands: {dict(total.verbs.most_common())}")
    print(f"  also on the stock TextWorld: {stock_games} games, {stock_steps} steps")
    print(f"  {time.perf_counter() - start:.0f} s")
    return 1 if total.differences else 0


if __name__ == "__main__":
    sys.exit(main())
