"""The seeds of a comparison side by side, each in a process of its own.

What a process prints goes to ``seed<k>.log`` in the comparison's folder, and which cell it begins to the terminal. A
process ends with the one that started it, however that ends, so that no two ever work on the same cell.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TextIO

from transformers.utils.logging import disable_progress_bar

from agentgym_tlm.compare import Comparison
from agentgym_tlm.errors import AgentGymError
from agentgym_tlm.progress import plain_warnings, rollout_progress, training_progress

_terminal: TextIO = sys.stderr
"""Of the process that started this one."""


def run_side_by_side(comparison: Comparison, jobs: int, only: Sequence[str] | None = None) -> dict[str, str]:
    """:meth:`Comparison.run` with ``jobs`` processes; the results are the same.

    Raises AgentGymError when the system kills one of them.
    """
    wanted = comparison.begin(only)
    spawn = multiprocessing.get_context("spawn")
    failures: dict[str, str] = {}
    with ProcessPoolExecutor(min(jobs, len(comparison.seeds)), mp_context=spawn, initializer=_begin) as pool:
        futures: list[Future[dict[str, str]]] = []
        try:
            futures += [pool.submit(_run_seed, comparison, seed, wanted) for seed in comparison.seeds]
            for future in as_completed(futures):
                failures |= future.result()
        except BrokenProcessPool as error:
            raise AgentGymError(
                "a process of the comparison was killed; is there enough memory for --jobs? Give the same command "
                "again to go on"
            ) from error
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise
    return {name: failures[name] for name in comparison.names if name in failures}


def _begin() -> None:
    global _terminal
    _terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    disable_progress_bar()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _run_seed(comparison: Comparison, seed: int, wanted: Sequence[str]) -> dict[str, str]:
    with (comparison.folder / f"seed{seed}.log").open("a", encoding="utf-8") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    with plain_warnings():
        return comparison.run_seed(
            seed,
            wanted,
            rollouts=rollout_progress,
            training=training_progress,
            report=lambda line: print(line, file=_terminal, flush=True),
        )
