"""Trained in shares by two processes, under the configurations of scripts/, a policy becomes what one makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.sharding import Sharding
from tests.trainers import sharded

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGURATIONS = REPOSITORY / "scripts" / "benchmark"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes, without shares."""
    folder = tmp_path_factory.mktemp("alone")
    sharded.main([str(folder), "--accumulate", "4"])
    return folder


def launch(configuration: str, folder: Path) -> None:
    """Two processes, with the options of the configuration but for their number."""
    command = f"""-m accelerate.commands.accelerate_cli launch --config_file {CONFIGURATIONS / configuration}
        --num_processes 2 --main_process_port 0 -m tests.accelerators tests.trainers.sharded {folder} --accumulate 2"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    environment.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    done = subprocess.run(
        [sys.executable, *command.split()], env=environment, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-5000:]


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def assert_same_training(mine: Path, theirs: Path) -> None:
    """The same log lines, among them those of every loss and evaluation, and the same policy, which can be loaded."""
    assert len(metrics(mine)) == len(metrics(theirs))
    for found, expected in zip(metrics(mine), metrics(theirs), strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    found_weights, expected_weights = (load_file(run / "policy" / "model.safetensors") for run in (mine, theirs))
    assert found_weights.keys() == expected_weights.keys()
    for name, expected_tensor in expected_weights.items():
        torch.testing.assert_close(found_weights[name], expected_tensor, rtol=1e-3, atol=3e-4)
    model = LanguageModelPolicy.load(mine / "policy", device="cpu").model
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in found_weights.items())


def assert_same_as_alone(found: Path, alone: Path) -> None:
    """SFT, and two iterations of tlm-DRE with sampling in between; what was resumed is bit-equal to what was not."""
    for kind in sharded.KINDS:
        for stage in ("sft", "whole"):
            assert_same_training(found / kind / stage, alone / kind / stage)
        losses = [line for line in metrics(found / kind / "whole") if "loss" in line]
        assert [(line["step"], line["iteration"]) for line in losses] == [(1, 0), (2, 0), (3, 1), (4, 1)]
        assert metrics(found / kind / "resumed") == metrics(found / kind / "whole")
        whole, resumed = (found / kind / run / "policy" / "model.safetensors" for run in ("whole", "resumed"))
        assert whole.read_bytes() == resumed.read_bytes()


def shares(folder: Path) -> list[Any]:
    """Weights, moments, and whether the policy's own weights are given up meanwhile, of the first process."""
    found: list[Any] = json.loads((folder / "shares.json").read_text())
    return found


@pytest.mark.slow
def test_fsdp(alone: Path, tmp_path: Path) -> None:
    launch("accelerate_fsdp.yaml", tmp_path)
    for kind in sharded.KINDS:
        assert shares(tmp_path / kind) == [pytest.approx(0.5, abs=0.02), pytest.approx(0.5, abs=0.02), True]
    assert shares(alone / "llama") == [1, 1, False]
    assert_same_as_alone(tmp_path, alone)


@pytest.mark.slow
def test_deepspeed(alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed compiles for minutes: pip install deepspeed to test with it")
    launch("accelerate_deepspeed.yaml", tmp_path)
    for kind in sharded.KINDS:
        assert shares(tmp_path / kind) == [1, pytest.approx(0.5, abs=0.02), True]
    assert_same_as_alone(tmp_path, alone)


def accelerator(distributed_type: DistributedType, **plugin: Any) -> Any:
    """What :class:`Sharding` looks at."""
    found = SimpleNamespace(**{"fsdp_version": 2, "activation_checkpointing": False, "zero_stage": 2, **plugin})
    found.cpu_ram_efficient_loading = plugin.get("cpu_ram_efficient_loading", False)
    state = SimpleNamespace(fsdp_plugin=found, deepspeed_plugin=found)
    return SimpleNamespace(distributed_type=distributed_type, state=state)


@pytest.mark.parametrize(
    ("kind", "option", "remedy"),
    [
        (DistributedType.FSDP, {"fsdp_version": 1}, "fsdp_version: 2"),
        (DistributedType.FSDP, {"activation_checkpointing": True}, "--gradient-checkpointing"),
        (DistributedType.FSDP, {"cpu_ram_efficient_loading": True}, "fsdp_cpu_ram_efficient_loading: false"),
        (DistributedType.DEEPSPEED, {"zero_stage": 3}, "zero_stage: 2"),
    ],
)
def test_what_would_hang_or_train_wrongly_is_refused(kind: DistributedType, option: Any, remedy: str) -> None:
    """Before anything is loaded or played on rented GPUs."""
    with pytest.raises(ConfigError, match=remedy):
        Sharding(accelerator(kind, **option), TrainingArguments())


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_fp16_is_refused(kind: DistributedType) -> None:
    with pytest.raises(ConfigError, match="bf16"):
        Sharding(accelerator(kind), replace(TrainingArguments(), mixed_precision="fp16"))
