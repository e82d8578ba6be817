"""ALFWorld-v0 as its users meet it: through Gymnasium."""

import threading
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentgym_tlm
from agentgym_tlm.envs.alfworld.engine import WELCOME, ActionStyle
from agentgym_tlm.envs.alfworld.env import ALFWorldEnv, normalize_action
from agentgym_tlm.envs.alfworld.generator import GeneratorConfig
from agentgym_tlm.envs.alfworld.problem import TASK_TYPES
from agentgym_tlm.errors import ConfigError, TaskNotFoundError


@pytest.fixture(autouse=True, scope="module")
def embedded_data() -> Iterator[None]:
    """Generated games, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ALFWORLD_DATA", raising=False)
        yield


def make(**kwargs: Any) -> ALFWorldEnv:
    env = gym.make("ALFWorld-v0", **{"num_games": 40, **kwargs}).unwrapped
    assert isinstance(env, ALFWorldEnv)
    return env


def test_info_tells_the_task() -> None:
    """The instruction is the sentence that the game gives, and ids begin with split and type."""
    env = make(split="valid_unseen")
    observation, info = env.reset(seed=4)
    assert info["split"] == "valid_unseen"
    assert info["task_id"].startswith("valid_unseen/" + info["task_type"])
    assert observation.endswith(f"\n\nYour task is to: {info['instruction']}")


def test_admissible_commands_come_only_on_request() -> None:
    """They cost more than the step, and showing them is a choice that results depend on."""
    plain, listing = make(), make(admissible_commands=True)
    _, info = plain.reset(seed=0)
    assert "admissible_commands" not in info
    _, info = listing.reset(seed=0)
    assert info["admissible_commands"] == plain.admissible_commands()
    assert {"help", "inventory", "look"} < set(info["admissible_commands"])


def test_seed_determines_the_episode() -> None:
    """The same seed plays the same game with the same text, in any environment object; seeds reach all the games."""
    first, second = make(), make()
    tasks = set()
    for seed in range(60):
        start = first.reset(seed=seed)
        assert second.reset(seed=seed) == start
        tasks.add(start[1]["task_id"])
        plan = first.walkthrough
        assert [first.step(command) for command in plan] == [second.step(command) for command in plan]
    assert len(tasks) > 25
    for _ in range(5):
        assert first.reset() == second.reset()


def test_task_can_be_named() -> None:
    """An evaluation plays the tasks of the manifest, each by its id."""
    env = make()
    for task_id in env.manifest[:5]:
        assert env.reset(options={"task_id": task_id})[1]["task_id"] == task_id
    with pytest.raises(TaskNotFoundError, match="no task 'train/none' among the 40 tasks"):
        env.reset(options={"task_id": "train/none"})
    with pytest.raises(ConfigError, match="task_id"):
        env.reset(options={"game": 3})
    with pytest.raises(ConfigError, match="a task id is a string such as 'train/"):
        env.reset(options={"task_id": 5})


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_walkthrough_wins_and_winning_ends_the_episode(kind: str) -> None:
    """Reward, termination, score and stop reason of a won game."""
    env = make(task_types=[kind], reward_scale=10.0)
    _, info = env.reset(seed=1)
    assert info["task_type"] == kind
    *before, last = [env.step(command) for command in env.walkthrough]
    assert all((reward, terminated, truncated) == (0, False, False) for _, reward, terminated, truncated, _ in before)
    assert last[1:4] == (10, True, False)
    assert (last[4]["score"], last[4]["won"], last[4]["stop_reason"]) == (1, True, "won")
    with pytest.raises(gym.error.ResetNeeded, match="won"):
        env.step("look")


def test_nothing_can_be_asked_before_reset() -> None:
    """A clear error instead of a missing attribute."""
    env = make()
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.admissible_commands()
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        _ = env.walkthrough


@pytest.mark.parametrize(
    ("written", "move", "put"),
    [
        ("Go to  Desk 1.", "go to desk 1", "go to desk 1"),
        ('"look"', "look", "look"),
        ("`take mug 1 from desk 1`", "take mug 1 from desk 1", "take mug 1 from desk 1"),
        ("put mug 1 in/on desk 1", "move mug 1 to desk 1", "put mug 1 in/on desk 1"),
        ("put mug 1 on desk 1", "move mug 1 to desk 1", "put mug 1 in/on desk 1"),
        ("Put mug 1 into drawer 2", "move mug 1 to drawer 2", "put mug 1 in/on drawer 2"),
        ("put mug 1 in drawer 2 . ", "move mug 1 to drawer 2", "put mug 1 in/on drawer 2"),
        ("move mug 1 to desk 1", "move mug 1 to desk 1", "put mug 1 in/on desk 1"),
        ("move mug 1", "move mug 1", "move mug 1"),
        ("", "", ""),
    ],
)
def test_spelling_of_actions_is_forgiven(written: str, move: str, put: str) -> None:
    """Prompts and checkpoints made for either data format work, as do quotes, case and periods."""
    assert normalize_action(written, "move") == move
    assert normalize_action(written, "put") == put


@settings(max_examples=60)
@given(action=st.text(), style=st.sampled_from(["move", "put"]))
def test_normalising_twice_changes_nothing(action: str, style: ActionStyle) -> None:
    """Replaying a logged action plays the same action."""
    once = normalize_action(action, style)
    assert normalize_action(once, style) == once


@pytest.mark.parametrize("style", ["move", "put"])
def test_both_wordings_are_understood_and_one_is_shown(style: ActionStyle) -> None:
    """action_style chooses what is shown; neither agent is locked out."""
    for written in ("move {} to {}", "put {} in/on {}"):
        env = make(task_types="pick_and_place_simple", action_style=style, admissible_commands=True)
        env.reset(seed=0)
        *_, (_, _, _, _, info) = [env.step(command) for command in env.walkthrough[:-1]]
        last = env.walkthrough[-1]
        assert last in info["admissible_commands"]
        thing, place = last.removeprefix(f"{style} ").replace(" in/on ", " to ").split(" to ")
        observation, _, won, _, _ = env.step(written.format(thing, place))
        assert won
        link = "to" if style == "move" else "in/on"
        assert observation == f"You {style} the {thing} {link} the {place}."


def test_banner_only_on_request() -> None:
    """Every wrapper strips the welcome line in its own way; here it is one option."""
    plain, _ = make().reset(seed=0)
    with_banner, _ = make(banner=True).reset(seed=0)
    assert with_banner == WELCOME + plain


def test_revisiting_is_an_option() -> None:
    """Standing at a drawer, `go to` its neighbour at the same place is refused by ALFWorld."""
    strict, lenient = make(), make(allow_revisit=True)
    for env in (strict, lenient):
        env.reset(seed=0)
    place = next(c for c in strict.admissible_commands() if c.startswith("go to"))
    assert strict.step(place)[0] == (arrived := lenient.step(place)[0])
    assert strict.step(place)[0] == "Nothing happens."
    assert lenient.step(place)[0] == arrived


def test_task_types_restrict_the_manifest() -> None:
    """A per-type evaluation plays that type only, and a misspelt type is an error, not an empty split."""
    env = make(task_types=["look_at_obj_in_light", "pick_two_obj_and_place"])
    assert {task_id.split("/")[1].split("-")[0] for task_id in env.manifest} == {
        "look_at_obj_in_light",
        "pick_two_obj_and_place",
    }
    with pytest.raises(ConfigError, match="no such task types: \\['pick'\\]"):
        make(task_types=["pick"])
    other = next(kind for kind in TASK_TYPES if kind not in make(num_games=1).manifest[0])
    with pytest.raises(ConfigError, match="none of the 1 games"):
        make(task_types=[other], num_games=1)


def test_snapshot_of_another_world_is_refused() -> None:
    """The same actions lead elsewhere there, and nothing would show it."""
    env = make()
    env.reset(seed=0)
    snapshot = env.snapshot()
    others = {"data": make(generator="official"), "action_style": make(action_style="put")}
    for difference, other in {**others, "allow_revisit": make(allow_revisit=True)}.items():
        with pytest.raises(ConfigError, match=f"another world: it has {difference}"):
            other.restore(snapshot)
    with pytest.raises(ConfigError, match=r"what snapshot.. returned, not a str"):
        env.restore("x")  # type: ignore[arg-type]
    full, empty = (make(generator=GeneratorConfig(closed=closed)) for closed in (0.9, 0.1))
    full.reset(seed=0)
    with pytest.raises(ConfigError, match=r"custom-.* rooms', here .*custom-"):
        empty.restore(full.snapshot())


@pytest.mark.parametrize(
    "options",
    [
        *({"engine": "fast"}, {"action_style": "place"}, {"split": "test"}, {"reward_scale": "a"}),
        *({"num_games": "ten"}, {"generator": {}}, {"generator": "huge"}, {"data_dir": ""}, {"data_dir": 5}),
    ],
)
def test_unknown_options_are_refused(options: dict[str, str]) -> None:
    """A misspelt option must not become a default."""
    with pytest.raises(ConfigError):
        make(**options)


def test_rendering() -> None:
    """`ansi` returns the turn as text; `human` prints it."""
    env = make(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    observation, *_ = env.step("inventory")
    assert env.render() == f"> inventory\n{observation}"


def test_version_names_what_the_episode_ran_on() -> None:
    """Logs of different worlds must not be mixed unnoticed."""
    version = make().version()
    assert version["agentgym_tlm"] == agentgym_tlm.__version__
    assert version["engine"] == "native"
    assert version["data"].startswith("embedded generator v")
    assert version["data_format"] == "2.1.2"


@pytest.fixture(scope="module")
def shared_env() -> ALFWorldEnv:
    """One environment for many examples."""
    return make(num_games=3)


@settings(max_examples=80, deadline=None)
@given(action=st.one_of(st.text(), st.text(max_size=20).map(lambda text: f"put {text} in {text} on {text}")))
def test_any_string_is_answered(shared_env: ALFWorldEnv, action: str) -> None:
    """What models write never raises."""
    env = shared_env
    env.reset(seed=0)
    admissible = env.admissible_commands()
    observation, _, _, _, info = env.step(action)
    assert info["action_valid"] == (normalize_action(action) in admissible)
    assert info["action_valid"] or observation == "Nothing happens."


@pytest.mark.parametrize(
    "action", ["x" * 100_000, "put " * 30_000, "a\0b", "\ud800", "🫖" * 1000, "\n\n", "in/on to " * 20_000]
)
def test_monstrous_strings_are_answered(action: str) -> None:
    """100,000 characters, null bytes, lone surrogates, and strings made to slow the parser down."""
    env = make(num_games=3)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(action)
    assert (observation, info["action_valid"]) == ("Nothing happens.", False)


def test_threads_do_not_disturb_each_other() -> None:
    """Rollouts with a thread per slot read what a single thread reads."""

    def play(seed: int) -> list[str]:
        env = make()
        texts = [env.reset(seed=seed)[0]]
        return texts + [env.step(command)[0] for command in ("look", *env.walkthrough)]

    expected = [play(seed) for seed in range(4)]
    found: dict[int, list[str]] = {}
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: play(seed)})) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == expected
