"""What every environment of the package promises, asked of each of them in the same words."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers.vector import DictInfoToList
from hypothesis import given, settings
from hypothesis import strategies as st

import agentgym_tlm
import tests.toy_env  # noqa: F401
from agentgym_tlm.envs.args import env_class, text_env
from agentgym_tlm.envs.base import Info, TextEnv
from agentgym_tlm.errors import ConfigError, DependencyError, TaskNotFoundError

INFO_TYPES = {
    "task_id": str,
    "task_type": str,
    "split": str,
    "instruction": str,
    "score": float,
    "won": bool,
    "action_valid": bool,
}
NONSENSE = "flimmer the quux"
LONG = 1_000_000
"""More steps than any test plays; ScienceWorld takes a missing limit for its tasks' own."""
Make = Callable[..., TextEnv]


@pytest.fixture(scope="module", autouse=True)
def embedded_data() -> Iterator[None]:
    """What the package ships, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("ALFWORLD_DATA", "HOTPOTQA_DATA"):
            patch.delenv(variable, raising=False)
        yield


@pytest.fixture(scope="module", params=[*agentgym_tlm.ENV_IDS, "Toy-v0"])
def env_id(request: pytest.FixtureRequest) -> str:
    """Each environment whose simulator is installed."""
    try:
        gym.make(request.param).close()
    except DependencyError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def make(env_id: str) -> Iterator[Make]:
    """Makes the environment as ``gym.make`` does, without the wrappers; closes what it made."""
    made: list[TextEnv] = []

    def make_one(**kwargs: Any) -> TextEnv:
        made.append(text_env(gym.make(env_id, **kwargs)))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def play_expert(env: TextEnv, seed: int, steps: int = 1000) -> list[str]:
    """The expert's actions in the episode of a seed, until it ends or the steps are over."""
    observation, info = env.reset(seed=seed)
    expert = env.expert()
    actions: list[str] = []
    while info["stop_reason"] is None and len(actions) < steps:
        _, action = expert.act(observation)
        actions.append(action)
        observation, *_, info = env.step(action)
    return actions


def check_info(info: Info, env: TextEnv) -> None:
    assert {key: type(info[key]) for key in INFO_TYPES} == INFO_TYPES
    assert info["stop_reason"] is None or type(info["stop_reason"]) is str
    assert info["task_id"] in env.manifest
    assert info["split"] == env.manifest.split
    assert info["instruction"]
    assert 0 <= info["score"] <= 1


@pytest.mark.parametrize("named", ["id", "module:id"])
def test_gymnasium_finds_no_fault(env_id: str, named: str) -> None:
    """Its checker passes without a warning, however the environment is named."""
    module = "tests.toy_env" if env_id == "Toy-v0" else "agentgym_tlm"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(env_id if named == "id" else f"{module}:{env_id}", admissible_commands=True)
        check_env(env.unwrapped)
        env.reset(seed=0)
        env.step("look")
        env.close()


def test_info_has_the_same_keys_and_types_everywhere(make: Make) -> None:
    """Rollouts and reports read these keys of every environment, after reset, a good action and a bad one."""
    env = make()
    _, start = env.reset(seed=4)
    check_info(start, env)
    assert (start["won"], start["action_valid"], start["stop_reason"]) == (False, True, None)
    (action,) = play_expert(make(), seed=4, steps=1)
    for text, valid in ((action, True), (NONSENSE, False)):
        observation, reward, terminated, truncated, info = env.step(text)
        assert isinstance(observation, str)
        assert np.isfinite(float(reward))
        assert (type(terminated), type(truncated)) == (bool, bool)
        check_info(info, env)
        assert info.keys() == start.keys()
        assert info["action_valid"] is valid
        assert (info["task_id"], info["instruction"]) == (start["task_id"], start["instruction"])


def test_manifest_names_the_tasks_in_a_fixed_order(env_id: str, make: Make) -> None:
    """An evaluation says exactly what it ran: ids are sorted, each there once, and the hash is that of all of them.

    Whole numbers between slashes sort as numbers, so that evenly spaced choices are evenly spaced.
    """
    manifest = make().manifest
    parts = [[(part.isdigit(), int(part) if part.isdigit() else part) for part in t.split("/")] for t in manifest]
    assert parts == sorted(parts)
    assert len(set(manifest)) == len(manifest)
    assert len(manifest) > 0
    assert manifest.env_id == env_id
    assert manifest.source
    assert make().manifest.sha256 == manifest.sha256
    splits = env_class(env_id).splits
    assert not splits or manifest.split in splits


def test_seed_determines_the_episode(make: Make) -> None:
    """The same seed plays the same task with the same text in another object, and so do the resets that follow."""
    first, second = make(), make()
    tasks = set()
    for seed in range(4):
        actions = play_expert(first, seed, steps=3)
        start = first.reset(seed=seed)
        assert second.reset(seed=seed) == start
        tasks.add(start[1]["task_id"])
        assert [first.step(action) for action in actions] == [second.step(action) for action in actions]
    assert len(tasks) > 1
    assert first.reset() == second.reset()


def test_task_can_be_named(make: Make) -> None:
    """An evaluation plays the tasks of the manifest by their ids; a misspelt id or option is not another task."""
    env = make()
    for task_id in env.manifest.take(3):
        assert env.reset(options={"task_id": task_id})[1]["task_id"] == task_id
    assert env.reset(seed=1, options={"task_id": env.manifest[0]})[1]["task_id"] == env.manifest[0]
    with pytest.raises(TaskNotFoundError, match="no task 'no-such-task'"):
        env.reset(options={"task_id": "no-such-task"})
    with pytest.raises(ConfigError, match="task_id"):
        env.reset(options={"task": env.manifest[0]})


@pytest.mark.parametrize("limit", [3, None])
def test_running_out_of_steps_is_truncation_and_never_success(env_id: str, make: Make, limit: int | None) -> None:
    """Both in the flags and in the stop reason; afterwards nothing can be played but a reset."""
    env = make() if limit is None else make(max_episode_steps=limit)
    env.reset(seed=0)
    outcomes = [env.step(NONSENSE)]
    while not outcomes[-1][3] and len(outcomes) < 1000:
        outcomes.append(env.step(NONSENSE))
    own_limit = gym.spec(env_id).max_episode_steps
    assert len(outcomes) == (limit or own_limit or len(outcomes)) < 1000
    _, _, terminated, _, info = outcomes[-1]
    assert (terminated, info["won"], info["stop_reason"]) == (False, False, "max_steps")
    with pytest.raises(gym.error.ResetNeeded, match="max_steps"):
        env.step(NONSENSE)
    assert env.reset(seed=0)[1]["stop_reason"] is None
    env.step(NONSENSE)


def test_step_limit_can_be_lifted(env_id: str, make: Make) -> None:
    """Long episodes on request: -1 means no limit to Gymnasium."""
    limit = gym.spec(env_id).max_episode_steps
    env = make(max_episode_steps=LONG if limit is None else -1)
    env.reset(seed=0)
    steps = (limit or 100) + 5
    assert not any(truncated for *_, truncated, _ in (env.step(NONSENSE) for _ in range(steps)))


def test_winning_on_the_last_step_is_won(make: Make) -> None:
    """A win at the step limit is a win, and ends the episode."""
    actions = play_expert(make(max_episode_steps=LONG), seed=0)
    env = make(max_episode_steps=len(actions))
    env.reset(seed=0)
    *_, (_, reward, terminated, truncated, info) = [env.step(action) for action in actions]
    assert (terminated, truncated) == (True, False)
    assert (info["won"], info["score"], info["stop_reason"]) == (True, 1.0, "won")
    assert float(reward) > 0
    with pytest.raises(gym.error.ResetNeeded, match="won"):
        env.step(NONSENSE)


@pytest.mark.parametrize("call", ["step", "snapshot", "render"])
def test_nothing_can_be_asked_before_reset_or_after_close(make: Make, call: str) -> None:
    """A clear error instead of a missing attribute; closing twice is fine."""
    env = make(render_mode="ansi")

    def ask() -> None:
        env.step(NONSENSE) if call == "step" else getattr(env, call)()

    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        ask()
    env.reset(seed=0)
    ask()
    env.close()
    env.close()
    with pytest.raises(gym.error.ResetNeeded):
        ask()


@pytest.mark.parametrize("at", [0, 1])
def test_snapshot_goes_back_to_the_same_point(make: Make, at: int) -> None:
    """Search and resume: state, step count, text and info, in this environment or another, even pickled."""
    limit = 6
    env, other = make(max_episode_steps=limit), make(max_episode_steps=limit)
    actions = play_expert(env, seed=7, steps=limit)
    observation, info = env.reset(seed=7)
    for action in actions[:at]:
        observation, *_, info = env.step(action)
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    future = [env.step(action) for action in actions[at:]]
    for player in (env, other):
        assert player.restore(snapshot) == (observation, info)
        assert [player.step(action) for action in actions[at:]] == future
        player.restore(snapshot)
        outcomes = [player.step(NONSENSE) for _ in range(limit - at)]
        assert [truncated for *_, truncated, _ in outcomes] == [False] * (limit - at - 1) + [True]
    over = env.snapshot()
    assert other.restore(over)[1]["stop_reason"] == "max_steps"
    with pytest.raises(gym.error.ResetNeeded):
        other.step(NONSENSE)


def test_version_names_what_the_episode_ran_on(make: Make) -> None:
    """It is written into every trajectory, before any reset."""
    version = make().version()
    assert version["engine"]
    assert all(isinstance(key, str) and isinstance(value, str) and value for key, value in version.items())


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_expert_wins_and_recovers_from_mistakes(make: Make, noise: float) -> None:
    """It is what fine-tuning imitates: it plays by what it is told, also after the slips that teach recovery."""
    env = make(max_episode_steps=LONG)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        observation, info = env.reset(seed=seed)
        expert = env.expert()
        for _ in range(1000):
            slip = expert.mistake(observation, rng) if rng.random() < noise else None
            thought, action = slip or expert.act(observation)
            assert thought
            observation, *_, info = env.step(action)
            assert slip or info["action_valid"], action
            if info["stop_reason"] is not None:
                break
        assert info["won"], info["task_id"]


def test_admissible_commands_come_only_on_request_and_are_possible(env_id: str, make: Make) -> None:
    """Listing them can cost more than the step, so it is a choice; whoever picks one of them has made a valid move.

    But for ScienceWorld, whose simulator proposes things that it then says it does not know.
    """
    plain, listing = make(), make(admissible_commands=True)
    assert "admissible_commands" not in plain.reset(seed=0)[1]
    _, info = listing.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(6):
        if info["stop_reason"] is not None:
            break
        commands = info["admissible_commands"]
        assert commands
        assert all(type(command) is str for command in commands)
        assert commands == sorted(set(commands))
        command = commands[int(rng.integers(len(commands)))]
        *_, info = listing.step(command)
        assert info["action_valid"] or env_id == "ScienceWorld-v0", command


@pytest.mark.filterwarnings("ignore:.*rgb_array")
def test_rendering(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """`ansi` returns the turn as text; `human` prints every turn without being asked; others are refused."""
    env = make(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert observation in str(env.render())
    observation, *_ = env.step("look")
    assert observation in str(env.render())
    assert capsys.readouterr().out == ""
    env = make(render_mode="human")
    start, _ = env.reset(seed=0)
    observation, *_ = env.step("look")
    shown = capsys.readouterr().out
    assert start in shown
    assert observation in shown
    assert env.render() is None
    with pytest.raises(ValueError, match="render_mode"):
        make(render_mode="rgb_array")


@pytest.mark.parametrize("action", [3, None, b"look", ["look"]])
def test_actions_that_are_no_strings_are_refused(make: Make, action: Any) -> None:
    """An index into a command list is a caller's mistake, not a bad move of the agent."""
    env = make()
    env.reset(seed=0)
    with pytest.raises(gym.error.InvalidAction, match=type(action).__name__):
        env.step(action)


@pytest.fixture(scope="module")
def shared_env(env_id: str) -> Iterator[TextEnv]:
    """One environment for many examples."""
    env = text_env(gym.make(env_id, max_episode_steps=LONG))
    env.reset(seed=0)
    yield env
    env.close()


PIECES = (
    "go to ",
    "take ",
    "look",
    "search[",
    "finish[",
    "]",
    "..",
    "/etc/passwd",
    "%s{0}${x}",
    "0",
    "\n",
    "\0",
    "'\"",
    "*",
)


@settings(max_examples=60, deadline=None)
@given(action=st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)))
def test_any_string_is_answered(shared_env: TextEnv, action: str) -> None:
    """What models write never raises."""
    observation, _, terminated, _, info = shared_env.step(action)
    assert isinstance(observation, str)
    assert type(info["action_valid"]) is bool
    if terminated:
        shared_env.reset(seed=0)


@pytest.mark.parametrize(
    "action", ["x" * 100_000, "take " * 20_000, "a\0b", "\ud800", "🫖" * 1000, "\n\n", "", "search[" * 15_000]
)
def test_monstrous_strings_are_answered(make: Make, action: str) -> None:
    """100,000 characters, null bytes, lone surrogates, and strings made to slow a parser down."""
    env = make()
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step(action)
    assert isinstance(observation, str)
    assert (terminated, info["won"]) == (False, False)


def test_vector_environment_plays_the_same(env_id: str, make: Make) -> None:
    """`gym.make_vec` with its defaults: each slot is the single environment of its seed."""
    envs = DictInfoToList(gym.make_vec(env_id, num_envs=2))
    observations, infos = envs.reset(seed=3)
    singles = [make(), make()]
    assert list(zip(observations, infos, strict=True)) == [env.reset(seed=3 + i) for i, env in enumerate(singles)]
    results = zip(*envs.step(("look", NONSENSE)), strict=True)
    assert list(results) == [env.step(action) for env, action in zip(singles, ("look", NONSENSE), strict=True)]
    envs.close()
