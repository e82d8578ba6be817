"""What the official HotpotQA files look like, for importing them: see :class:`agentgym_tlm.assets.Format`."""

from __future__ import annotations

from pathlib import Path

from agentgym_tlm.assets import Part
from agentgym_tlm.envs.hotpotqa.corpus import read_records
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
    for number, record in enumerate(read_records(path), start=1):
        for field, kind in _FIELDS.items():
            if not isinstance(record.get(field), kind):
                raise DataError(f"{path}: record {number} is no HotpotQA question: {field} must be a {kind.__name__}")
        if record["_id"] in ids:
            raise DataError(f"{path}: record {number} has the _id of an earlier one, {record['_id']!r}")
        ids.add(record["_id"])
    return f"{len(ids):,} questions of {PUBLISHED[name]:,} published"
