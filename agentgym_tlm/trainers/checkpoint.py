"""Checkpoints that are either complete or absent, and what has to match before one is resumed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from agentgym_tlm.batch import Example
from agentgym_tlm.errors import CheckpointError
from agentgym_tlm.files import write_text

STATE_FILE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass
class TrainerState:
    """Where training stands.

    ``fit_step`` counts the updates of the current iteration, ``step`` all of them; ``data`` is the fingerprint of what
    the iteration is trained on.
    """

    iteration: int = 0
    step: int = 0
    fit_step: int = 0
    tokens: int = 0
    data: str = ""


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The newest complete checkpoint in a run folder, or None; what an interrupted save left behind is ignored."""
    found = [
        (int(match[1]), path)
        for path in Path(folder).glob("checkpoint-*")
        if (match := _NAME.fullmatch(path.name)) and (path / STATE_FILE).is_file()
    ]
    return max(found)[1] if found else None


def save_checkpoint(
    accelerator: Accelerator,
    folder: Path,
    state: TrainerState,
    run: dict[str, Any],
    scheduler: dict[str, Any],
    limit: int | None,
) -> Path:
    """Write ``checkpoint-<step>`` by renaming a complete, synced folder; call on every process.

    Weights, optimizer, gradient scaler and the random states of every process are Accelerate's; ``run`` identifies the
    run (see :func:`read_checkpoint`). Afterwards only the newest ``limit`` checkpoints are kept.
    """
    final = folder / f"checkpoint-{state.step}"
    with replaced_folder(final, accelerator) as partial:
        accelerator.save_state(str(partial), safe_serialization=False)  # torch.save keeps tied weights tied
        if accelerator.is_main_process:
            record = {"state": asdict(state), "scheduler": scheduler, "run": run}
            (partial / STATE_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")
    if accelerator.is_main_process and limit is not None:
        _prune(folder, limit)
    accelerator.wait_for_everyone()
    return final


def read_checkpoint(path: str | os.PathLike[str], run: dict[str, Any]) -> tuple[TrainerState, dict[str, Any]]:
    """State and scheduler state of a checkpoint of the same run.

    Raises CheckpointError when it is missing or incomplete, or when an entry of ``run`` differs, naming the entries.
    """
    file = Path(path) / STATE_FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        state, scheduler, saved = TrainerState(**record["state"]), record["scheduler"], record["run"]
    except FileNotFoundError:
        raise CheckpointError(f"no complete checkpoint at {path}: {STATE_FILE} is missing") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error
    known = json.loads(json.dumps(run))
    different = [name for name in sorted(saved.keys() | known.keys()) if saved.get(name) != known.get(name)]
    if different:
        changes = ", ".join(f"{name}: {saved.get(name)!r} -> {known.get(name)!r}" for name in different)
        raise CheckpointError(f"{path} belongs to a different run ({changes}); use its options or a new output_dir")
    return state, scheduler


def cut_metrics(path: Path, state: TrainerState) -> None:
    """Forget the lines of a ``metrics.jsonl`` behind ``state``: the resumed run writes them again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        record = json.loads(line)
        if (record["iteration"], record["step"]) > (state.iteration, state.step):
            break
        kept.append(line)
    write_text(path, "".join(kept))


def keep_last_metrics(path: Path, count: int) -> None:
    """Forget all but the last ``count`` lines of a ``metrics.jsonl``: those before are an earlier attempt's."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(path, "".join(lines[len(lines) - count :]))


def shapes_fingerprint(model: torch.nn.Module) -> str:
    """Hash of the names and shapes of a model's weights."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def data_fingerprint(examples: Iterable[Example]) -> str:
    """Hash of everything in the examples that reaches a loss."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(example.turn_weights.tobytes() + bytes([example.won]))
        for row in example.rows:
            for array in (row.input_ids, row.turn_ids, row.loss_mask, *row.token_values.values()):
                digest.update(b"-" if array is None else array.tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def replaced_folder(final: Path, accelerator: Accelerator | None = None) -> Iterator[Path]:
    """A folder to write into that becomes ``final``, synced to the disk, when the block ends without an error.

    With an ``accelerator`` the block runs on every process, without one in this process only.
    """
    partial = final.with_name(final.name + ".partial")
    main = accelerator is None or accelerator.is_main_process
    if main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    if accelerator is not None:
        accelerator.wait_for_everyone()
    yield partial
    if accelerator is not None:
        accelerator.wait_for_everyone()
    if main:
        for path in [*partial.rglob("*"), partial]:
            _sync(path)
        if final.exists():
            _remove(final)
        partial.rename(final)
        _sync(final.parent)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Whatever happens inside leaves the random states of training (python, numpy, torch, CUDA) as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _prune(folder: Path, limit: int) -> None:
    steps = sorted(int(match[1]) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name)))
    for step in steps[: max(0, len(steps) - limit)]:
        _remove(folder / f"checkpoint-{step}")


def _remove(folder: Path) -> None:
    doomed = folder.with_name(folder.name + ".old")  # a half-removed folder must not look complete
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
