"""``agentgym-tlm doctor``: can the main job run here, on which data and device, and what to do if it cannot."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table

import agentgym_tlm
from agentgym_tlm import ENV_IDS
from agentgym_tlm.commands.envs import columns, manifests
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.envs.base import TaskManifest
from agentgym_tlm.envs.scienceworld.java import find_java, java_version
from agentgym_tlm.errors import AgentGymError
from agentgym_tlm.ranges import COUNT, check_ranges

REQUIRED = ("torch", "transformers", "accelerate", "gymnasium")
OPTIONAL = {
    "alfworld": "alfworld",
    "textworld": "alfworld",
    "scienceworld": "scienceworld",
    "wikipedia-api": "hotpotqa",
    "peft": "lora",
    "gguf": "gguf",
    "httpx": "remote",
    "atif": "atif",
    "pyarrow": "parquet",
    "matplotlib": "report",
}
"""Distribution -> the extra that installs it."""

Status = Literal["ok", "optional", "problem"]


_STYLES = {"ok": "", "optional": "dim", "problem": "red"}


class Finding(NamedTuple):
    """One line of the report. Only a ``problem`` keeps the main job from running."""

    what: str
    found: str
    status: Status = "ok"
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check what is installed, which data is found, and the device; exit code 0 when the main job can run."""

    model: str | None = None
    """Instead: estimate the memory that training this model takes; a folder (config.json is enough) or a hub id."""
    tokens: int = 8192
    """For --model: tokens per forward pass and device."""
    devices: int = 1
    """For --model: devices that share weights, gradients and optimizer state (FSDP2)."""

    def __post_init__(self) -> None:
        check_ranges(self, tokens=COUNT, devices=COUNT)

    def run(self) -> int:
        """Print the report; 1 when there is a problem."""
        if self.model is not None:
            Console(highlight=False).print(_memory_table(self.model, self.tokens, self.devices))
            return 0
        report = findings()
        console = Console(highlight=False, soft_wrap=True, markup=False)
        for finding, line in zip(report, columns([(f.status, f.what, f.found) for f in report]), strict=True):
            console.print(line, style=_STYLES[finding.status])
        console.print()
        for finding in report:
            if finding.remedy:
                console.print(f"{finding.what}: {finding.remedy}", style=_STYLES[finding.status])
        if any(finding.status == "problem" for finding in report):
            console.print("The main job cannot run.", style="red")
            return 1
        console.print("The main job can run.", style="green")
        return 0


def _memory_table(model: str, tokens: int, devices: int) -> Table:
    """Estimates for the ways to train a model; see :mod:`agentgym_tlm.memory`."""
    from agentgym_tlm.memory import GIB, count_weights, training_memory
    from agentgym_tlm.policies.loading import load_config

    config = load_config(model)
    table = Table(
        title=f"{model}: {count_weights(config) / 1e9:.2f} billion weights, {tokens:,} tokens per forward pass"
        + (f", on each of {devices} devices" if devices > 1 else ""),
        caption="GiB, estimated; bfloat16 autocast, float32 weights, for LoRA as they are stored"
        + ("; while the policy plays, all weights once more" if devices > 1 else ""),
    )
    for column in ("trained", "weights", "gradients", "AdamW", "activations", "logits", "total"):
        table.add_column(column, justify="left" if column == "trained" else "right")
    for trained, options in (
        ("all weights", {}),
        ("all weights, gradient checkpointing", {"gradient_checkpointing": True}),
        ("LoRA r=16, gradient checkpointing", {"gradient_checkpointing": True, "lora_r": 16}),
    ):
        found = training_memory(config, tokens=tokens, shards=devices, **options)
        parts = (found.weights, found.gradients, found.optimizer, found.activations, found.logits, found.total)
        table.add_row(trained, *(f"{part / GIB:.1f}" for part in parts))
    return table


def findings() -> list[Finding]:
    """Everything that :class:`Doctor` prints, in order."""
    return [*_software(), *_data(), *_device(), *_models()]


def _software() -> Iterator[Finding]:
    yield Finding("agentgym-tlm", agentgym_tlm.__version__)
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    for name in REQUIRED:
        found = _version(name)
        if found is not None:
            yield Finding(name, found)
        else:
            yield Finding(name, "not installed", "problem", f"pip install {name}")
    for name, extra in OPTIONAL.items():
        found = _version(name)
        if found is not None:
            yield Finding(name, found)
        else:
            yield Finding(name, "not installed", "optional", f'pip install "agentgym-tlm[{extra}]"')
    yield _java()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _java() -> Finding:
    """ScienceWorld's simulator is a Java program."""
    try:
        java = find_java()
        return Finding("java", f"{java_version(java)} ({java})")
    except AgentGymError as error:
        return Finding("java", "not found", "optional", f"only ScienceWorld needs it: {error}")


def _data() -> Iterator[Finding]:
    """What every environment has. The main job plays the default one, so that only its faults are problems."""
    for env_id in ENV_IDS:
        status: Status = "problem" if env_id == EnvArgs.env else "optional"
        try:
            found = manifests(env_id)
        except AgentGymError as error:
            yield Finding(env_id, "no tasks", status, str(error))
            continue
        try:
            EnvArgs(env=env_id).version(
                next(split for split, tasks in found.items() if isinstance(tasks, TaskManifest))
            )
        except AgentGymError as error:
            yield Finding(env_id, "cannot be played", status, str(error))
            continue
        tasks = {split: manifest for split, manifest in found.items() if isinstance(manifest, TaskManifest)}
        counts = ", ".join(f"{split} {len(manifest)}" for split, manifest in tasks.items())
        yield Finding(env_id, f"{next(iter(tasks.values())).source}: {counts}")
        for split in ("train", "valid_seen", "valid_unseen"):
            if split not in tasks:
                yield Finding(f"{env_id} {split}", "no tasks", status, str(found[split]))


def _device() -> Iterator[Finding]:
    if _version("torch") is None:
        return
    import torch

    yield Finding("cpu", f"{os.cpu_count()} cores, of which --num-threads (default 1) are used; bf16 autocast")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        yield Finding(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {bf16}")
    if torch.backends.mps.is_available():
        yield Finding("mps", "available")


def _models() -> Iterator[Finding]:
    if any(_version(name) is None for name in REQUIRED):
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    from agentgym_tlm.policies.smollm2 import FETCH_COMMAND, smollm2_folder

    yield Finding("hub cache", HF_HUB_CACHE)
    folder = smollm2_folder()
    if folder.is_dir():
        yield Finding("smollm2", str(folder))
    else:
        yield Finding("smollm2", f"not in {folder}", "optional", FETCH_COMMAND)
