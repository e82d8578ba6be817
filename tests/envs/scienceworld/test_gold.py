"""The expert: gold paths, shortened where a replay proves that they still win."""

from __future__ import annotations

import pytest

from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv
from agentgym_tlm.envs.scienceworld.gold import GoldExpert, shorten
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.rollout import rollout

pytestmark = pytest.mark.usefixtures("java")


def play(env: ScienceWorldEnv, task_id: str) -> tuple[int, bool]:
    """Turns that the expert takes, and whether it wins."""
    observation, info = env.reset(options={"task_id": task_id})
    expert = env.expert()
    turns = 0
    while info["stop_reason"] is None:
        _, action = expert.act(observation)
        observation, *_, info = env.step(action)
        turns += 1
    return turns, info["won"]


def test_walks_become_jumps() -> None:
    """Of a walk only its end counts, where the expert looks around; other looks and open doors are left out."""
    path = ["open door to hallway", "go to hallway", "look around", "open kitchen door", "go to kitchen"]
    assert shorten([*path, "open cupboard", "go to outside", "wait1"]) == [
        "teleport to kitchen",
        "look around",
        "open cupboard",
        "teleport to outside",
        "look around",
        "wait1",
    ]


def test_expert_wins_short_tasks_in_at_most_eight_turns() -> None:
    """What a small model is first trained on, with thoughts that a prompt can hold."""
    env = ScienceWorldEnv(protocol="short")
    outcomes = [play(env, task_id) for task_id in env.manifest.take(9)]
    assert all(won for _, won in outcomes)
    assert max(turns for turns, _ in outcomes) <= 8


@pytest.mark.parametrize("simplifications", ["none", "easy"])
def test_expert_wins_whether_or_not_it_may_teleport(simplifications: str) -> None:
    """Where time is part of the task the shorter way would lose, and the path is played as it is."""
    env = ScienceWorldEnv(protocol="full", simplifications=simplifications, max_episode_steps=200)
    for task_id in ("identify-life-stages-2/0", "use-thermometer/3", "melt/1"):
        assert play(env, task_id)[1], task_id


def test_first_thought_names_the_goal_and_the_rest_says_why() -> None:
    expert = GoldExpert(
        "Your task is to find a(n) animal. First, focus on the thing. Then, move it to the red box in the kitchen.",
        ["teleport to outside", "focus on dove egg", "move egg dove egg in inventory to red box"],
    )
    assert [expert.act("") for _ in range(4)] == [
        ("I need to find an animal. I go to the outside.", "teleport to outside"),
        ("The dove egg is what I was asked for. I focus on it.", "focus on dove egg"),
        ("The egg dove egg belongs in the red box.", "move egg dove egg in inventory to red box"),
        ("I have done what I know of. I wait and see.", "wait1"),
    ]


def test_expert_rollouts_are_wins_with_thoughts() -> None:
    """What supervised fine-tuning reads."""
    tasks = ["lifespan-longest-lived/0", "find-non-living-thing/1"]
    trajectories = rollout(ExpertPolicy(), "ScienceWorld-v0", tasks, n_slots=2)
    assert all(trajectory.won for trajectory in trajectories)
    assert all(turn.response.startswith("Thought: ") for t in trajectories for turn in t.turns)
