"""Progress of long work on stderr: a live bar on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from agentgym_tlm.rollout import RolloutProgress


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings raised inside are shown as one line each, without the line of code that raised them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)


class ProgressBar:
    """Progress of one piece of work, or of several like it in turn; :func:`progress_bar` opens it.

    A piece is shown from its first update on, until all of it is done.
    """

    def __init__(self, label: str, unit: str, total: int | None, console: Console, interval: float) -> None:
        self._label = label
        self._unit = unit
        self._total = total
        self._done = 0
        self._status = ""
        self._console = console
        self._interval = interval
        self._started = self._updated = self._printed = time.monotonic()
        self._finished = False
        self._live: Progress | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the work began; never 0."""
        return max(time.monotonic() - self._started, 1e-6)

    def update(self, done: int, status: str = "", *, total: int | None = None) -> None:
        """Report how much is done so far, with a few words on how it goes."""
        self._updated = time.monotonic()
        if self._finished:
            self._finished, self._started = False, self._updated
        self._done = done
        self._total = self._total if total is None else total
        self._status = status
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._draw()
        elif self._updated - self._printed >= self._interval:
            self._print()
        if done == self._total:
            self.close()

    def close(self) -> None:
        """Leave the last state standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._updated > self._printed:
            self._print()
        self._finished = True

    def _draw(self) -> None:
        if self._live is None:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=self._console,
                expand=True,
            )
            self._live.add_task(self._label, total=self._total, status="")
            self._live.start()
        (task,) = self._live.task_ids
        self._live.update(task, completed=self._done, total=self._total, status=self._status)

    def _print(self) -> None:
        self._printed = self._updated
        done = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        parts = [f"{self._label}: {done} {self._unit}", self._status, f"{self._updated - self._started:.0f} s"]
        print(", ".join(filter(None, parts)), file=self._console.file, flush=True)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


@contextmanager
def progress_bar(
    label: str, unit: str, total: int | None = None, *, console: Console | None = None, interval: float = 10.0
) -> Iterator[ProgressBar]:
    """Show the progress of the work inside the ``with`` block.

    ``console`` defaults to stderr. Without a terminal a line is printed at most every ``interval`` seconds, and one at
    the end.
    """
    bar = ProgressBar(label, unit, total, console or Console(stderr=True), interval)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def rollout_progress(
    label: str, *, console: Console | None = None, interval: float = 10.0
) -> Iterator[Callable[[RolloutProgress], None]]:
    """The ``progress`` callback of a rollout: episodes and tokens per second, success so far."""
    with progress_bar(label, "episodes", console=console, interval=interval) as bar:

        def report(counts: RolloutProgress) -> None:
            status = [f"{_rate(counts.episodes / bar.elapsed)} episodes/s"]
            if counts.tokens:
                status.append(f"{_rate(counts.tokens / bar.elapsed)} tokens/s")
            if counts.episodes:
                status.append(f"{counts.wins / counts.episodes:.0%} won")
            bar.update(counts.episodes, ", ".join(status), total=counts.total)

        yield report


@contextmanager
def training_progress(
    label: str, *, console: Console | None = None, interval: float = 10.0
) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """The ``on_log`` callback of a trainer: updates so far, tokens per second, the loss, and what is won online."""
    with progress_bar(label, "updates", console=console, interval=interval) as bar:
        iteration = first = last = 0
        won = ""

        def report(line: Mapping[str, float]) -> None:
            nonlocal iteration, first, last, won
            if "success" in line:
                won = f", {line['success']:.0%} won in iteration {int(line['iteration']) + 1}"
            if "loss" not in line:
                return
            if line["iteration"] != iteration:
                iteration, first = int(line["iteration"]), last
            last = int(line["step"])
            status = f"{_rate(line['tokens_per_second'])} tokens/s, loss {line['loss']:.4g}{won}"
            bar.update(last, status, total=first + int(line["total_steps"]))

        yield report
