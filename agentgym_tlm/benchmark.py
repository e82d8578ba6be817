"""``benchmark.lock``: what has to be the same in every cell of a comparison, so that its numbers compare.

It names the environment and its versions, the manifests by hash, the prompt by hash, how evaluations sample, the
packages, and the recipe that all cells share. Paths are not in it: data and given files are known by their contents.
Results of different locks are never put into one table.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import agentgym_tlm
from agentgym_tlm.config import to_dict
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.files import sole_worker, to_json, write_text
from agentgym_tlm.policies.loading import read_settings
from agentgym_tlm.policies.tiny import TINY_FORMAT
from agentgym_tlm.prompt import ReactFormat, format_to_dict, make_format
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.suites import Suite
from agentgym_tlm.trainers.args import RUN_INDEPENDENT

LOCK_FILE = "benchmark.lock"
_PACKAGES = ("torch", "transformers", "accelerate", "gymnasium", "numpy")
_OWN = ("trainer", "seed", "output_dir", "resume", "sft_policy", "num_threads", "data_dir")
"""Options that cells may differ in, and a folder that is known by what is in it."""


def benchmark_lock(config: ExperimentConfig, *, budget: int | None, suites: Sequence[Suite] = ()) -> dict[str, Any]:
    """The lock of a comparison whose cells share ``config``, with ``budget`` environment steps for every trainer."""
    envs = config.envs
    recipe = {name: value for name, value in to_dict(config).items() if name not in _OWN}
    recipe["sft"] = {name: value for name, value in recipe["sft"].items() if name not in RUN_INDEPENDENT}
    recipe["evaluation"].pop("n_slots")
    if config.expert.file is not None:
        recipe["expert"] = {"sha256": _sha256(config.expert.file)}
    folder = Path(config.policy)
    if folder.is_dir():
        recipe["policy"] = {path.name: _sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    manifests = {split: envs.manifest(split).sha256 for split in ("train", *config.evaluation.splits)}
    lock = {
        "environment": {"id": envs.env, **_without_folders(envs.version())},
        "manifests": manifests,
        "prompt": {"format": _format(config)["name"], "sha256": _hash(_format(config))},
        "sampling": {
            "temperature": config.evaluation.temperature,
            "num_tasks": config.evaluation.num_tasks,
            "max_episode_steps": envs.max_episode_steps,
        },
        "packages": {
            "agentgym-tlm": agentgym_tlm.__version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
        "budget": budget,
        "recipe": {**recipe, "sha256": _hash(recipe)},
        "suites": {suite.name: suite.envs(envs).manifest(suite.split).sha256 for suite in suites},
    }
    as_kept: dict[str, Any] = json.loads(to_json(lock))
    return as_kept


def keep_lock(folder: Path, lock: dict[str, Any]) -> None:
    """Write the lock to ``folder``, or compare it with that of the cells there: it may only have further suites.

    Raises ConfigError as :func:`check_lock` does.
    """
    file = folder / LOCK_FILE
    with sole_worker(folder):
        if file.exists():
            kept = read_lock(folder)
            check_lock(kept, lock, folder)
            lock = {**lock, "suites": {**kept["suites"], **lock["suites"]}}
        write_text(file, to_json(lock, indent=1) + "\n")


def read_lock(folder: Path) -> dict[str, Any]:
    """The lock of a folder of cells. Raises ConfigError when it has none."""
    file = folder / LOCK_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} is no folder of a comparison: it has no {LOCK_FILE}")
    lock: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return lock


def check_lock(lock: dict[str, Any], other: dict[str, Any], folder: Path) -> None:
    """Raise ConfigError, naming what differs, unless two locks allow their results into one table."""
    ours, theirs = _flat(lock), _flat(other)
    common = lock["suites"].keys() & other["suites"].keys()
    names = [
        name
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name) and not (name[0] == "suites" and name[1] not in common)
    ]
    hashes = {("recipe", "sha256")}
    if names:
        listed = [
            f"{'.'.join(name)} {ours.get(name)!r}, now {theirs.get(name)!r}" for name in names if name not in hashes
        ]
        raise ConfigError(
            f"{folder} holds results of another benchmark ({'; '.join(listed)}): numbers of the two do not compare. "
            "Choose another --output-dir, or give the same options"
        )


def _flat(value: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[tuple[str, ...], Any] = {}
    for key, item in value.items():
        found |= _flat(item, (*prefix, str(key)))
    return found


def _format(config: ExperimentConfig) -> dict[str, Any]:
    """The prompt format that the SFT policy will have."""
    if config.policy == "tiny":
        return format_to_dict(make_format(config.prompt_format, config.tags, instructions="") or TINY_FORMAT)
    own = read_settings(Path(config.policy)).get("format")
    return format_to_dict(make_format(config.prompt_format, config.tags, own=own) or own or ReactFormat())


def _without_folders(version: dict[str, str]) -> dict[str, str]:
    return {name: text.partition(" in ")[0] for name, text in version.items()}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
