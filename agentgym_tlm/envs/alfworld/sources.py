"""Where ALFWorld games come from: an official data folder, a folder of packed splits, or the embedded generator.

:func:`open_source` looks, in this order, at an explicit ``data_dir``, at ``$ALFWORLD_DATA``, and at what
``agentgym-tlm data import alfworld`` has brought into the cache; the generator is used when there is none of them. What
is there but cannot be read is an error. ``data_dir="embedded"`` asks for the generator, and ``num_games`` prefers it to
the cache. Nothing is ever written to a data folder. Indexes are kept per process, so any number of environments share
one.

As in ALFWorld, games that are not marked solvable, and trials with movable receptacles or sliced objects, are left out.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from agentgym_tlm.assets import EMBEDDED, asset_path
from agentgym_tlm.envs.alfworld.generator import (
    DEFAULT,
    GENERATOR_VERSION,
    PRESETS,
    GeneratorConfig,
    embedded_task_ids,
    generate_from_id,
    task_type,
)
from agentgym_tlm.envs.alfworld.problem import Game
from agentgym_tlm.errors import ConfigError, DataError, SplitNotFoundError, TaskNotFoundError

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
DATA_VARIABLE = "ALFWORLD_DATA"
EMBEDDED_SIZES: Mapping[str, int] = {"train": 10000, "valid_seen": 140, "valid_unseen": 134}
"""Games of each split that the generator makes unless asked for another number; the last two are ALFWorld's."""

_REMEDY = (
    "download the official games with `alfworld-download` (from `pip install alfworld`) and point data_dir or "
    f"${DATA_VARIABLE} to them, or play the embedded generator's games with data_dir='{EMBEDDED}'"
)


class GameSource(Protocol):
    """The games of one split. ``task_ids`` are sorted; games are read or made one at a time."""

    @property
    def split(self) -> str:
        """Name of the split."""
        ...

    @property
    def description(self) -> str:
        """Where the games come from, for people."""
        ...

    @property
    def task_ids(self) -> tuple[str, ...]:
        """All ids of the split."""
        ...

    def load(self, task_id: str) -> Game:
        """One game. Raises TaskNotFoundError for an unknown id, DataError for a broken file."""
        ...


def open_source(
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    num_games: int | None = None,
    generator: str | GeneratorConfig = DEFAULT,
) -> GameSource:
    """The games of ``split``. ``num_games`` and ``generator`` (a preset's name or a config) are the generator's only.

    Raises DataError when data that was asked for is missing or broken, ConfigError for options that do not fit.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if data_dir is not None and (not isinstance(data_dir, (str, os.PathLike)) or not os.fspath(data_dir)):
        raise ConfigError(f"data_dir must be a folder or '{EMBEDDED}', not {data_dir!r}")
    if num_games is not None and not isinstance(num_games, int):
        raise ConfigError(f"num_games must be a number of games, not {num_games!r}")
    if not isinstance(generator, (str, GeneratorConfig)):
        raise ConfigError(f"generator must be a GeneratorConfig or one of {list(PRESETS)}, not {generator!r}")
    origin = "data_dir"
    if data_dir is None and os.environ.get(DATA_VARIABLE):
        data_dir, origin = os.environ[DATA_VARIABLE], f"${DATA_VARIABLE}"
    if data_dir is None and num_games is None:
        data_dir, origin = asset_path("alfworld"), "imported data"
    if data_dir is None or data_dir == EMBEDDED:
        return EmbeddedSource(split, EMBEDDED_SIZES.get(split, 1) if num_games is None else num_games, generator)
    if num_games is not None:
        raise ConfigError(f"num_games sizes the embedded generator; the games in {origin}={data_dir} are what they are")
    return _find_split(Path(data_dir).expanduser(), split, origin)


@dataclass(frozen=True)
class EmbeddedSource:
    """Generated games."""

    split: str
    num_games: int
    generator: str | GeneratorConfig = DEFAULT

    @cached_property
    def config(self) -> GeneratorConfig:
        if isinstance(self.generator, GeneratorConfig):
            return self.generator
        if self.generator not in PRESETS:
            raise ConfigError(f"generator must be a GeneratorConfig or one of {list(PRESETS)}, not {self.generator!r}")
        return PRESETS[self.generator]

    @property
    def description(self) -> str:
        custom = f"custom-{hashlib.sha256(repr(self.config).encode()).hexdigest()[:8]}"
        preset = next((name for name, config in PRESETS.items() if config == self.config), custom)
        return f"embedded generator v{GENERATOR_VERSION}, {preset} rooms"

    @property
    def task_ids(self) -> tuple[str, ...]:
        return _embedded_ids(self.split, self.num_games, self.config)

    def load(self, task_id: str) -> Game:
        return Game.from_record(generate_from_id(task_id, self.config))


@dataclass(frozen=True)
class FolderSource:
    """An official tree, ``<folder>/<task>/<trial>/game.tw-pddl``."""

    split: str
    folder: Path

    @property
    def description(self) -> str:
        return f"official data in {self.folder.parent}"

    @cached_property
    def task_ids(self) -> tuple[str, ...]:
        return _index_folder(self.folder, self.folder.stat().st_mtime_ns)

    def load(self, task_id: str) -> Game:
        if task_id not in self.task_ids:
            raise TaskNotFoundError(f"no game {task_id!r} in {self.folder}")
        path = self.folder.parent / task_id / "game.tw-pddl"
        record = _read_game_file(path)
        grammar = str(record.get("grammar"))
        sentence = _SENTENCE.search(grammar)
        if '"put {o} in/on {r}"' in grammar:
            raise DataError(
                f"{path} is in an older data format than 2.1.2 ('put X in/on Y', 'You arrive at loc 1'). Fetch the new "
                "files with `alfworld-download -f`; action_style='put' keeps the old wording of placing an object"
            )
        if sentence is None:
            raise DataError(f"{path} states no task in its grammar: {_REMEDY}")
        record |= {"id": task_id, "task": json.loads(f'"{sentence[1]}"'), "traj": {"task_type": task_type(task_id)}}
        try:
            return Game.from_record(record)
        except DataError as error:
            raise DataError(f"{path}: {error}; {_REMEDY}") from error


@dataclass(frozen=True)
class PackedSource:
    """A ``<split>.jsonl.xz`` file with one game record a line."""

    split: str
    path: Path

    @property
    def description(self) -> str:
        return f"official data in {self.path.parent}"

    @cached_property
    def task_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self._games))

    @cached_property
    def _games(self) -> Mapping[str, bytes]:
        return _read_pack(self.path, self.path.stat().st_mtime_ns)

    def load(self, task_id: str) -> Game:
        if task_id not in self._games:
            raise TaskNotFoundError(f"no game {task_id!r} in {self.path}")
        try:
            return Game.from_record(json.loads(zlib.decompress(self._games[task_id])))
        except DataError as error:
            raise DataError(f"{self.path}, game {task_id}: {error}; {_REMEDY}") from error


_SENTENCE = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_SOLVABLE = re.compile(rb'"solvable": *(true|false|null)')


def _find_split(root: Path, split: str, origin: str) -> FolderSource | PackedSource:
    for folder in (root / "json_2.1.1" / split, root / split):
        if folder.is_dir():
            return FolderSource(split, folder.resolve())
    if (path := root / f"{split}.jsonl.xz").is_file():
        return PackedSource(split, path.resolve())
    if not root.exists():
        raise DataError(f"{origin}={root} does not exist: {_REMEDY}")
    if not root.is_dir():
        raise DataError(f"{origin}={root} is not a folder: {_REMEDY}")
    found = [s for s in SPLITS for p in (root / "json_2.1.1" / s, root / s, root / f"{s}.jsonl.xz") if p.exists()]
    if found:
        raise SplitNotFoundError(f"{origin}={root} holds only the splits {', '.join(found)}, not {split!r}: {_REMEDY}")
    raise DataError(f"{origin}={root} holds neither json_2.1.1/{split}/ nor {split}.jsonl.xz: {_REMEDY}")


@lru_cache(maxsize=32)
def _embedded_ids(split: str, num_games: int, config: GeneratorConfig) -> tuple[str, ...]:
    return embedded_task_ids(split, num_games, config)


def _supported(task_id: str) -> bool:
    return "movable" not in task_id and "Sliced" not in task_id


@lru_cache(maxsize=32)
def _index_folder(folder: Path, _modified: int) -> tuple[str, ...]:
    task_ids, without_game, unsolvable = [], 0, 0
    for task in sorted(os.listdir(folder)):
        if not (folder / task).is_dir() or not _supported(task):
            continue
        for trial in sorted(os.listdir(folder / task)):
            path = folder / task / trial / "game.tw-pddl"
            if not path.is_file():
                without_game += 1
            elif _is_solvable(path):
                task_ids.append(f"{folder.name}/{task}/{trial}")
            else:
                unsolvable += 1
    if not task_ids:
        raise DataError(
            f"{folder} holds no playable game ({without_game} trials without game.tw-pddl, {unsolvable} not solvable): "
            f"{_REMEDY}"
        )
    return tuple(sorted(task_ids))


def _is_solvable(path: Path) -> bool:
    """Whether a game file is marked solvable: the mark stands near its end, so the whole is seldom parsed."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        tail = file.read()
    marks = _SOLVABLE.findall(tail)
    if marks and tail.rstrip().endswith(b"}"):
        return bool(marks[-1] == b"true")
    return bool(_read_game_file(path).get("solvable"))


def _read_game_file(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): {_REMEDY}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} is not a JSON object: {_REMEDY}")
    return record


@lru_cache(maxsize=8)
def _read_pack(path: Path, _modified: int) -> Mapping[str, bytes]:
    """All games of a packed split, each compressed on its own: about 7 KB a game instead of 48."""
    games: dict[str, bytes] = {}
    lines = 0
    try:
        with lzma.open(path, "rb") as file:
            for line in file:
                record = json.loads(line)
                if record["solvable"] and _supported(record["id"]):
                    games[record["id"]] = zlib.compress(line, 1)
                lines += 1
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is corrupt after line {lines}: {type(error).__name__} {error}; {_REMEDY}") from error
    if not games:
        raise DataError(f"{path} holds no playable game: {_REMEDY}")
    return games
