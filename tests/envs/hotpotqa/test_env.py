"""HotpotQA-v0 as its users meet it: through Gymnasium."""

import pickle
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import agentgym_tlm
from agentgym_tlm.envs.hotpotqa.actions import parse_action
from agentgym_tlm.envs.hotpotqa.env import HotpotQAEnv
from agentgym_tlm.errors import ConfigError, TaskNotFoundError
from agentgym_tlm.policies.random import RandomPolicy
from agentgym_tlm.rollout import rollout

INFO_KEYS = {"task_id", "task_type", "split", "instruction", "score", "won", "action_valid", "stop_reason"}
PLAN = ("Search[Orla Brandt]", "Lookup[bees]", "Search[nothing of the kind]", "Finish[Ouse]")


def make(library: Path, **kwargs: Any) -> HotpotQAEnv:
    env = gym.make("HotpotQA-v0", data_dir=library, **kwargs).unwrapped
    assert isinstance(env, HotpotQAEnv)
    return env


def test_gymnasium_finds_no_fault(library: Path) -> None:
    """check_env without a warning, for both ways of naming the environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("HotpotQA-v0", "agentgym_tlm:HotpotQA-v0"):
            env = gym.make(name, split="dev", data_dir=library, admissible_commands=True)
            check_env(env.unwrapped)
            env.reset(seed=0)
            env.step("Search[Vellmar]")
            env.close()


@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_plays_without_any_data(split: str) -> None:
    """A fresh install has questions and pages, and an expert that wins by reading."""
    env = gym.make("HotpotQA-v0", split=split).unwrapped
    assert isinstance(env, HotpotQAEnv)
    assert env.manifest.source.startswith("embedded")
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        assert info["task_id"] in env.manifest
        expert = env.expert()
        while info["stop_reason"] is None:
            _, action = expert.act(observation)
            observation, *_, info = env.step(action)
            assert info["action_valid"]
        assert info["won"]


def test_info_has_the_documented_keys_after_reset_and_step(library: Path) -> None:
    """Rollouts and reports read these keys of every environment."""
    env = make(library)
    observation, info = env.reset(options={"task_id": "q1"})
    question = "On which river lies the town where Orla Brandt was born?"
    assert info.keys() == INFO_KEYS
    assert (info["task_type"], info["split"], info["instruction"]) == ("bridge", "train", question)
    assert (info["score"], info["won"], info["action_valid"], info["stop_reason"]) == (0, False, True, None)
    assert observation.endswith(f"\nQuestion: {question}")
    assert all(action in observation for action in ("Search[entity]", "Lookup[keyword]", "Finish[answer]"))
    _, reward, _, _, info = env.step("fly to the moon")
    assert info.keys() == INFO_KEYS
    assert (reward, info["action_valid"]) == (0, False)


@pytest.mark.parametrize(
    ("kind", "answer", "reward", "score", "won"),
    [
        ("em", "the Ouse!", 1, 1, True),
        ("f1", "the Ouse!", 1, 1, True),
        ("em", "river Ouse", 0, 2 / 3, False),
        ("f1", "river Ouse", 2 / 3, 2 / 3, False),
        ("em", "Sund", 0, 0, False),
        ("em", "", 0, 0, False),
    ],
)
def test_answers_are_scored_by_the_official_metrics(
    library: Path, kind: str, answer: str, reward: float, score: float, won: bool
) -> None:
    """EM decides what is won, F1 is the score, and the reward is either; right or wrong, an answer ends the episode."""
    env = make(library, reward=kind)
    env.reset(options={"task_id": "q1"})
    observation, paid, terminated, truncated, info = env.step(f"Finish[{answer}]")
    assert observation == "Episode finished."
    assert paid == pytest.approx(reward)
    assert info["score"] == pytest.approx(score)
    assert (terminated, truncated, info["won"]) == (True, False, won)
    assert info["stop_reason"] == ("won" if won else "lost")
    assert (env.question.answer, env.answer) == ("Ouse", answer)
    assert env.answer_score is not None
    assert env.answer_score.em == won
    with pytest.raises(gym.error.ResetNeeded, match="won" if won else "lost"):
        env.step("Finish[Ouse]")


def test_only_the_answer_itself_is_scored(library: Path) -> None:
    """Having read or thought the answer, or naming it beside another one, pays nothing."""
    env = make(library, reward="f1", max_episode_steps=20)
    env.reset(options={"task_id": "q1"})
    for action in ("Search[Tarnwick]", "Think[the answer is Ouse]", "Lookup[Ouse]", "Ouse", "[Ouse]"):
        _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["score"]) == (0, False, 0)
    _, reward, *_ = env.step("Finish[Sund] Finish[Ouse]")
    assert reward == 0


@pytest.mark.parametrize("answer", ["Ouse", "Sund"])
def test_outcome_is_revealed_on_request_only(library: Path, answer: str) -> None:
    """An agent that is told whether it was right has seen the label."""
    texts = []
    for options in ({}, {"reveal_outcome": True}, {"compat": "react"}):
        env = make(library, **options)
        env.reset(options={"task_id": "q1"})
        texts.append(env.step(f"Finish[{answer}]")[0])
    reward = int(answer == "Ouse")
    assert texts == [
        "Episode finished.",
        f"Episode finished, reward = {reward}",
        f"Episode finished, reward = {reward}\n",
    ]


@pytest.mark.parametrize("limit", [3, None])
def test_running_out_of_steps_is_truncation_and_scores_nothing(library: Path, limit: int | None) -> None:
    """Seven steps as in ReAct; invalid actions count; no answer is no success."""
    env = gym.make("HotpotQA-v0", data_dir=library, max_episode_steps=limit)
    env.reset(seed=0)
    outcomes = [env.step(action) for action in ["Search[Tarnwick]", "nonsense", *["Lookup[town]"] * 5][: limit or 7]]
    assert [truncated for *_, truncated, _ in outcomes] == [False] * ((limit or 7) - 1) + [True]
    _, reward, terminated, _, info = outcomes[-1]
    assert (reward, terminated, info["won"], info["score"], info["stop_reason"]) == (0, False, False, 0, "max_steps")
    with pytest.raises(gym.error.ResetNeeded, match="max_steps"):
        env.step("Finish[Ouse]")


def test_answering_on_the_last_step_counts(library: Path) -> None:
    """Also when the limit is one step."""
    env = make(library, max_episode_steps=1)
    env.reset(options={"task_id": "q1"})
    assert env.step("Finish[Ouse]")[1:4] == (1, True, False)


def test_seed_determines_the_episode(library: Path) -> None:
    """The same seed asks the same question with the same text, in any environment object; seeds reach all questions."""
    first, second = make(library, split="dev"), make(library, split="dev")
    tasks = set()
    for seed in range(20):
        start = first.reset(seed=seed)
        assert second.reset(seed=seed) == start
        tasks.add(start[1]["task_id"])
        assert [first.step(action) for action in PLAN] == [second.step(action) for action in PLAN]
    assert tasks == {"q3", "q4", "q5"}
    for _ in range(5):
        assert first.reset() == second.reset()


def test_task_can_be_named(library: Path) -> None:
    """An evaluation plays the tasks of the manifest, each by its id."""
    env = make(library, split="dev")
    assert list(env.manifest) == ["q3", "q4", "q5"]
    assert env.manifest.source == f"official data in {library}"
    for task_id in env.manifest:
        assert env.reset(options={"task_id": task_id})[1]["task_id"] == task_id
    with pytest.raises(TaskNotFoundError, match="no task 'q1' among the 3 tasks"):
        env.reset(options={"task_id": "q1"})
    with pytest.raises(ConfigError, match="task_id"):
        env.reset(options={"question": 3})


@pytest.mark.parametrize("call", ["step", "snapshot", "admissible_commands", "render", "question", "answer", "expert"])
def test_nothing_can_be_asked_before_reset(library: Path, call: str) -> None:
    """A clear error instead of a missing attribute."""
    env = make(library, render_mode="ansi")

    def ask() -> None:
        if call in ("question", "answer"):
            getattr(env, call)
        else:
            getattr(env, call)(*["Search[x]"] * (call == "step"))

    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        ask()
    env.reset(seed=0)
    ask()
    env.close()
    env.close()
    with pytest.raises(gym.error.ResetNeeded):
        ask()


@pytest.mark.parametrize("at", range(5))
def test_snapshot_goes_back_to_the_same_point(library: Path, at: int) -> None:
    """Search and resume: open page, lookup, step count and text, in this environment or another, even pickled."""
    plan = [
        "Search[Orla Brandt]",
        "Lookup[bees]",
        "Lookup[bees]",
        "Search[Heron]",
        "nonsense",
        "Lookup[x]",
        "Finish[x]",
    ]
    env, other = make(library, admissible_commands=True), make(library, admissible_commands=True)
    observation, info = env.reset(options={"task_id": "q1"})
    for action in plan[:at]:
        observation, *_, info = env.step(action)
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    future = [env.step(action) for action in plan[at:]]
    for player in (env, other):
        assert player.restore(snapshot) == (observation, info)
        assert player.snapshot() == snapshot
        assert [player.step(action) for action in plan[at:]] == future
    over = env.snapshot()
    assert other.restore(over)[1]["stop_reason"] == "lost"
    with pytest.raises(gym.error.ResetNeeded):
        other.step("Search[x]")
    with pytest.raises(TaskNotFoundError):
        make(library, split="dev").restore(over)


def test_admissible_commands_come_only_on_request(library: Path) -> None:
    """Each is understood; random play over them runs, and finds an answer now and then."""
    plain, listing = make(library), make(library, admissible_commands=True)
    assert "admissible_commands" not in plain.reset(seed=0)[1]
    _, info = listing.reset(seed=0)
    while info["stop_reason"] is None:
        commands = info["admissible_commands"]
        assert commands == sorted(set(commands)) == listing.admissible_commands()
        assert all(parse_action(command) is not None for command in commands)
        search = next((each for each in commands if each.startswith("Search")), "Finish[no]")
        *_, info = listing.step(search)
        assert info["action_valid"]
    options = {"data_dir": library, "admissible_commands": True}
    trajectories = rollout(RandomPolicy(), "HotpotQA-v0", split="dev", samples_per_task=20, env_kwargs=options)
    assert all(turn.action_valid for trajectory in trajectories for turn in trajectory.turns)
    assert {trajectory.won for trajectory in trajectories} == {True, False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "test"}, "split must be"),
        ({"reward": "accuracy"}, "'em' or 'f1'"),
        ({"protocol": "google"}, "'react' or 'nat'"),
        ({"compat": "langchain"}, "'react' or None"),
        ({"compat": "react", "protocol": "nat"}, "does not use"),
        ({"wikipedia": "online"}, "'offline', 'live' or an encyclopedia"),
        ({"contact": "me@example.org"}, "are for wikipedia='live'"),
        ({"cache_file": "x"}, "are for wikipedia='live'"),
        ({"wikipedia": "live", "wiki_file": "x"}, "wiki_file= is for"),
    ],
)
def test_options_that_do_not_fit_are_refused(library: Path, options: dict[str, str], message: str) -> None:
    """A misspelt option must not become a default, nor one that has no effect go unnoticed."""
    with pytest.raises(ConfigError, match=message):
        make(library, **options)


def test_live_needs_a_contact(library: Path, tmp_path: Path) -> None:
    """Who operates the program is for its operator to say; nothing is asked of the network before an action."""
    pytest.importorskip("wikipediaapi")
    with pytest.raises(ConfigError, match="needs contact="):
        make(library, wikipedia="live")
    env = make(library, wikipedia="live", contact="me@example.org", cache_file=tmp_path / "kept.sqlite")
    env.reset(seed=0)
    assert env.version()["wikipedia"] == f"live English Wikipedia, answers kept in {tmp_path / 'kept.sqlite'}"


def test_rendering(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ansi` returns the turn as text; `human` prints it without being asked."""
    env = make(library, render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    observation, *_ = env.step("Search[Tarnwick]")
    assert env.render() == f"> Search[Tarnwick]\n{observation}"
    human = make(library, render_mode="human")
    human.reset(seed=0)
    human.step("Search[Tarnwick]")
    assert f"> Search[Tarnwick]\n{observation}\n" in capsys.readouterr().out


def test_version_names_what_the_episode_ran_on(library: Path) -> None:
    """Logs of different pages, protocols or rewards must not be mixed unnoticed."""
    version = make(library, protocol="nat", reward="f1").version()
    assert version.pop("wikipedia").startswith("offline encyclopedia of 12 pages, sha256 ")
    assert version == {
        "agentgym_tlm": agentgym_tlm.__version__,
        "engine": "offline",
        "data": f"official data in {library}",
        "protocol": "nat",
        "compat": "none",
        "reward": "f1",
    }


def test_logged_words_in_any_case_do_the_same(library: Path) -> None:
    """Replaying what a model wrote plays the same game, whatever it wrote around the action."""
    env = make(library)
    plain = []
    for wrap in ("{}", "Action 1: {}.", "  {} and then Search[x]\n"):
        env.reset(options={"task_id": "q1"})
        plain.append([env.step(wrap.format(action))[:4] for action in PLAN])
    assert plain[0] == plain[1] == plain[2]


_PIECES = st.one_of(
    st.text(max_size=30),
    st.text(alphabet="[]\"'*^()-+:{}%_;\\/.\0\n\u202e\ud800 ANDORTNEAR", max_size=30),
    st.sampled_from(["x" * 100_000, "[" * 100_000, "]" * 50_000, "' OR 1=1 --", "../../etc/passwd", "DROP TABLE page"]),
)
HOSTILE = st.one_of(
    _PIECES,
    st.builds("{}[{}]{}".format, st.sampled_from(["Search", "Lookup", "search", "LOOKUP", "Think"]), _PIECES, _PIECES),
    st.builds("{}[{}".format, st.sampled_from(["Search", "Lookup", "Finish"]), _PIECES),
)


@pytest.fixture(scope="module", params=[None, "react"])
def shared_env(library: Path, request: pytest.FixtureRequest) -> HotpotQAEnv:
    """One environment for many examples."""
    return make(library, admissible_commands=True, compat=request.param, render_mode="ansi", max_episode_steps=None)


@settings(max_examples=100, deadline=None)
@given(action=HOSTILE)
def test_any_string_is_answered(shared_env: HotpotQAEnv, action: str) -> None:
    """What models write never raises; an invalid action costs a step and changes nothing else."""
    env = shared_env
    env.reset(options={"task_id": "q1"})
    env.step("Search[Orla Brandt]")
    env.step("Lookup[bees]")
    before = env.snapshot()
    observation, _, terminated, _, info = env.step(action)
    assert str(env.render()).endswith(observation)
    assert str(env.render()).encode(), "what is shown can be printed and logged"
    if not info["action_valid"]:
        after = env.snapshot()
        assert (after.steps, terminated) == (3, False)
        told = {"steps": 0, "observation": "", "last_action": "", "action_valid": True}
        assert replace(after, **told) == replace(before, **told)  # type: ignore[arg-type]
    env.restore(before)
    assert env.step("Lookup[bees]")[0] == "(Result 2 / 2) Her bees won a prize in 1974."


def test_actions_that_are_no_strings_are_refused(library: Path) -> None:
    """An index into a command list is a caller's mistake, not a bad move of the agent."""
    env = make(library)
    env.reset(seed=0)
    with pytest.raises(gym.error.InvalidAction, match="int"):
        env.step(3)  # type: ignore[arg-type]


def test_threads_do_not_disturb_each_other(library: Path) -> None:
    """Rollouts with a thread per slot read what a single thread reads."""

    def play(seed: int) -> list[str]:
        env = make(library)
        texts = [env.reset(seed=seed)[0]]
        return texts + [env.step(action)[0] for action in PLAN]

    expected = [play(seed) for seed in range(4)]
    found: dict[int, list[str]] = {}
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: play(seed)})) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wikipedia": None}, "wikipedia must be"),
        ({"wikipedia": 5}, "wikipedia must be"),
        ({"data_dir": ""}, "data_dir must be"),
        ({"data_dir": 5}, "data_dir must be"),
        ({"wiki_file": 5}, "wiki_file=5 must be a path"),
        ({"max_episode_steps": 0}, "max_episode_steps must be in"),
    ],
)
def test_options_of_a_wrong_kind_are_named(options: dict[str, Any], message: str) -> None:
    """At once, not in the first search; and no text is not the folder that one happens to be in."""
    with pytest.raises(ConfigError, match=message):
        HotpotQAEnv(**options)


def test_given_answer_is_in_info_at_the_end(library: Path) -> None:
    """Logs tell what was answered; the right answer is no business of an agent's."""
    env = HotpotQAEnv("dev", data_dir=library)
    assert "answer" not in env.reset(options={"task_id": "q3"})[1]
    info = env.step("Finish[ perhaps ]")[4]
    assert info["answer"] == "perhaps"
    assert "yes" not in info.values()
