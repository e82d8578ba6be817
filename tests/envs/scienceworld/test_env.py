"""ScienceWorld-v0 as its users meet it: through Gymnasium."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.scienceworld.actions import MAX_CHARS, is_playable, normalize_action
from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv
from agentgym_tlm.envs.scienceworld.simulator import NO_MATCH
from agentgym_tlm.errors import ConfigError, TaskNotFoundError

pytestmark = pytest.mark.usefixtures("java")

INFO_KEYS = {
    *("task_id", "task_type", "split", "instruction", "score", "won", "action_valid", "stop_reason"),
    *("best_score", "parse_status", "moves", "look", "inventory"),
}
PAINT = "chemistry-mix-paint-secondary-color/1"
PAINTING = (
    "pour cup containing blue paint in art studio in bowl",
    "pour cup containing yellow paint in art studio in bowl",
    "mix bowl",
    "focus on green paint",
)
"""Wins the task ``PAINT`` in the art studio, where the agent begins."""


def make(**options: Any) -> ScienceWorldEnv:
    env = gym.make("ScienceWorld-v0", **options).unwrapped
    assert isinstance(env, ScienceWorldEnv)
    return env


def started(task_id: str, **options: Any) -> ScienceWorldEnv:
    env = make(tasks=task_id.split("/")[0], **options)
    env.reset(options={"task_id": task_id})
    return env


def test_gymnasium_finds_no_fault() -> None:
    """check_env without a warning, for both ways of naming the environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("ScienceWorld-v0", "agentgym_tlm:ScienceWorld-v0"):
            env = gym.make(name, split="valid_unseen", admissible_commands=True)
            check_env(env.unwrapped)
            env.reset(seed=0)
            env.step("look around")
            env.close()


def test_first_observation_and_info() -> None:
    """Rollouts and prompts read these keys of every environment; the prompt needs the task in the observation."""
    env = make(split="valid_unseen", instructions=False)
    observation, info = env.reset(seed=4)
    assert info.keys() == INFO_KEYS
    assert info["split"] == "valid_unseen"
    assert info["task_id"].startswith(info["task_type"] + "/")
    assert observation == f"{info['look']}\n\nYour task is to {info['instruction']}"
    assert (info["moves"], info["won"], info["action_valid"], info["stop_reason"]) == (0, False, True, None)
    _, reward, _, _, info = env.step("fly to the moon")
    assert info.keys() == INFO_KEYS
    assert (reward, info["action_valid"], info["parse_status"], info["moves"]) == (0, False, "unknown", 0)
    assert info["inventory"].startswith("In your inventory, you see:")


@pytest.mark.parametrize(
    ("options", "there", "missing"),
    [
        ({}, "teleport to PLACE", "connect THING"),
        ({"simplifications": "none"}, "connect THING to THING", "teleport"),
    ],
)
def test_first_observation_says_how_to_act(options: dict[str, Any], there: str, missing: str) -> None:
    """An agent that has never seen ScienceWorld knows its commands, and what loses for good, before it acts."""
    plain, told = started(PAINT, instructions=False, **options), started(PAINT, **options)
    how, _, rest = told.snapshot().observation.partition("\n\n")
    assert rest == plain.snapshot().observation
    assert how.startswith("Act with these commands: go to PLACE, look around, ")
    assert "A wrong focus loses the task at once" in how
    assert there in how
    assert missing not in how
    assert (plain.version()["instructions"], told.version()["instructions"]) == ("False", "True")
    for action in PAINTING[:2]:
        assert told.step(action) == plain.step(action)


def test_seed_or_id_chooses_the_task() -> None:
    """The same seed plays the same episode in any environment object; an evaluation plays tasks by id."""
    first, second = make(), make()
    starts = [first.reset(seed=seed) for seed in range(6)]
    assert [second.reset(seed=seed) for seed in range(6)] == starts
    assert len({info["task_id"] for _, info in starts}) > 3
    assert first.reset(options={"task_id": PAINT})[1]["task_id"] == PAINT
    with pytest.raises(TaskNotFoundError, match="no task 'boil/0' among the 814 tasks"):
        first.reset(options={"task_id": "boil/0"})
    with pytest.raises(ConfigError, match="task_id"):
        first.reset(options={"variation": 3})


def test_rewards_add_up_to_the_score_and_winning_ends_the_episode() -> None:
    """`won` is the score 100; what was reached on the way is worth something, but is no success."""
    env = make(tasks=PAINT.split("/")[0])
    start = env.reset(options={"task_id": PAINT})[1]["score"]
    outcomes = [env.step(action) for action in PAINTING]
    assert [info["won"] for *_, info in outcomes] == [False, False, False, True]
    assert 0 < outcomes[0][4]["score"] < 1
    assert start + sum(reward for _, reward, *_ in outcomes) == pytest.approx(1)
    _, _, terminated, truncated, info = outcomes[-1]
    assert (terminated, truncated, info["score"], info["stop_reason"]) == (True, False, 1, "won")
    with pytest.raises(gym.error.ResetNeeded, match="won"):
        env.step("look around")


def test_wrong_focus_loses_for_good() -> None:
    """The simulator's -100 is a score of 0 and a loss; `reset task` cannot turn it into a reward of +100."""
    env = started(PAINT)
    env.step(PAINTING[0])
    _, reward, terminated, truncated, info = env.step("focus on bowl")
    assert (terminated, truncated, info["won"], info["stop_reason"]) == (True, False, False, "lost")
    assert info["score"] == 0 < info["best_score"] == -reward
    assert info["failure"] == "wrong focus"
    assert "failure" not in started(PAINT).step("look around")[4]
    with pytest.raises(gym.error.ResetNeeded, match="lost"):
        env.step("reset task")


@pytest.mark.parametrize("written", ["reset task", "Reset the  TASK.", "'reset task'", "reset\x00task"])
def test_reset_task_is_unknown(written: str) -> None:
    """It would clear the score and a failure."""
    env = started(PAINT, admissible_commands=True)
    env.step(PAINTING[0])
    observation, reward, _, _, info = env.step(written)
    assert (observation, reward, info["action_valid"], info["moves"]) == (NO_MATCH, 0, False, 1)
    assert info["score"] > 0
    assert "reset task" not in info["admissible_commands"]


def test_wrong_answer_is_told_from_a_wrong_focus() -> None:
    """Whoever reads the logs sees what to teach: here things are put into a box to answer."""
    env = started("test-conductivity/0")
    for action in ("teleport to workshop", "focus on aluminum foil"):
        assert env.step(action)[4]["stop_reason"] is None
    *_, info = env.step("move aluminum foil to green box")
    assert (info["stop_reason"], info["failure"]) == ("lost", "wrong answer")


def test_reward_at_the_end_only() -> None:
    """For methods that want one number per episode, also when it is cut off."""
    env = started(PAINT, reward="final")
    assert [env.step(action)[1] for action in PAINTING] == [0, 0, 0, 1]
    env = started(PAINT, reward="final", max_episode_steps=2)
    *_, (_, reward, _, truncated, info) = [env.step(action) for action in PAINTING[:2]]
    assert truncated
    assert reward == info["score"] > 0


def test_turns_are_limited_and_moves_are_not() -> None:
    """Ten waits end the stock environment, and a loop of looks never does; running out of turns is no success."""
    env = started(PAINT)
    outcomes = [env.step("wait") for _ in range(15)]
    assert [truncated for *_, truncated, _ in outcomes] == [False] * 14 + [True]
    _, _, terminated, _, info = outcomes[-1]
    assert (terminated, info["won"], info["stop_reason"], info["moves"]) == (False, False, "max_steps", 165)
    env = started(PAINT, max_episode_steps=3)
    assert [env.step("look around")[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("protocol", "limit"), [("eto", 100), ("agentgym", 30), ("full", 100)])
def test_each_protocol_has_its_turn_limits(protocol: str, limit: int) -> None:
    """Comparing with a paper under another limit compares nothing."""
    assert started("boil/0", protocol=protocol).turn_limit == limit


def test_ambiguous_actions_are_asked_about() -> None:
    """The numbers are the valid actions then; the question takes no time, its answer is the action."""
    env = started("boil/0", admissible_commands=True)
    question, _, _, _, info = env.step("look at door")
    assert question.startswith("Ambiguous request")
    assert (info["parse_status"], info["action_valid"], info["moves"]) == ("ambiguous", False, 0)
    assert {"0", "1"} <= set(info["admissible_commands"]) <= set("0123456789")
    observation, _, _, _, info = env.step("1")
    assert observation.startswith("A door to the")
    assert (info["parse_status"], info["moves"]) == ("ok", 1)


@pytest.mark.parametrize("text", ["reset task", "x" * (MAX_CHARS + 1)])
def test_unplayable_answer_cancels_the_question(text: str) -> None:
    """The number that comes later is no answer to a question that is no longer shown."""
    env = started("boil/0")
    env.step("look at door")
    assert env.step(text)[4]["parse_status"] == "unknown"
    observation, _, _, _, info = env.step("0")
    assert (observation, info["action_valid"], info["moves"]) == (NO_MATCH, False, 0)


def test_help_leaves_the_question_open() -> None:
    """As documented: looking up what can be named is no answer."""
    env = started("boil/0")
    env.step("look at door")
    for word in ("help", "objects", "task"):
        assert env.step(word)[4]["parse_status"] == "ambiguous"
    assert env.step("1")[0].startswith("A door to the")


def test_first_reading_can_be_taken() -> None:
    """What SwiftSage does by hand."""
    asked, taken = started("boil/0"), started("boil/0", ambiguity="first")
    asked.step("look at door")
    assert taken.step("look at door")[0] == asked.step("0")[0]
    assert taken.snapshot().actions == ("look at door",)


def test_ambiguous_actions_can_be_refused() -> None:
    """The readings are told once each, and the next action is taken for what it says."""
    env = started("boil/0", ambiguity="error")
    observation, _, _, _, info = env.step("look at door")
    first, *readings = observation.split("\n\t")
    assert first == "This could mean several things:"
    assert "look at door between kitchen and hallway" in readings
    assert len(set(readings)) == len(readings)
    assert (info["parse_status"], info["moves"]) == ("ambiguous", 0)
    assert env.step("look around")[0] == info["look"]


@pytest.mark.parametrize(
    "written",
    ["go to kitchen", "go kitchen", "go to door to kitchen", "go through the kitchen door", "WALK TO Kitchen."],
)
def test_ways_to_say_go(written: str) -> None:
    """The documented form `go OBJ`, and doors by either name."""
    env = started("boil/0")
    assert env.step(written)[4]["look"].startswith("This room is called the kitchen")


@pytest.mark.parametrize("written", ["open kitchen door", "open door to kitchen", '"open the door to the kitchen"'])
def test_ways_to_name_a_door(written: str) -> None:
    env = started("boil/0", simplifications="none")
    assert env.step(written)[0] == "The door is now open."


def test_doors_and_wires_show_no_java() -> None:
    """Errors of older versions of the simulator; what is left of the kind is flagged."""
    env = started("power-component/0", simplifications="none")
    for action in ("look at kitchen door", "teleport to workshop", "connect wire to wire"):
        _, _, _, _, info = env.step(action)
        assert info["parse_status"] != "java_error"


def test_open_containers_opens_containers() -> None:
    """It did nothing before ScienceWorld 1.2.3, and is not part of `easy`."""
    closed, opened = started("boil/0"), started("boil/0", simplifications="openContainers,openDoors,teleportAction")
    for env, door in ((closed, "closed"), (opened, "open")):
        assert f"The cupboard door is {door}" in env.step("teleport to kitchen")[4]["look"]


def test_snapshot_goes_back_to_the_same_point() -> None:
    """Search and resume: the world, the turn count and the text, in this environment or another, even pickled."""
    env, other = (started(PAINT, max_episode_steps=4, admissible_commands=True) for _ in range(2))
    observation, *_, info = [env.step(action) for action in PAINTING[:2]][-1]
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    future = [env.step(action) for action in PAINTING[2:]]
    for player in (env, other):
        assert player.restore(snapshot) == (observation, info)
        assert player.snapshot() == snapshot
        assert [player.step(action) for action in PAINTING[2:]] == future
    over = env.snapshot()
    assert other.restore(over)[1]["stop_reason"] == "won"
    with pytest.raises(gym.error.ResetNeeded):
        other.step("look around")


def test_stock_behaviour_has_no_snapshots() -> None:
    """Replaying would lead elsewhere, unnoticed."""
    env = started(PAINT, deterministic=False)
    assert env.version()["deterministic"] == "False"
    with pytest.raises(ConfigError, match="deterministic=False"):
        env.snapshot()
    env._simulator.close()


@pytest.mark.parametrize("call", ["step", "snapshot", "admissible_commands", "render", "expert"])
def test_nothing_can_be_asked_before_reset_or_after_close(call: str) -> None:
    """A clear error instead of a missing attribute."""
    env = make(render_mode="ansi")
    for _ in range(2):
        with pytest.raises(gym.error.ResetNeeded, match="reset"):
            env.step("look around") if call == "step" else getattr(env, call)()
        env.reset(seed=0)
        env.close()
        env.close()


def test_rendering(capsys: pytest.CaptureFixture[str]) -> None:
    """`ansi` returns the turn as text; `human` prints it."""
    env = make(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    observation, *_ = env.step("inventory")
    assert env.render() == f"> inventory\n{observation}"
    env = make(render_mode="human")
    env.reset(seed=0)
    env.step("inventory")
    assert f"> inventory\n{observation}" in capsys.readouterr().out


def test_environment_can_be_sent_before_it_is_reset() -> None:
    """To a worker process, say."""
    env = pickle.loads(pickle.dumps(make()))
    assert env.reset(seed=0)[1]["stop_reason"] is None


def test_version_names_what_the_episode_ran_on() -> None:
    """Logs of different worlds must not be mixed unnoticed."""
    version = make(simplifications="none", protocol="eto").version()
    assert version["engine"].startswith("scienceworld 1.")
    assert (version["deterministic"], version["simplifications"], version["data"]) == ("True", "none", "protocol eto")
    assert version["java"][0].isdecimal()


def test_isolated_environment_equals_shared() -> None:
    """A Java process of one's own is a choice of resources, not of results."""
    shared, isolated = started(PAINT), started(PAINT, backend="isolated")
    assert isolated._simulator.pid != shared._simulator.pid
    assert [isolated.step(action) for action in PAINTING] == [shared.step(action) for action in PAINTING]
    simulator = isolated._simulator
    isolated.close()
    assert not simulator.usable


def test_actions_that_are_no_strings_are_refused() -> None:
    """An index into a command list is a caller's mistake, not a bad move of the agent."""
    with pytest.raises(gym.error.InvalidAction, match="int"):
        started(PAINT).step(3)  # type: ignore[arg-type]


HOSTILE = st.one_of(
    st.text(),
    st.text(st.characters(max_codepoint=0x20)),
    st.text(st.characters(categories=["Cs"]), min_size=1),
    st.sampled_from(["look at", "move", "focus on", "connect", "pour", "reset", "use", "go to", ""]).flatmap(
        lambda verb: st.text(max_size=20).map(lambda text: f"{verb} {text} to {text}")
    ),
    st.sampled_from(["../../etc/passwd", "${jndi:ldap://x}", "%s%n%x", "\\u0000", "c\no0\nexit\ne", "a" * 100_000]),
    st.sampled_from(["focus on ", "move ", "the ", "door to "]).map(lambda word: word * 30_000),
)


@pytest.fixture(scope="module")
def kitchen() -> Iterator[ScienceWorldEnv]:
    """A long episode in the fullest room."""
    env = started("boil/0", max_episode_steps=10**9)
    env.step("teleport to kitchen")
    yield env
    env.close()


@settings(max_examples=150, deadline=None)
@given(action=HOSTILE)
def test_no_string_raises_or_changes_what_it_should_not(kitchen: ScienceWorldEnv, action: str) -> None:
    """What models write is answered; what is not understood leaves the world and its clock as they were."""
    before = kitchen._info()
    observation, _, _, _, info = kitchen.step(action)
    assert observation
    if info["parse_status"] == "ambiguous":
        observation, _, _, _, info = kitchen.step("")
    elif not info["action_valid"]:
        seen = ("look", "inventory", "moves", "score")
        assert {key: info[key] for key in seen} == {key: before[key] for key in seen}


@settings(max_examples=60)
@given(action=HOSTILE)
def test_normalising_twice_changes_nothing(action: str) -> None:
    """Replaying a logged action plays the same action."""
    once = normalize_action(action)
    assert normalize_action(once) == once
    assert is_playable(once) or len(once) > MAX_CHARS or "reset" in once
