"""Runs a module on the CPU as Accelerate would on GPUs: python -m tests.accelerators [-m] MODULE [ARGUMENT ...]

Accelerate shards nothing on CPUs. Here it takes the processes for those of a machine with GPUs, whose collectives are
gloo's and whose device is the CPU; all else, the package included, is what it is.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType


def _gloo(*_: Any, **__: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


if __name__ == "__main__":
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    PartialState._prepare_backend = _gloo
    del sys.argv[: 2 if sys.argv[1] == "-m" else 1]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
