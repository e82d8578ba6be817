"""The native engine against TextWorld itself: numbers from one must be comparable with published ones from the other.

``scripts/parity_alfworld.py`` is the long version.
"""

from pathlib import Path
from random import Random

import pytest

from agentgym_tlm.envs.alfworld.engine import NativeEngine
from agentgym_tlm.envs.alfworld.generator import PRESETS, generate_game, task_type
from agentgym_tlm.envs.alfworld.parity import compare, random_command, textworld_caches
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES, Game, World
from agentgym_tlm.envs.alfworld.sources import open_source
from agentgym_tlm.envs.alfworld.textworld_engine import TextWorldEngine
from tests.envs.alfworld.kitchen import TRANSCRIPT, kitchen


@pytest.mark.usefixtures("textworld")
def test_textworld_says_what_the_hand_written_transcript_says() -> None:
    """The transcript that test_engine holds the native engine to is the reference's own."""
    engine = TextWorldEngine(World.parse(kitchen()))
    for command, answer in TRANSCRIPT:
        assert (command, engine.step(command)) == (command, answer)
    engine.close()


@pytest.mark.usefixtures("textworld")
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_kitchen_with_every_goal(kind: str) -> None:
    """Random play among the quirks, ``won`` and the goal conditions included."""
    assert compare(World.parse(kitchen(kind)), steps=40).differences == []


@pytest.mark.usefixtures("textworld")
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_generated_games(kind: str) -> None:
    """Embedded games are real ALFWorld games: TextWorld plays them to the same end."""
    config = PRESETS["official" if kind == "pick_and_place_simple" else "small"]
    games = (Game.from_record(generate_game("valid_unseen", index, config)) for index in range(100))
    game = next(game for game in games if game.task_type == kind)
    found = compare(World.parse(game), steps=15, action_style="put" if kind == "pick_two_obj_and_place" else "move")
    assert found.differences == []
    assert found.wins == 1


@pytest.mark.usefixtures("textworld")
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_official_games(kind: str, alfworld_data: Path) -> None:
    """One official game of each type, over three splits."""
    source = open_source(("valid_unseen", "valid_seen", "valid_train")[TASK_TYPES.index(kind) % 3], alfworld_data)
    task_id = next(task_id for task_id in source.task_ids if task_type(task_id) == kind)
    found = compare(World.parse(source.load(task_id)), steps=10)
    assert found.differences == []
    assert found.wins == 1


@pytest.mark.usefixtures("stock_textworld")
def test_stock_textworld_says_the_same_as_the_cached_one() -> None:
    """The speed-ups that the comparison runs with must not be what makes it agree."""
    world = World.parse(kitchen("pick_cool_then_place_in_recep"))
    with textworld_caches():
        cached = compare(world, steps=4)
    stock = compare(world, steps=4)
    assert (stock.differences, stock.verbs) == (cached.differences, cached.verbs) == ([], stock.verbs)


@pytest.mark.usefixtures("textworld")
def test_a_difference_is_found_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that cannot fail proves nothing."""

    step = NativeEngine.step
    monkeypatch.setattr(NativeEngine, "step", lambda self, action: step(self, action).replace("arrive at", "reach"))
    [difference] = compare(World.parse(kitchen()), steps=30).differences
    assert difference.startswith("observation after [")
    assert "You reach" in difference


def test_random_play_reaches_every_kind_of_command() -> None:
    """The comparison covers what it claims to: all verbs, and commands that are refused."""
    engine = NativeEngine(World.parse(kitchen()))
    rng = Random(0)
    verbs, refused = set(), 0
    for _ in range(4000):
        command = random_command(engine, rng)
        engine.step(command)
        refused += not engine.action_valid
        verbs |= {command.split()[0]} if engine.action_valid else set()
    assert verbs == {
        *("look", "inventory", "help", "examine", "go", "open", "close", "take", "move"),
        *("clean", "heat", "cool", "use", "slice"),
    }
    assert 0.02 < refused / 4000 < 0.08
