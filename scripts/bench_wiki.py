"""Measure the offline encyclopedia of HotpotQA.

    python scripts/bench_wiki.py CORPUS QUESTIONS [QUESTIONS ...]

CORPUS is what `agentgym-tlm data build-wiki` reads; QUESTIONS are official question files whose supporting pages are in
it. Times are CPU times of one thread, which other load on the machine disturbs least; memory is what the resident set
of a fresh process grows by.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from agentgym_tlm.envs.hotpotqa.corpus import read_pages, read_records
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia, build_wiki
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.wiki import clean_title

T = TypeVar("T")
Row = tuple[str, str]


@dataclass(frozen=True)
class Args:
    """What is measured."""

    corpus: tyro.conf.Positional[Path]
    """File of pages."""
    questions: tyro.conf.Positional[tuple[Path, ...]]
    """Official question files."""
    limit: int = 1000
    """Questions, and titles, at most."""
    seed: int = 0


def main() -> int:
    args = tyro.cli(Args, description=__doc__)
    table = Table("what", "measured")
    questions = sample(args)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wiki.sqlite"
        # Each in a process of its own, whose memory nothing else has touched.
        for measure, argument in ((build, args.corpus), (query, questions)):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                for row in pool.apply(measure, (path, argument)):
                    table.add_row(*row)
    Console(highlight=False, soft_wrap=True).print(table)
    return 0


@dataclass(frozen=True)
class Questions:
    """What is asked, and what should be found."""

    asked: list[str]
    gold: list[set[str]]
    """Supporting titles of each question."""
    titles: list[str]
    typos: list[str]
    """The titles without one of their letters."""


def sample(args: Args) -> Questions:
    rng = Random(args.seed)
    records = [record for file in args.questions for record in read_records(file)]
    records = rng.sample(records, min(args.limit, len(records)))
    gold = [{clean_title(title) for title, _ in record["supporting_facts"]} for record in records]
    titles = sorted(set().union(*gold))[: args.limit]
    typos = [without_a_letter(title, rng) for title in titles]
    return Questions([record["question"] for record in records], gold, titles, typos)


def build(path: Path, corpus: Path) -> list[Row]:
    before = memory()
    start = time.process_time()
    count = build_wiki(read_pages([corpus]), path)
    seconds = time.process_time() - start
    return [
        ("pages", f"{count:,}"),
        ("building: CPU time", f"{seconds:.1f} s"),
        ("building: memory at most", f"{peak_memory() - before:.0f} MB more"),
        ("file", f"{path.stat().st_size / 1e6:.1f} MB"),
    ]


def query(path: Path, questions: Questions) -> list[Row]:
    asked, gold, titles = questions.asked, questions.gold, questions.titles
    before = memory()
    wiki, opening = timed(lambda: opened(path))
    found, exact = timed_each(wiki.search, titles)
    offered, missing = timed_each(wiki.search, questions.typos)
    passages, retrieval = timed_each(lambda question: [page.title for page in wiki.retrieve(question, 10)], asked)
    mentions, recognition = timed_each(wiki.mentions, asked)
    after = memory()

    def recall(limit: int) -> float:
        return float(np.mean([len(g.intersection(p[:limit])) / len(g) for g, p in zip(gold, passages, strict=True)]))

    opens = [isinstance(each, Page) and each.title == title for each, title in zip(found, titles, strict=True)]
    offers = [
        title in ((each.title,) if isinstance(each, Page) else each.titles)
        for each, title in zip(offered, titles, strict=True)
    ]
    named = np.mean([bool(g.intersection(m)) for g, m in zip(gold, mentions, strict=True)])
    return [
        ("opening", f"{1e3 * opening:.1f} ms"),
        ("memory after all queries", f"{after - before:.1f} MB more"),
        (f"search, {len(titles)} supporting titles", f"{spread(exact)}; {np.mean(opens):.3f} open their page"),
        ("search, the same without a letter", f"{spread(missing)}; {np.mean(offers):.3f} are among the 5 offered"),
        (
            f"retrieve 10, {len(asked)} questions",
            f"{spread(retrieval)}; recall@5 {recall(5):.3f}, @10 {recall(10):.3f}",
        ),
        ("mentions, the same questions", f"{spread(recognition)}; {named:.3f} name a supporting page"),
    ]


def opened(path: Path) -> OfflineWikipedia:
    wiki = OfflineWikipedia(path)
    _ = wiki.description
    return wiki


def without_a_letter(title: str, rng: Random) -> str:
    at = rng.randrange(len(title))
    return title[:at] + title[at + 1 :]


def timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.thread_time()
    result = call()
    return result, time.thread_time() - start


def timed_each(call: Callable[[str], T], arguments: Sequence[str]) -> tuple[list[T], list[float]]:
    """Results, and the seconds that each took."""
    pairs = [timed(partial(call, argument)) for argument in arguments]
    return [result for result, _ in pairs], [seconds for _, seconds in pairs]


def spread(seconds: list[float]) -> str:
    p50, p95 = 1e3 * np.percentile(seconds, [50, 95])
    return f"p50 {p50:.2f} ms, p95 {p95:.2f} ms"


def memory() -> float:
    """Resident set, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_memory() -> float:
    """Largest resident set so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
