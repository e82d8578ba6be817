"""Small files that are complete or absent, and folders that one process at a time works in."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file by renaming a complete one, replacing ``path``."""
    with replaced_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A file to write that becomes ``path`` when the block ends without an error, and is removed otherwise."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def sole_worker(folder: Path, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time is inside for ``folder``; ``busy`` is called where others have to be waited for.

    The lock goes with its process, however that ends. Warns where a file system, or the machine, has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy()
                fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError) as error:
            warnings.warn(f"{folder} cannot be locked ({error}): let no two processes work in it", stacklevel=3)
        yield


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON as every reader takes it: numbers that are not finite become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
