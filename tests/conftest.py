"""Shared by all tests: where the official data is, what a user's machine must not change, threads and signals."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentgym_tlm.policies.smollm2 import smollm2_folder

torch.set_num_threads(1)

# A background job of a shell ignores Ctrl-C, and so would the processes that tests start to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def clean_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder without imported data, whatever the machine's user has imported; a fetched model stays."""
    folder = tmp_path_factory.mktemp("cache")
    if smollm2_folder().is_dir():
        (folder / smollm2_folder().name).symlink_to(smollm2_folder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_TLM_CACHE", str(folder))
        yield


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
