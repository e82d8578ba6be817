"""TextWorld behind the native engine's interface, with its hazards contained."""

import importlib.util
import os
import pickle
import sys
import threading

import gymnasium as gym
import pytest

from agentgym_tlm.envs.alfworld.engine import NativeEngine
from agentgym_tlm.envs.alfworld.problem import World
from agentgym_tlm.envs.alfworld.textworld_engine import TextWorldEngine
from agentgym_tlm.errors import ConfigError, DependencyError
from tests.envs.alfworld.kitchen import kitchen

COMMANDS = [
    "go to countertop 2",
    "take mug 2 from countertop 2",
    "fly",
    "go to sidetable 1",
    "move mug 2 to sidetable 1",
]


def mapped_libraries() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return len({line.split()[0].split("-")[0] for line in maps if "libdownward" in line and " r-xp " in line})


@pytest.mark.usefixtures("textworld")
def test_the_process_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """TextWorld overwrites sys.argv, swaps sys.stdout, and importing alfworld sets $ALFWORLD_DATA."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    argv, stdout = list(sys.argv), sys.stdout
    engine = TextWorldEngine(World.parse(kitchen()))
    engine.reset()
    engine.step("look")
    engine.close()
    assert (sys.argv, sys.stdout) == (argv, stdout)
    assert "ALFWORLD_DATA" not in os.environ


@pytest.mark.usefixtures("textworld")
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no /proc")
def test_engines_that_are_gone_leave_no_library_behind() -> None:
    """An environment per episode must not grow the process by 33 MB each."""
    world = World.parse(kitchen())
    TextWorldEngine(world).close()
    before = mapped_libraries()
    for _ in range(3):
        TextWorldEngine(world).close()
        TextWorldEngine(world)
    assert mapped_libraries() == before


@pytest.mark.usefixtures("textworld")
def test_games_side_by_side_copies_and_pickles() -> None:
    """Two games at once do not mix; a clone and a pickle stand where the original stands."""
    first, second = (TextWorldEngine(World.parse(kitchen(kind))) for kind in ("pick_and_place_simple",) * 2)
    native = NativeEngine(first.world)
    for command in COMMANDS[:3]:
        assert first.step(command) == native.step(command)
        assert first.action_valid == native.action_valid
    assert second.step(COMMANDS[0]).startswith("You arrive at countertop 2.")
    for copy in (first.clone(), pickle.loads(pickle.dumps(first))):
        assert copy.admissible_commands() == native.admissible_commands()
        copy.step(COMMANDS[3])
        copy.step(COMMANDS[4])
        assert copy.won
        assert copy.goal_fraction == 1
        copy.close()
    assert not first.won


@pytest.mark.usefixtures("textworld")
def test_threads_take_turns() -> None:
    """Stock TextWorld crashes when two threads use it, even on games of their own."""
    world = World.parse(kitchen())
    native = NativeEngine(world)
    expected = [native.step(command) for command in COMMANDS]
    answers: dict[int, list[str]] = {}

    def play(number: int) -> None:
        engine = TextWorldEngine(world)
        answers[number] = [engine.step(command) for command in COMMANDS]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {0: expected, 1: expected, 2: expected}


@pytest.mark.usefixtures("textworld")
def test_the_environment_plays_it() -> None:
    """engine="textworld" is a drop-in: same observations, same info, and its version is recorded."""
    native, reference = (
        gym.make("ALFWorld-v0", num_games=5, admissible_commands=True, engine=engine)
        for engine in ("native", "textworld")
    )
    start = native.reset(seed=3)
    assert reference.reset(seed=3) == start
    walkthrough = native.get_wrapper_attr("walkthrough")
    assert reference.get_wrapper_attr("walkthrough") == walkthrough
    for command in ("Look.", *walkthrough):
        last = native.step(command)
        assert reference.step(command) == last
    assert last[4]["won"]
    assert {"textworld", "alfworld"} <= reference.get_wrapper_attr("version")().keys()
    snapshot = reference.get_wrapper_attr("snapshot")()
    assert reference.get_wrapper_attr("restore")(pickle.loads(pickle.dumps(snapshot))) == (last[0], last[4])
    reference.close()


@pytest.mark.parametrize("missing", ["alfworld", "textworld"])
def test_missing_packages_are_named_with_the_extra_that_installs_them(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the reference without the extra learns what to install, at construction."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(DependencyError, match=rf"{missing}: pip install 'agentgym-tlm\[alfworld\]'"):
        gym.make("ALFWorld-v0", engine="textworld")


@pytest.mark.usefixtures("stock_textworld")
def test_options_textworld_cannot_honour_are_refused() -> None:
    """No silent fallback."""
    with pytest.raises(ConfigError, match="allow_revisit"):
        gym.make("ALFWorld-v0", engine="textworld", allow_revisit=True)
