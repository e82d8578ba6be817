"""Shared by all tests: where the official data is, and one torch thread."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the official data (``$AGENTGYM_TLM_DATA``, else ``../shared/data`` beside the repository)."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("AGENTGYM_TLM_DATA", default))
    if not root.is_dir():
        pytest.skip(f"no official data at {root}: set AGENTGYM_TLM_DATA")
    return root


@pytest.fixture(scope="session")
def alfworld_data(data_root: Path) -> Path:
    """The official ALFWorld games."""
    folder = data_root / "alfworld"
    if not folder.is_dir():
        pytest.skip(f"no official ALFWorld games at {folder}")
    return folder
