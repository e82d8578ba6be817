"""Worked examples: what a prompt shows to a model must be true of the environment that it then plays in."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.few_shot import EXAMPLES, few_shot_format
from agentgym_tlm.prompt import DEFAULT_INSTRUCTIONS, ReactFormat

CASES = [
    ("ALFWorld-v0", {}),
    ("ALFWorld-v0", {"action_style": "put", "num_games": 3}),
    ("ScienceWorld-v0", {}),
    ("ScienceWorld-v0", {"instructions": False}),
    ("HotpotQA-v0", {}),
]


@pytest.mark.parametrize(("env_id", "env_kwargs"), CASES)
def test_example_plays_as_it_is_written(env_id: str, env_kwargs: dict[str, Any]) -> None:
    """Read back from the prompt alone, its actions bring about its observations, and win."""
    if env_id == "ScienceWorld-v0":
        pytest.importorskip("scienceworld")
    text = few_shot_format(EnvArgs(env=env_id, env_kwargs=env_kwargs)).instructions
    assert text.startswith(DEFAULT_INSTRUCTIONS)
    _, *turns = text.removesuffix("\n\nThe example ends here.").split("\nObservation: ")
    options = {name: value for name, value in env_kwargs.items() if name != "num_games"}
    env = EnvArgs(env=env_id, env_kwargs={**EXAMPLES[env_id].made_with, **options}).make("train")
    observation, info = env.reset(seed=1, options={"task_id": EXAMPLES[env_id].task_id})
    assert len(turns) == len(EXAMPLES[env_id].turns)
    for turn in turns:
        shown, _, response = turn.partition("\nThought: ")
        assert shown in (observation.strip(), f"{observation.strip()}\n\nYour task is to: {info['instruction']}")
        parsed = ReactFormat().parse(f"Thought: {response}")
        assert parsed.thought
        assert parsed.action is not None
        observation, _, _, _, info = env.step(parsed.action)
        assert info["action_valid"]
    assert info["won"]
    env.close()


def test_example_is_worded_as_the_environment_is() -> None:
    put = few_shot_format(EnvArgs(env_kwargs={"action_style": "put"})).instructions
    assert "put THING in/on PLACE" in put
    assert "Action: put apple 1 in/on countertop 1" in put
    assert "move" not in put
    assert "Action: move apple 1 to countertop 1" in few_shot_format(EnvArgs()).instructions


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        (EnvArgs(env="Toy-v0"), "no worked example of Toy-v0: there are examples of ALFWorld-v0"),
        (EnvArgs(env="HotpotQA-v0", env_kwargs={"protocol": "nat"}), "protocol=nat.*leave out --few-shot"),
    ],
)
def test_no_example_is_better_than_a_wrong_one(envs: EnvArgs, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        few_shot_format(envs)
