"""TextWorld for the tests that compare with it; they are skipped where it is not installed."""

from collections.abc import Iterator

import pytest

from agentgym_tlm.envs.alfworld.parity import textworld_caches
from agentgym_tlm.envs.alfworld.textworld_engine import require_textworld
from agentgym_tlm.errors import DependencyError


@pytest.fixture(scope="session")
def stock_textworld() -> None:
    """TextWorld as it is."""
    try:
        require_textworld()
    except DependencyError as error:
        pytest.skip(str(error))


@pytest.fixture
def textworld(stock_textworld: None) -> Iterator[None]:
    """TextWorld with its parses and translations remembered (ten times faster, the same text)."""
    with textworld_caches():
        yield
