"""Episodes that begin behind given turns go on as if nobody had interrupted them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.batch import Example, untrainable_reason
from agentgym_tlm.errors import ConfigError, TrajectoryError
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.random import RandomPolicy
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.rollout import logged_rollout, rollout
from agentgym_tlm.slots import EpisodeKey
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories, write_trajectories
from tests.toy_env import ToyEnv, tiny_policy
from tests.trainers.students import demonstrations, student

TASKS = tuple(ToyEnv().manifest)
LIMIT: dict[str, Any] = {"max_turns": 10}


def experts(policy: LanguageModelPolicy) -> list[Trajectory]:
    return demonstrations(policy)[:3]


def prefixes_of(trajectories: list[Trajectory]) -> list[Prefix]:
    return [Prefix(trajectory, turns) for trajectory in trajectories for turns in range(len(trajectory.turns))]


def course(trajectory: Trajectory) -> Any:
    """What happened, without who was asked to learn from it and log-probs in their last bits."""
    turns = [(t.observation, t.response, t.action, t.action_valid, t.reward, t.span) for t in trajectory.turns]
    return turns, trajectory.sequences, trajectory.score, trajectory.stop_reason, trajectory.final_observation


@pytest.mark.parametrize("make_policy", [student, tiny_policy], ids=["student", "babbler"])
def test_greedy_policy_goes_on_from_its_own_prefix_as_it_did(make_policy: Any) -> None:
    """Environment, history and token ids are where they were: the babbler's responses have no end that it sampled."""
    policy = make_policy()
    policy.temperature = 0.0
    whole = rollout(policy, "Toy-v0", TASKS, **LIMIT)
    prefixes = prefixes_of(whole)
    for prefix, found in zip(prefixes, rollout(policy, "Toy-v0", prefixes, **LIMIT), strict=True):
        assert course(found) == course(prefix.trajectory)
        assert [turn.trainable for turn in found.turns].count(False) == prefix.turns


def test_given_turns_are_context(tmp_path: Path) -> None:
    """The ids are the expert's own, no token of them is in the loss, and a file gives the episode back."""
    policy = student()
    [expert] = experts(policy)[:1]
    [found] = rollout(policy, "Toy-v0", [Prefix(expert, 3)], **LIMIT)
    assert [turn.response for turn in found.turns[:3]] == [turn.response for turn in expert.turns[:3]]
    assert expert.turns[2].span is not None
    end = expert.turns[2].span[1]
    assert found.sequences[0][:end] == expert.sequences[0][:end]
    assert not Example.from_trajectory(found).rows[0].loss_mask[:end].any()
    assert found.metadata["prefix_turns"] == 3
    assert all(turn.trainable for turn in expert.turns), "the prefix belongs to its own episode"
    write_trajectories(tmp_path / "log.jsonl", [found])
    assert list(read_trajectories(tmp_path / "log.jsonl")) == [found]


def test_text_is_encoded_by_the_policy() -> None:
    policy = student()
    policy.temperature = 0.0
    plain = rollout(ExpertPolicy(format=policy.format), "Toy-v0", TASKS[:2], **LIMIT)
    encoded = [policy.renderer.encode_trajectory(trajectory) for trajectory in plain]
    found, expected = (
        rollout(policy, "Toy-v0", [Prefix(trajectory, 2) for trajectory in played], **LIMIT)
        for played in (plain, encoded)
    )
    assert [course(trajectory) for trajectory in found] == [course(trajectory) for trajectory in expected]


def test_results_do_not_depend_on_slots_or_order() -> None:
    policy = student()
    prefixes = [prefix for prefix in prefixes_of(experts(policy)) if prefix.turns in (0, 1, 4)]
    options: dict[str, Any] = {"samples_per_task": 2, **LIMIT}
    reference = rollout(policy, "Toy-v0", prefixes, n_slots=1, **options)
    assert [EpisodeKey.of(t) for t in reference] == [
        EpisodeKey(prefix.task_id, sample, prefix.name) for prefix in prefixes for sample in (0, 1)
    ]
    wide = rollout(policy, "Toy-v0", prefixes, n_slots=8, **options)
    assert [course(t) for t in wide] == [course(t) for t in reference]
    backwards = rollout(policy, "Toy-v0", prefixes[::-1], n_slots=3, **options)
    assert sorted(map(repr, map(course, backwards))) == sorted(map(repr, map(course, reference)))
    assert len({t.group_id for t in reference}) == len(prefixes), "episodes of one beginning are a group"


def test_logged_continuations_are_not_played_again(tmp_path: Path) -> None:
    policy = student()
    prefixes = prefixes_of(experts(policy))[::3]
    whole = logged_rollout(tmp_path / "log.jsonl", policy, "Toy-v0", prefixes, samples_per_task=2, **LIMIT)
    log = tmp_path / "torn.jsonl"
    write_trajectories(log, whole[5:])
    again = logged_rollout(log, policy, "Toy-v0", prefixes, samples_per_task=2, n_slots=2, **LIMIT)
    assert [course(t) for t in again] == [course(t) for t in whole]
    assert sum(1 for _ in read_trajectories(log)) == len(whole)


def test_environment_plays_a_prefix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five samples of a step far into a long episode must not cost five times the way there."""
    [expert] = demonstrations(student())[:1]
    steps: list[str] = []
    step = ToyEnv.step

    def counted(env: ToyEnv, action: str) -> Any:
        steps.append(action)
        return step(env, action)

    monkeypatch.setattr(ToyEnv, "step", counted)
    found = rollout(student(), "Toy-v0", [Prefix(expert, 4, max_turns=1)], samples_per_task=5, n_slots=2, **LIMIT)
    assert len(found) == 5
    assert len(steps) == 4 + 5


def test_turns_behind_the_prefix_can_be_limited() -> None:
    policy = student()
    policy.temperature = 0.0
    expert = experts(policy)[0]
    last = len(expert.turns) - 1
    found = rollout(policy, "Toy-v0", [Prefix(expert, 1, max_turns=1), Prefix(expert, last, max_turns=1)], **LIMIT)
    assert [len(trajectory.turns) for trajectory in found] == [2, last + 1]
    assert found[0].stop_reason is StopReason.MAX_STEPS
    assert found[0].final_observation
    assert (found[1].stop_reason, found[1].score) == (StopReason.WON, 1.0), "the end of the episode is still its own"


def test_failures_of_the_machinery_stay_failures() -> None:
    """On the way through the prefix or behind it: recorded, nothing to learn from, and the other episodes go on."""
    policy = student()
    broken, fine = demonstrations(policy)[:2]
    prefixes = [Prefix(broken, 1), Prefix(broken, 3), Prefix(fine, 3)]
    options: dict[str, Any] = {"env_kwargs": {"fail_on": broken.task_id}, "samples_per_task": 2, **LIMIT}
    for n_slots in (1, 4):
        found = rollout(policy, "Toy-v0", prefixes, n_slots=n_slots, **options)
        assert [t.stop_reason is StopReason.ENV_ERROR for t in found] == [True] * 4 + [False] * 2
        assert all(untrainable_reason(t) == "env_error" for t in found[:4])
        assert [len(t.turns) for t in found[:4]] == [2, 2, 3, 3]


def test_full_context_leaves_no_turn_to_learn_from() -> None:
    policy = student()
    expert = experts(policy)[0]
    policy.max_context = len(expert.sequences[0]) - 1
    [found] = rollout(policy, "Toy-v0", [Prefix(expert, len(expert.turns) - 1)], **LIMIT)
    assert found.stop_reason is StopReason.TOKEN_BUDGET
    assert untrainable_reason(found) == "nothing_trainable"


def test_another_world_is_refused() -> None:
    """Going on with a history that is not the environment's would look like data and be nonsense."""
    expert = experts(student())[0]
    expert.turns[1].observation = "You arrive at the attic."
    with pytest.raises(TrajectoryError, match=r"before turn 2 .* then it said 'You arrive at the attic"):
        rollout(student(), "Toy-v0", [Prefix(expert, 2)], **LIMIT)


def test_initial_state_is_that_of_the_first_episode() -> None:
    """With another seed, and over two generations: an environment may draw its initial state from the seed."""
    policy = student()
    expert = experts(policy)[0]
    [first] = rollout(policy, "Toy-v0", [Prefix(expert, 1)], seed=5, **LIMIT)
    assert (first.seed, first.metadata["state_seed"]) == (5, expert.seed)
    assert Prefix(first, 2).state_seed == expert.seed


def test_refuses_what_cannot_be_a_prefix() -> None:
    expert = experts(student())[0]
    for turns in (-1, len(expert.turns)):
        with pytest.raises(TrajectoryError, match="a prefix of"):
            Prefix(expert, turns)
    with pytest.raises(ConfigError, match="twice"):
        rollout(student(), "Toy-v0", [Prefix(expert, 1), Prefix(expert, 1)], **LIMIT)
    with pytest.raises(ConfigError, match="no expert"):
        rollout(ExpertPolicy(), "Toy-v0", [Prefix(expert, 1)], **LIMIT)


def test_policies_without_tokens_go_on_from_text() -> None:
    [expert] = rollout(ExpertPolicy(), "Toy-v0", TASKS[:1], **LIMIT)
    options: dict[str, Any] = {"env_kwargs": {"admissible_commands": True}, **LIMIT}
    [found] = rollout(RandomPolicy(), "Toy-v0", [Prefix(expert, 2)], **options)
    assert [turn.response for turn in found.turns[:2]] == [turn.response for turn in expert.turns[:2]]
    assert found.sequences == []
