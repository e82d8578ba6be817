"""The policies that need no model, and how policies are found by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_tlm.errors import ConfigError, DataError
from agentgym_tlm.policies import load_policy
from agentgym_tlm.policies.base import Conversation
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.human import HumanPolicy
from agentgym_tlm.policies.random import RandomPolicy
from agentgym_tlm.policies.smollm2 import smollm2_folder
from agentgym_tlm.prompt import ReactFormat
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import StopReason
from tests.toy_env import tiny_policy


def test_mistakes_are_marked_and_recovered_from() -> None:
    """Imitating an injected mistake would teach it; never recovering from one would be no use."""
    trajectories = rollout(ExpertPolicy(noise=0.4), "Toy-v0", samples_per_task=5)
    mistakes = [turn for t in trajectories for turn in t.turns if not turn.trainable]
    assert mistakes
    assert not any(turn.action_valid for turn in mistakes)
    assert all(turn.action_valid for t in trajectories for turn in t.turns if turn.trainable)
    assert sum(t.won for t in trajectories) >= 0.9 * len(trajectories)


def test_noise_plays_mistakes_at_its_rate() -> None:
    trajectories = rollout(ExpertPolicy(noise=0.2), "Toy-v0", samples_per_task=40)
    turns = [turn for t in trajectories for turn in t.turns if "a lamp" not in turn.observation]
    rate = np.mean([not turn.trainable for turn in turns])
    assert rate == pytest.approx(0.2, abs=0.04)


def test_noise_is_in_the_name_and_must_be_a_probability() -> None:
    assert (ExpertPolicy().name, ExpertPolicy(noise=0.12).name) == ("expert", "expert-noise0.12")
    with pytest.raises(ConfigError, match="probability"):
        ExpertPolicy(noise=1.0)


def test_a_conversation_without_an_expert_cannot_be_played_by_it() -> None:
    conversation = Conversation("CartPole-v1", "", "", np.random.default_rng(0), observations=["."])
    with pytest.raises(ConfigError, match="no expert"):
        ExpertPolicy().act([conversation])


def test_end_of_input_aborts_an_episode() -> None:
    def closed(prompt: str) -> str:
        raise EOFError

    [trajectory] = rollout(HumanPolicy(read=closed, show=lambda _: None), "Toy-v0", ["lamp-hall-study"])
    assert trajectory.stop_reason is StopReason.ABORTED
    assert trajectory.turns == []


def test_finds_policies_by_name(tmp_path: Path) -> None:
    assert isinstance(load_policy("expert", noise=0.1), ExpertPolicy)
    assert isinstance(load_policy("random"), RandomPolicy)
    assert isinstance(load_policy("human"), HumanPolicy)
    tiny_policy().save(tmp_path)
    assert load_policy(tmp_path, device="cpu").name == "tiny"
    assert load_policy(tmp_path, device="cpu", name="small").name == "small"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": "many"}, "max_new_tokens must be a whole number, not 'many'"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be a whole number, not 1.5"),
        ({"max_context": "all"}, "max_context must be a whole number or null, not 'all'"),
        ({"top_p": True}, "top_p must be a number, not True"),
        ({"kv_cache": "maybe"}, "kv_cache must be true or false, not 'maybe'"),
        ({"dtype": "half a byte"}, "dtype='half a byte' must be auto, or one of torch's"),
        ({"device": "abacus"}, "device='abacus' cannot be used here"),
    ],
)
def test_options_of_a_model_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """``--policy-kwargs`` takes anything; a mistake there is the user's, and no traceback."""
    tiny_policy().save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_policy(tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny", r"built by `agentgym-tlm train`: give the folder"),
        ("exprt", r"did you mean expert\? There are expert, random"),
        ("nothing-like-it", r"There are expert, .*OWNER/NAME"),
        ("/no/such/folder", "there is no folder /no/such/folder"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_at_once(name: str, message: str) -> None:
    """Asking the hub for a typing error costs tens of seconds and a page of retries."""
    with pytest.raises(ConfigError, match=message):
        load_policy(name)


def test_a_missing_smollm2_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_TLM_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="agentgym-tlm data fetch smollm2"):
        load_policy("smollm2")


@pytest.mark.slow
def test_smollm2_plays() -> None:
    """A real pretrained model, its own chat template, and readable responses."""
    if not smollm2_folder().is_dir():
        pytest.skip("SmolLM2 is not in the cache: agentgym-tlm data fetch smollm2")
    policy = load_policy("smollm2", device="cpu", temperature=0, max_new_tokens=24)
    [trajectory] = rollout(policy, "Toy-v0", ["lamp-hall-study"], max_turns=2)
    assert policy.format == ReactFormat()
    assert trajectory.has_tokens
    assert all(turn.response.isprintable() or "\n" in turn.response for turn in trajectory.turns)
    assert np.mean(trajectory.turns[0].logprobs or [-9.0]) > -2, "greedy text of an intact model is not surprising"
