"""Data and models in the user's cache folder: how official data gets there, is found there, and is checked.

Data is imported part by part, a part being one split, or what all of them need. An import reads all of the part, copies
(or links) it beside its final place, compares, and only then moves it there; its hash goes into ``manifest.json`` in
the same folder. What a part looks like is said by one module per asset: see :class:`Format`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from agentgym_tlm.errors import ConfigError, DataError
from agentgym_tlm.files import write_text

MANIFEST = "manifest.json"
EMBEDDED = "embedded"
"""The ``data_dir`` that asks an environment for the data that the package makes itself, whatever else there is."""


class DataAsset(NamedTuple):
    """Official data of an environment."""

    summary: str
    variable: str
    """Environment variable that names a folder of it, which comes before the cache."""
    format: str
    """Module that is its :class:`Format`."""


DATA_ASSETS = {
    "alfworld": DataAsset("the official ALFWorld games", "ALFWORLD_DATA", "agentgym_tlm.envs.alfworld.official"),
    "hotpotqa": DataAsset("the official HotpotQA questions", "HOTPOTQA_DATA", "agentgym_tlm.envs.hotpotqa.official"),
}


class Part(NamedTuple):
    """One split, or what all of them need, in someone's files."""

    name: str
    path: str
    """Where it belongs in the asset's folder, with ``/``."""
    source: Path
    """A file, or a folder."""


class Format(Protocol):
    """What the data of an asset looks like."""

    FILES: str
    """Glob pattern of the files of a part that is a folder; others are not imported."""

    @staticmethod
    def find_parts(path: Path) -> Sequence[Part]:
        """All parts in a file or folder. Raises DataError, saying what was expected, when there are none."""
        ...

    @staticmethod
    def check_part(name: str, path: Path) -> str:
        """Read a whole part and say in a few words what it holds. Raises DataError when it is broken."""
        ...

    @staticmethod
    def missing_parts(folder: Path) -> Mapping[str, str]:
        """What the imported data in a folder cannot be played without: names, and what to do about each."""
        ...


@dataclass(frozen=True)
class Record:
    """What the manifest says of an imported part."""

    path: str
    source: str
    holds: str
    size: int
    """Bytes."""
    sha256: str


def cache_folder() -> Path:
    """Where data and models go: ``$AGENTGYM_TLM_CACHE``, else ``agentgym-tlm`` in the user's cache folder."""
    if path := os.environ.get("AGENTGYM_TLM_CACHE"):
        return Path(path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym-tlm"


def asset_path(name: str) -> Path | None:
    """Folder of an asset's imported data; None when nothing has been imported."""
    folder = cache_folder() / name
    return folder if (folder / MANIFEST).is_file() else None


def read_manifest(name: str) -> dict[str, Record]:
    """The imported parts of an asset by name. Raises DataError when the manifest is broken."""
    folder = asset_path(name)
    if folder is None:
        return {}
    try:
        parts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["parts"]
        return {part: Record(**record) for part, record in parts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder / MANIFEST} cannot be read ({error}): delete {folder}, then import {name} again"
        ) from error


def import_asset(name: str, path: str | os.PathLike[str], *, link: bool = False) -> Iterator[tuple[str, Record]]:
    """Bring every part in a file or folder into the cache, one after the other; yields each part when it is there.

    A part of the same name is replaced. ``link`` makes a symbolic link instead of a copy. Raises DataError, with the
    reason, for what is no data of this asset; parts before a broken one stay.
    """
    source = Path(path).expanduser().resolve()
    if not source.exists():
        raise DataError(f"there is nothing at {path}")
    form = asset_format(name)
    for part in form.find_parts(source):
        yield part.name, _import_part(name, part, form, link)


def verify_part(name: str, part: str) -> str | None:
    """What is wrong with an imported part; None if it is as it was and can be read."""
    record = read_manifest(name)[part]
    path = cache_folder() / name / record.path
    if not path.exists():
        return f"{path} is gone"
    form = asset_format(name)
    if _hash(path, form.FILES) != (record.size, record.sha256):
        return f"{path} is not what was imported: its size or checksum differs"
    try:
        form.check_part(part, path)
    except DataError as error:
        return str(error)
    return None


def is_intact(name: str, record: Record) -> bool:
    """Whether a part's files still have the checksum that they were imported with."""
    path = cache_folder() / name / record.path
    return path.exists() and _hash(path, asset_format(name).FILES) == (record.size, record.sha256)


def missing_parts(name: str) -> Mapping[str, str]:
    """What imported data cannot be played without, and what to do about it; nothing where nothing was imported."""
    folder = asset_path(name)
    return {} if folder is None else asset_format(name).missing_parts(folder)


def asset_format(name: str) -> Format:
    """What the data of an asset looks like. Raises ConfigError for an unknown name."""
    if name not in DATA_ASSETS:
        raise ConfigError(f"there is no data asset {name!r}; there are {', '.join(DATA_ASSETS)}")
    return cast(Format, import_module(DATA_ASSETS[name].format))


def _import_part(name: str, part: Part, form: Format, link: bool) -> Record:
    folder = cache_folder() / name
    final = folder / part.path
    if part.source == final.resolve():
        raise DataError(f"{part.source} is where imported data is kept: nothing to import")
    holds = form.check_part(part.name, part.source)
    size, sha256 = _hash(part.source, form.FILES)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".importing-") as temporary:
        staged = Path(temporary, "new", part.path)
        staged.parent.mkdir(parents=True)
        if link:
            staged.symlink_to(part.source)
        else:
            _copy(part.source, staged, form.FILES)
        if _hash(staged, form.FILES) != (size, sha256):
            raise DataError(f"{part.source} changed while it was copied: import it again when it is complete")
        record = Record(part.path, str(part.source), holds, size, sha256)
        records = read_manifest(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        for old in {part.path, records.get(part.name, record).path}:
            if os.path.lexists(folder / old):
                (folder / old).rename(Path(temporary, old.replace("/", "-")))
        staged.rename(final)
        parts = {key: asdict(value) for key, value in sorted({**records, part.name: record}.items())}
        write_text(folder / MANIFEST, json.dumps({"parts": parts}, indent=2) + "\n")
    return record


def _files(path: Path, pattern: str) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob(pattern))


def _copy(source: Path, target: Path, pattern: str) -> None:
    for file in _files(source, pattern):
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _hash(path: Path, pattern: str) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file; of a folder, the hash is over its files' names and hashes."""
    if path.is_file():
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return path.stat().st_size, digest.hexdigest()
    size, digest = 0, hashlib.sha256()
    for file in _files(path, pattern):
        file_size, file_hash = _hash(file, pattern)
        size += file_size
        digest.update(f"{file.relative_to(path).as_posix()} {file_hash}\n".encode())
    return size, digest.hexdigest()
