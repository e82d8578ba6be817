"""What the official HotpotQA files look like, for importing them: see :class:`agentgym_tlm.assets.Format`."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_tlm.assets import Part
from agentgym_tlm.errors import DataError

FILES = "*.json*"
STEMS = {
    "train": ("hotpot_train_v1.1", "train_distractor", "train"),
    "dev": ("hotpot_dev_distractor_v1", "dev_distractor", "hotpot_dev_fullwiki_v1", "dev_fullwiki", "dev"),
}
"""File names of each split, without their suffix, the preferred one first."""
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
PUBLISHED = {"train": 90447, "dev": 7405}
"""Questions of each split."""

_FIELDS = {"_id": str, "question": str, "answer": str, "type": str, "supporting_facts": list, "context": list}


def find_parts(path: Path) -> list[Part]:
    """Splits in a folder of official files, or the split that is one such file."""
    parts = []
    for split, stems in STEMS.items():
        names = [stem + suffix for stem in stems for suffix in SUFFIXES]
        files = [path / name for name in names] + ([path] if path.name in names else [])
        if file := next((file for file in files if file.is_file()), None):
            parts.append(Part(split, file.name, file))
    if not parts:
        raise DataError(
            f"{path} holds no HotpotQA questions: expected hotpot_train_v1.1.json or hotpot_dev_distractor_v1.json "
            f"(or {', '.join(stem for stems in STEMS.values() for stem in stems[1:])}), as {', '.join(SUFFIXES)}"
        )
    return parts


def check_part(name: str, path: Path) -> str:
    """Read every question of a split."""
    ids = set()
    for number, record in enumerate(_records(path), start=1):
        if not isinstance(record, dict):
            raise DataError(f"{path}: record {number} is a {type(record).__name__}, not a question")
        for field, kind in _FIELDS.items():
            if not isinstance(record.get(field), kind):
                raise DataError(f"{path}: record {number} is no HotpotQA question: {field} must be a {kind.__name__}")
        if record["_id"] in ids:
            raise DataError(f"{path}: record {number} has the _id of an earlier one, {record['_id']!r}")
        ids.add(record["_id"])
    if not ids:
        raise DataError(f"{path} holds no question")
    return f"{len(ids):,} questions of {PUBLISHED[name]:,} published"


def _records(path: Path) -> Iterator[Any]:
    """The records of a JSON list or of JSON lines. Raises DataError when they cannot be read."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            if path.name.removesuffix(".gz").endswith(".jsonl"):
                yield from map(json.loads, file)
                return
            records = json.load(file)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path} is corrupt: {type(error).__name__} {error}") from error
    if not isinstance(records, list):
        raise DataError(f"{path} is a JSON {type(records).__name__}, not a list of questions")
    yield from records
