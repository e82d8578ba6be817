"""The simulator for the tests that need it; they are skipped where it or Java is not installed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.envs.scienceworld.java import find_java, gateway_jar, simulator_jar
from agentgym_tlm.envs.scienceworld.simulator import Simulator, shared_simulator
from agentgym_tlm.errors import DependencyError
from tests.envs.scienceworld.front import Front


@pytest.fixture(scope="session")
def java() -> str:
    """The Java that environments use here."""
    try:
        simulator_jar()
        gateway_jar()
        return find_java()
    except DependencyError as error:
        pytest.skip(str(error))


@pytest.fixture
def simulator(java: str) -> Simulator:
    """The simulator that the environments of this process share."""
    return shared_simulator(java, deterministic=True, timeout=120.0)


@pytest.fixture(scope="session")
def another_simulator(java: str) -> Iterator[Simulator]:
    """The simulator in a second Java process."""
    simulator = Simulator(java, deterministic=True, timeout=120.0)
    yield simulator
    simulator.close()


@pytest.fixture
def front(java: str) -> Iterator[Front]:
    """ScienceWorld's own interface."""
    front = Front(java)
    yield front
    front.close()


@pytest.fixture(scope="session")
def recorded(data_root: Path) -> list[dict[str, Any]]:
    """Gold episodes recorded with ScienceWorld's own wrapper on a deterministic Java."""
    file = data_root / "scienceworld" / "gold_easy_det.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"no recorded ScienceWorld episodes at {file}")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
