"""The rollout: what is recorded is what happened, and that depends on nothing but seed, task, sample and policy."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.envs.base import Info
from agentgym_tlm.envs.registration import register
from agentgym_tlm.errors import ConfigError, TaskNotFoundError
from agentgym_tlm.policies.base import Conversation, Generation, Policy
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.human import HumanPolicy
from agentgym_tlm.policies.random import RandomPolicy
from agentgym_tlm.rollout import RolloutProgress, iter_rollout, logged_rollout, rollout
from agentgym_tlm.trajectory import StopReason, Trajectory, TrajectoryWriter, read_trajectories
from tests.toy_env import ROOMS, ToyEnv, tiny_policy

TASKS = tuple(ToyEnv().manifest)


class WatchedExpert(ExpertPolicy):
    """The expert, noting which episodes act together; ``interrupt_at`` raises KeyboardInterrupt in that call."""

    def __init__(self, *, interrupt_at: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.batches: list[int] = []
        self.ended = 0
        self._interrupt_at = interrupt_at

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        if len(self.batches) == self._interrupt_at:
            raise KeyboardInterrupt
        self.batches.append(len(conversations))
        return super().act(conversations)

    def end(self, conversation: Conversation) -> None:
        self.ended += 1
        super().end(conversation)


def test_records_every_field_of_an_episode() -> None:
    [trajectory] = rollout(ExpertPolicy(), "Toy-v0", ["lamp-cellar-hall"], split="valid_seen", seed=7)
    assert trajectory.env_id == "Toy-v0"
    assert (trajectory.task_id, trajectory.task_type) == ("lamp-cellar-hall", "to-hall")
    assert (trajectory.split, trajectory.seed, trajectory.sample) == ("valid_seen", 7, 0)
    assert trajectory.instruction == "bring the lamp to the hall."
    assert (trajectory.stop_reason, trajectory.won, trajectory.score) == (StopReason.WON, True, 1.0)
    assert (trajectory.policy, trajectory.prompt_format) == ("expert", "react")
    assert trajectory.env == {"engine": "toy", "source": "toy", "max_episode_steps": 15}
    assert trajectory.final_observation == "You put the lamp."
    assert [turn.action for turn in trajectory.turns] == [
        *("go to study", "open door", "go to cellar", "take lamp", "go to study", "go to hall", "put lamp")
    ]
    assert trajectory.turns[0].response == "Thought: I go on to the study.\nAction: go to study"
    assert trajectory.turns[1].observation == "You arrive at the study. You see nothing. The door is closed."
    assert [turn.reward for turn in trajectory.turns] == [0.0] * 6 + [1.0]
    assert all(turn.action_valid and turn.trainable and turn.span is None for turn in trajectory.turns)
    assert trajectory.sequences == []


def test_plays_the_whole_manifest_in_order() -> None:
    trajectories = rollout(ExpertPolicy(), "Toy-v0", n_slots=4, samples_per_task=2)
    assert [(t.task_id, t.sample) for t in trajectories] == [(task, i) for task in TASKS for i in (0, 1)]


@pytest.mark.parametrize("make_policy", [lambda: ExpertPolicy(noise=0.4), tiny_policy], ids=["expert", "tiny"])
def test_results_do_not_depend_on_slots_or_on_the_order_of_tasks(make_policy: Any) -> None:
    """Otherwise a number could not be reproduced on a machine with other memory."""
    options: dict[str, Any] = {"samples_per_task": 2, "max_turns": 6}
    reference = rollout(make_policy(), "Toy-v0", n_slots=1, **options)
    for n_slots in (3, 8):
        _assert_same(rollout(make_policy(), "Toy-v0", n_slots=n_slots, **options), reference)
    backwards = rollout(make_policy(), "Toy-v0", TASKS[::-1], n_slots=5, **options)
    _assert_same(sorted(backwards, key=lambda t: (t.task_id, t.sample)), reference)


def _assert_same(actual: list[Trajectory], expected: list[Trajectory]) -> None:
    """Equal, except that log-probabilities may differ in the last bits: they do with the size of the batch."""
    for one, other in zip(actual, expected, strict=True):
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert (turn.logprobs is None) == (same.logprobs is None)
            assert turn.logprobs is None or turn.logprobs == pytest.approx(same.logprobs, abs=1e-5)
            turn.logprobs = same.logprobs
        assert one == other


def test_samples_and_seeds_differ() -> None:
    """Samples of a task that were all the same would make every group degenerate."""
    policy = ExpertPolicy(noise=0.5)
    samples = rollout(policy, "Toy-v0", TASKS[:1], samples_per_task=6)
    assert len({str(t.turns) for t in samples}) > 1
    assert len({t.group_id for t in samples}) == 1
    other = rollout(policy, "Toy-v0", TASKS[:1], samples_per_task=6, seed=1)
    assert str([t.turns for t in other]) != str([t.turns for t in samples])


def test_no_slot_waits_for_another_episode() -> None:
    """Lock-step rollouts generate for finished episodes, or idle, until the longest one is done."""
    policy = WatchedExpert()
    trajectories = rollout(policy, "Toy-v0", n_slots=4, samples_per_task=5)
    turns = sum(len(t.turns) for t in trajectories)
    assert sum(policy.batches) == turns
    waiting = next(i for i, size in enumerate(policy.batches) if size < 4)
    assert len(policy.batches) - waiting <= max(len(t.turns) for t in trajectories)


class SlowToy(ToyEnv):
    """The toy world behind a wire: every step takes a while, in the odd tasks a longer one."""

    slow = True
    stepping = 0

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        SlowToy.stepping += 1
        time.sleep(0.03 if "study-" in self._play.task_id else 0.002)
        try:
            return super().step(action)
        finally:
            SlowToy.stepping -= 1


register("SlowToy-v0", "tests.test_rollout:SlowToy", max_episode_steps=15)


@pytest.mark.parametrize("make_policy", [lambda: ExpertPolicy(noise=0.4), tiny_policy], ids=["expert", "tiny"])
def test_slow_environments_change_the_time_that_it_takes_only(make_policy: Any) -> None:
    """Who answers when must not show in an episode: the same command would give other numbers each time."""
    options: dict[str, Any] = {"samples_per_task": 2, "max_turns": 6, "n_slots": 5}
    reference = rollout(make_policy(), "Toy-v0", **options)
    actual = rollout(make_policy(), "SlowToy-v0", **options)
    for trajectory in actual:
        trajectory.env_id = "Toy-v0"
    _assert_same(actual, reference)


def test_the_policy_writes_while_slow_environments_step() -> None:
    """One slow server would otherwise stop the model and all other episodes at every turn."""
    stepping: list[int] = []

    class Watching(WatchedExpert):
        def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
            stepping.append(SlowToy.stepping)
            return super().act(conversations)

    policy = Watching()
    rollout(policy, "SlowToy-v0", n_slots=6, samples_per_task=2)
    assert max(stepping) > 0
    assert max(policy.batches) > 1


def test_a_failure_of_a_slow_environment_and_an_interrupt_are_told() -> None:
    tasks = ["lamp-cellar-hall", "lamp-hall-study"]
    failed, fine = rollout(ExpertPolicy(), "SlowToy-v0", tasks, env_kwargs={"fail_on": tasks[0]})
    assert (failed.stop_reason, fine.won) == (StopReason.ENV_ERROR, True)
    policy = WatchedExpert(interrupt_at=3)
    with pytest.raises(KeyboardInterrupt):
        rollout(policy, "SlowToy-v0", n_slots=3)
    assert policy.ended >= 3
    assert SlowToy.stepping == 0, "nothing goes on stepping behind the caller's back"


def test_every_conversation_is_ended() -> None:
    """A policy that is not told holds on to cache slots for ever."""
    policy = WatchedExpert()
    rollout(policy, "Toy-v0", n_slots=4)
    assert policy.ended == len(TASKS)


def test_an_environment_failure_is_recorded_and_not_scored() -> None:
    """A crash of the simulator counted as reward 0 would teach the policy that its action was bad."""
    tasks = ["lamp-cellar-hall", "lamp-hall-study"]
    failed, fine = rollout(ExpertPolicy(), "Toy-v0", tasks, n_slots=1, env_kwargs={"fail_on": tasks[0]})
    assert failed.stop_reason is StopReason.ENV_ERROR
    assert failed.error == "the toy broke down in lamp-cellar-hall"
    assert [turn.trainable for turn in failed.turns] == [True, False]
    assert fine.won, "the slot's environment has to be replaced and go on"


def test_an_unparsable_response_is_an_invalid_turn() -> None:
    class Mumbler(ExpertPolicy):
        def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
            return [Generation("Thought: hm\nno action here") for _ in conversations]

    [trajectory] = rollout(Mumbler(), "Toy-v0", TASKS[:1], max_turns=2)
    assert [(turn.action, turn.action_valid, turn.observation) for turn in trajectory.turns][1] == (
        None,
        False,
        "Nothing happens.",
    )
    assert trajectory.invalid_actions == 2


def test_max_turns_is_the_step_limit_and_no_success() -> None:
    [trajectory] = rollout(ExpertPolicy(), "Toy-v0", ["lamp-cellar-hall"], max_turns=3)
    assert (trajectory.stop_reason, trajectory.won, len(trajectory.turns)) == (StopReason.MAX_STEPS, False, 3)


def test_a_full_context_ends_the_episode_before_sampling() -> None:
    """The last turn must not be cut short to fit: it would look like the model's own choice."""
    policy = tiny_policy(max_context=100)
    for trajectory in rollout(policy, "Toy-v0"):
        assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
        assert len(trajectory.sequences[0]) <= 100
        assert all(turn.logprobs is not None and turn.span is not None for turn in trajectory.turns)
        assert trajectory.final_observation


def test_writes_each_trajectory_as_its_episode_ends(tmp_path: Path) -> None:
    """A killed run may lose the episodes in flight and no others."""
    path = tmp_path / "log.jsonl"
    with TrajectoryWriter(path) as writer:
        for count, trajectory in enumerate(iter_rollout(ExpertPolicy(), "Toy-v0", n_slots=2, writer=writer), start=1):
            on_disk = list(read_trajectories(path))
            assert trajectory in on_disk
            assert len(on_disk) >= count
    assert sorted(t.task_id for t in on_disk) == list(TASKS)


def test_an_interrupted_rollout_keeps_what_it_has_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = rollout(ExpertPolicy(noise=0.4), "Toy-v0", samples_per_task=2)
    policy = WatchedExpert(noise=0.4, interrupt_at=9)
    with TrajectoryWriter(path) as writer, pytest.raises(KeyboardInterrupt):
        rollout(policy, "Toy-v0", n_slots=3, samples_per_task=2, writer=writer)
    recorded = list(read_trajectories(path))
    aborted = [t for t in recorded if t.stop_reason is StopReason.ABORTED]
    assert len(aborted) == 3
    assert all(t.turns and not t.won for t in aborted)
    again = WatchedExpert(noise=0.4)
    assert rollout(again, "Toy-v0", n_slots=3, samples_per_task=2, resume=recorded) == whole
    assert again.ended == len(whole) - (len(recorded) - len(aborted)), "finished episodes are not played again"


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"seed": 2}, "seed 1, now 2"),
        ({"split": "valid_seen"}, "split 'train', now 'valid_seen'"),
        ({"max_turns": 9}, "max_episode_steps 15, now 9"),
        ({"env_kwargs": {"max_episode_steps": 9}}, "max_episode_steps 15, now 9"),
    ],
)
def test_refuses_to_resume_another_rollout(options: dict[str, Any], difference: str) -> None:
    recorded = rollout(ExpertPolicy(), "Toy-v0", TASKS[:1], seed=1)
    with pytest.raises(ConfigError, match=f"cannot resume.* {difference}"):
        rollout(ExpertPolicy(), "Toy-v0", TASKS[:1], **{"seed": 1, "resume": recorded, **options})


def test_refuses_to_resume_in_another_world() -> None:
    """Episodes of two wordings of the same command in one data set would look like one environment's."""
    options: dict[str, Any] = {"split": "valid_seen", "max_turns": 2}
    small = {"data_dir": "embedded", "num_games": 2}
    recorded = rollout(ExpertPolicy(), "ALFWorld-v0", env_kwargs=small, **options)
    for name, value in {"action_style": "put", "allow_revisit": True, "reward_scale": 2.0, "banner": True}.items():
        with pytest.raises(ConfigError, match=name):
            rollout(ExpertPolicy(), "ALFWorld-v0", env_kwargs={**small, name: value}, resume=recorded, **options)


def test_a_log_that_does_not_tell_the_step_limit_is_gone_on_with() -> None:
    """Logs of earlier releases have the same schema and are no less complete."""
    recorded = rollout(ExpertPolicy(), "Toy-v0", TASKS[:1])
    del recorded[0].env["max_episode_steps"]
    policy = WatchedExpert()
    assert rollout(policy, "Toy-v0", TASKS[:1], resume=recorded) == recorded
    assert policy.batches == []


def test_refuses_to_resume_with_other_weights() -> None:
    """Two trainings of one length have the same version; the numbers of one are not the other's."""
    options: dict[str, Any] = {"tasks": TASKS[:1], "max_turns": 2}
    recorded = rollout(tiny_policy(), "Toy-v0", **options)
    assert rollout(tiny_policy(), "Toy-v0", resume=recorded, **options) == recorded
    with pytest.raises(ConfigError, match="policy weights"):
        rollout(tiny_policy(seed=1), "Toy-v0", resume=recorded, **options)


@pytest.mark.parametrize("options", [{"env_kwargs": {"split": "valid_seen"}}, {"seed": -1}, {"n_slots": 0}])
def test_refuses_options_that_contradict(options: dict[str, Any]) -> None:
    """An option must not be overruled without a word, nor a bad seed be reported as a missing attribute."""
    with pytest.raises(ConfigError, match=r"split|seed|n_slots"):
        rollout(ExpertPolicy(), "Toy-v0", TASKS[:1], **options)


def test_a_torn_log_is_gone_on_with_again_and_again(tmp_path: Path) -> None:
    """Resuming must leave a log that can be resumed, whatever the kill left at its end."""
    log = tmp_path / "log.jsonl"
    whole = logged_rollout(log, ExpertPolicy(), "Toy-v0")
    text = log.read_text()
    for end in ("", "\n", '{"task', '{"task\n', "[1]\n"):
        log.write_text(text.rstrip("\n") + ("\n" if end.strip() else "") + end)
        with warnings.catch_warnings(record=True) as caught:
            assert logged_rollout(log, (policy := WatchedExpert()), "Toy-v0") == whole
        assert (policy.batches, log.read_text()) == ([], text)
        assert len(caught) == bool(end.strip())


def test_stopping_the_generator_early_releases_everything() -> None:
    policy = WatchedExpert()
    episodes = iter_rollout(policy, "Toy-v0", n_slots=2)
    next(episodes)
    episodes.close()  # type: ignore[attr-defined]
    assert policy.ended >= 2


def test_reports_progress() -> None:
    seen: list[tuple[int, int]] = []

    def progress(counts: RolloutProgress) -> None:
        seen.append((counts.episodes, counts.turns))
        assert counts.total == len(TASKS)

    trajectories = rollout(ExpertPolicy(), "Toy-v0", n_slots=2, progress=progress)
    assert seen == sorted(seen)
    assert seen[-1] == (len(TASKS), sum(len(t.turns) for t in trajectories))


def test_a_person_can_play_and_quit() -> None:
    lines = iter(["?", "", "go to study", "quit"])
    shown: list[str] = []
    policy = HumanPolicy(read=lambda _: next(lines), show=shown.append)
    [trajectory] = rollout(policy, "Toy-v0", TASKS[:1], env_kwargs={"admissible_commands": True})
    assert [turn.action for turn in trajectory.turns] == ["go to study"]
    assert trajectory.stop_reason is StopReason.ABORTED
    assert "go to study\nlook" in shown, "? lists the commands"
    assert shown[-1] == trajectory.final_observation, "a person has to see how it ended"


def test_random_play_is_admissible_and_needs_the_list() -> None:
    trajectories = rollout(RandomPolicy(), "Toy-v0", env_kwargs={"admissible_commands": True})
    assert all(turn.action_valid for t in trajectories for turn in t.turns)
    with pytest.raises(ConfigError, match="admissible_commands=True"):
        rollout(RandomPolicy(), "Toy-v0")


@pytest.mark.parametrize(
    ("tasks", "error"), [(["lamp-attic-hall"], TaskNotFoundError), ([TASKS[0], TASKS[0]], ConfigError)]
)
def test_refuses_bad_task_lists(tasks: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        rollout(ExpertPolicy(), "Toy-v0", tasks)


def test_all_policies_meet_the_contract() -> None:
    for policy in (ExpertPolicy(), RandomPolicy(), HumanPolicy(), tiny_policy()):
        assert isinstance(policy, Policy)


def test_the_toy_world_is_solvable() -> None:
    """Every test above relies on it."""
    assert len(TASKS) == len(ROOMS) * (len(ROOMS) - 1)
    assert all(t.won for t in rollout(ExpertPolicy(), "Toy-v0"))
