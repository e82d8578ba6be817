"""What the official ALFWorld games look like on disk, for importing them: see :class:`agentgym_tlm.assets.Format`."""

from __future__ import annotations

from pathlib import Path

from agentgym_tlm.assets import Part
from agentgym_tlm.envs.alfworld.problem import World
from agentgym_tlm.envs.alfworld.sources import SPLITS, FolderSource, PackedSource
from agentgym_tlm.errors import DataError

FILES = "game.tw-pddl"
PUBLISHED = {"train": 3553, "valid_seen": 140, "valid_unseen": 134, "valid_train": 200}
"""Playable games of each split of data format 2.1.2."""


def find_parts(path: Path) -> list[Part]:
    """Splits in a ``json_2.1.1`` tree or its parent, a folder of packed splits, a split's folder, or a packed split."""
    parts = []
    for split in SPLITS:
        pack = f"{split}.jsonl.xz"
        folders = [path / "json_2.1.1" / split, path / split, *([path] if path.name == split else [])]
        packs = [path / pack, *([path] if path.name == pack else [])]
        if folder := next((folder for folder in folders if folder.is_dir()), None):
            parts.append(Part(split, f"json_2.1.1/{split}", folder))
        elif file := next((file for file in packs if file.is_file()), None):
            parts.append(Part(split, pack, file))
    if not parts:
        raise DataError(
            f"{path} holds no ALFWorld games: expected the folder that `alfworld-download` fills (with "
            f"json_2.1.1/<split>/<task>/<trial>/{FILES}), or <split>.jsonl.xz; the splits are {', '.join(SPLITS)}"
        )
    return parts


def check_part(name: str, path: Path) -> str:
    """Parse every game of a split."""
    source = FolderSource(name, path) if path.is_dir() else PackedSource(name, path)
    for task_id in source.task_ids:
        World.parse(source.load(task_id))
    return f"{len(source.task_ids):,} games of {PUBLISHED[name]:,} published"


def missing_parts(folder: Path) -> dict[str, str]:
    """Nothing: each split can be played by itself."""
    return {}
