"""The native engine: what a player reads and can do, move by move. (That it is TextWorld's text: test_parity.)"""

import pickle
import threading
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.alfworld.engine import NOTHING_HAPPENS, WELCOME, NativeEngine
from agentgym_tlm.envs.alfworld.generator import generate_game
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES, Game, World, parse_goal
from agentgym_tlm.errors import DataError
from tests.envs.alfworld.kitchen import GOALS, ROOM, TRANSCRIPT, kitchen


def engine_for(task_type: str, *, allow_revisit: bool = False) -> NativeEngine:
    return NativeEngine(World.parse(kitchen(task_type)), allow_revisit=allow_revisit)


def play(engine: NativeEngine, commands: str) -> list[float]:
    """Goal fraction after each of the commands, one a line, all of which must be admissible."""
    fractions = []
    for command in commands.strip().splitlines():
        engine.step(command.strip())
        assert engine.action_valid, command
        fractions.append(round(engine.goal_fraction, 3))
    return fractions


def random_play(engine: NativeEngine, steps: int, seed: int) -> list[tuple[str, str, list[str], bool]]:
    rng = Random(seed)
    log = []
    for _ in range(steps):
        command = rng.choice(engine.admissible_commands())
        log.append((command, engine.step(command), engine.admissible_commands(), engine.won))
    return log


def test_every_answer_of_the_hand_written_transcript() -> None:
    """Naming, listings, feedback and all the quirks that published results depend on."""
    engine = engine_for("pick_and_place_simple")
    assert engine.reset() == f"{WELCOME}{ROOM}\n\nYour task is to: do what has to be done."
    for command, answer in TRANSCRIPT:
        admissible = command.strip() in engine.admissible_commands()
        assert (command, engine.step(command)) == (command, answer)
        assert engine.action_valid == admissible == (answer != NOTHING_HAPPENS)


def test_admissible_commands_are_sorted_and_complete() -> None:
    """Agents that are shown the list choose from it; each command in it must do something."""
    engine = engine_for("pick_and_place_simple")
    engine.step("go to countertop 1")
    engine.step("take knife 1 from countertop 2")
    assert engine.admissible_commands() == [
        "examine countertop 1",
        "examine countertop 2",
        "examine knife 1",
        "go to drawer 1",
        "go to drawer 2",
        "go to fridge 1",
        "go to microwave 1",
        "go to sidetable 1",
        "go to sinkbasin 1",
        "go to stoveburner 1",
        "go to stoveburner 2",
        "help",
        "inventory",
        "look",
        "move knife 1 to countertop 1",
        "move knife 1 to countertop 2",
        "slice egg 1 with knife 1",
    ]


@pytest.mark.parametrize(
    ("task_type", "commands", "fractions"),
    [
        (
            "pick_and_place_simple",
            """go to countertop 2
            take mug 2 from countertop 2
            go to sidetable 1
            move mug 2 to sidetable 1
            take mug 2 from sidetable 1""",
            [0, 0, 0, 1, 0],
        ),
        (
            "look_at_obj_in_light",
            """go to sidetable 1
            use desklamp 1
            go to countertop 2
            take mug 2 from countertop 2
            go to sidetable 1""",
            [0, 0.5, 0, 0.5, 1],
        ),
        (
            "pick_clean_then_place_in_recep",
            """go to countertop 2
            take mug 2 from countertop 2
            go to sidetable 1
            move mug 2 to sidetable 1
            take mug 2 from sidetable 1
            go to sinkbasin 1
            clean mug 2 with sinkbasin 1
            go to sidetable 1
            move mug 2 to sidetable 1""",
            [0, 0, 0, 0.333, 0, 0, 0.333, 0.333, 1],
        ),
        (
            "pick_heat_then_place_in_recep",
            """go to fridge 1
            open fridge 1
            take apple 1 from fridge 1
            go to microwave 1
            heat apple 1 with microwave 1
            go to fridge 1
            cool apple 1 with fridge 1
            go to microwave 1
            heat apple 1 with microwave 1
            go to drawer 1
            move apple 1 to drawer 1""",
            [0, 0, 0, 0, 0.333, 0.333, 0, 0, 0.333, 0.333, 1],
        ),
        (
            "pick_cool_then_place_in_recep",
            """go to stoveburner 1
            take pan 1 from stoveburner 1
            go to fridge 1
            cool pan 1 with fridge 1
            go to drawer 1
            move pan 1 to drawer 1""",
            [0, 0, 0, 0.333, 0.333, 1],
        ),
        (
            "pick_two_obj_and_place",
            """go to countertop 2
            take mug 2 from countertop 2
            go to sidetable 1
            move mug 2 to sidetable 1
            go to drawer 2
            open drawer 2
            take mug 1 from drawer 2
            go to sidetable 1
            move mug 1 to sidetable 1""",
            [0, 0, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 1],
        ),
    ],
)
def test_goal_fraction_counts_the_conditions_that_hold(task_type: str, commands: str, fractions: list[float]) -> None:
    """``info["score"]`` is comparable with ALFRED's goal-condition success, and 1 only when the game is won."""
    engine = engine_for(task_type)
    assert play(engine, commands) == fractions
    assert engine.won == (fractions[-1] == 1)


@pytest.mark.parametrize("index", range(12))
def test_won_exactly_when_the_fraction_is_one_and_plans_win(index: int) -> None:
    """Generated games of all types: a score of 1 that is no win, or the reverse, would corrupt every table."""
    game = Game.from_record(generate_game("train", index))
    engine = NativeEngine(World.parse(game))
    for command in game.walkthrough:
        assert not engine.won
        assert engine.goal_fraction < 1
        engine.step(command)
        assert engine.action_valid
    assert engine.won
    rng = Random(index)
    for _ in range(100):
        engine.step(rng.choice(engine.admissible_commands()))
        assert engine.won == (engine.goal_fraction == 1)


def test_put_style_changes_the_wording_and_nothing_else() -> None:
    """Agents made for ALFWorld before 0.4 read and write ``put X in/on Y``."""
    engine = NativeEngine(World.parse(kitchen()), "put")
    engine.step("go to countertop 2")
    engine.step("take mug 2 from countertop 2")
    assert "put mug 2 in/on countertop 1" in engine.admissible_commands()
    assert engine.admissible_commands() == sorted(engine.admissible_commands())
    assert engine.step("move mug 2 to countertop 1") == NOTHING_HAPPENS
    assert engine.step("put mug 2 in/on countertop 1") == "You put the mug 2 in/on the countertop 1."
    assert "  put (object) in/on (receptacle):" in engine.step("help")


def test_allow_revisit_answers_where_the_agent_stands() -> None:
    """Without it agents take "Nothing happens." for an obstacle and loop."""
    engine = engine_for("pick_and_place_simple", allow_revisit=True)
    engine.step("go to countertop 2")
    assert engine.step("go to countertop 1") == "You arrive at countertop 1. On the countertop 1, you see nothing."
    assert "go to countertop 2" in engine.admissible_commands()


@pytest.mark.parametrize("copy", [NativeEngine.clone, lambda engine: pickle.loads(pickle.dumps(engine))])
@pytest.mark.parametrize("seed", range(6))
def test_copies_go_on_alike_and_apart(copy: object, seed: int) -> None:
    """Tree search and snapshots: a copy continues identically and leaves the original untouched."""
    assert callable(copy)
    engine = NativeEngine(World.parse(kitchen(TASK_TYPES[seed])))
    random_play(engine, 40, seed)
    twin, witness = copy(engine), copy(engine)
    log = random_play(twin, 60, seed + 1)
    assert engine.admissible_commands() == witness.admissible_commands()
    assert random_play(engine, 60, seed + 1) == log
    assert random_play(witness, 60, seed + 1) == log


def test_reset_forgets_everything() -> None:
    """A game that is played again starts as if for the first time."""
    engine = engine_for("pick_heat_then_place_in_recep")
    fresh = engine.reset(), random_play(engine, 80, 0)
    assert (engine.reset(), random_play(engine, 80, 0)) == fresh


def test_threads_read_the_same_text_as_one_thread() -> None:
    """TextWorld crashes or mixes games here; rollouts with threads need engines without shared state."""
    world = World.parse(Game.from_record(generate_game("train", 3)))
    expected = [random_play(NativeEngine(world), 300, seed) for seed in range(4)]
    results: dict[int, list[tuple[str, str, list[str], bool]]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: results.update({seed: random_play(NativeEngine(world), 300, seed)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[seed] for seed in range(4)] == expected


@settings(max_examples=100, deadline=None)
@given(action=st.text(), position=st.integers(0, len(TRANSCRIPT)))
def test_text_that_is_no_command_changes_nothing(action: str, position: int) -> None:
    """Models write anything; it must neither raise nor move the game."""
    engine = engine_for("pick_and_place_simple")
    for command, _ in TRANSCRIPT[:position]:
        engine.step(command)
    if action.strip() in engine.admissible_commands():
        return
    before = {k: v for k, v in pickle.loads(pickle.dumps(engine)).__dict__.items() if k != "world"}
    assert engine.step(action) == NOTHING_HAPPENS
    assert not engine.action_valid
    after = {k: v for k, v in pickle.loads(pickle.dumps(engine)).__dict__.items() if k != "world"}
    assert after == {**before, "action_valid": False}


def test_goals_are_recognised_whatever_the_order_of_their_conditions() -> None:
    """Generated and official problems write the same goals in different orders."""
    for task_type, text in GOALS.items():
        assert parse_goal(f"(and {text})".lower()).task_type == task_type
    goal = parse_goal("(and (exists (?r - receptacle) (exists (?o - object) (and (objecttype ?o mugtype)"
                      " (receptacletype ?r desktype) (inreceptacle ?o ?r)))))")  # fmt: skip
    assert (goal.object_type, goal.target_type, goal.treated) == ("mugtype", "desktype", None)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (kitchen(goal="(exists (?o - object) (isSliced ?o))").pddl_problem, "six shapes"),
        (kitchen(goal="(or " + GOALS["pick_and_place_simple"] + ")").pddl_problem, "six shapes"),
        (kitchen().pddl_problem.replace("(objectType Mug_bar_1 MugType)", ""), "mug_bar_1"),
        (kitchen().pddl_problem.replace("(atLocation agent1 loc_bar_0)", ""), "malformed"),
        (kitchen().pddl_problem.replace("(:init", "(:start"), "malformed"),
        ("", "malformed"),
    ],
)
def test_problem_that_cannot_be_played_is_refused_by_name(problem: str, message: str) -> None:
    """A broken file must not become a game that cannot be won."""
    game = Game("train/x-y/trial", "pick_and_place_simple", "put a mug in desk.", problem)
    with pytest.raises(DataError, match="train/x-y/trial") as error:
        World.parse(game)
    assert message in str(error.value)


def test_record_that_is_no_game_is_refused() -> None:
    """A wrong JSON line is reported as such."""
    with pytest.raises(DataError, match="walkthrough"):
        Game.from_record({"id": "a", "task": "b", "pddl_problem": "c", "solvable": True, "traj": {"task_type": "d"}})
    with pytest.raises(DataError, match="strings"):
        Game.from_record(
            {"id": "a", "task": 1, "pddl_problem": "c", "solvable": True, "walkthrough": [], "traj": {"task_type": "d"}}
        )


def test_a_cracked_egg_that_lies_nowhere_counts_in_the_numbering() -> None:
    """Two official training games list one: without it their eggs would have other names than in TextWorld."""
    game = kitchen("pick_and_place_simple")
    cracked = replace(
        game, pddl_problem=game.pddl_problem.replace("(:init", "(:init (pickupable Egg_bar_0_bar_EggCracked_0)", 1)
    )
    eggs = {name for name in World.parse(cracked).objects if name.startswith("egg")}
    assert eggs == {"egg 1", "egg 2"}
    engine = NativeEngine(World.parse(cracked))
    engine.reset()
    assert not any("egg 2" in command for command in engine.admissible_commands())
