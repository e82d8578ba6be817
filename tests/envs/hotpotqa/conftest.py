"""The small library as a data folder, and the official data where it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym_tlm.envs.hotpotqa.corpus import read_pages
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia, build_wiki
from tests.envs.hotpotqa.library import write_library


@pytest.fixture(autouse=True, scope="session")
def no_data_variable() -> Iterator[None]:
    """The tests say themselves where questions come from, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOTPOTQA_DATA", raising=False)
        yield


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with five questions and a dozen pages."""
    return write_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def wiki(library: Path) -> OfflineWikipedia:
    """The library's pages."""
    return OfflineWikipedia(library / "wiki.sqlite")


@pytest.fixture(scope="session")
def hotpotqa_data(data_root: Path) -> Path:
    """Official questions and passages."""
    folder = data_root / "hotpotqa"
    if not folder.is_dir():
        pytest.skip(f"no HotpotQA data at {folder}")
    return folder


@pytest.fixture(scope="session")
def official_wiki(hotpotqa_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encyclopedia of the official passages."""
    path = tmp_path_factory.mktemp("official") / "wiki.sqlite"
    build_wiki(read_pages([hotpotqa_data / "corpus.jsonl.gz"]), path)
    return path
