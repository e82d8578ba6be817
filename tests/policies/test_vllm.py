"""vLLM's wire: the same episodes, ids and log-probabilities as the model itself, or a refusal that says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym_tlm.errors import AgentGymError, ConfigError, DataError, PolicyFailureError
from agentgym_tlm.policies import load_policy
from agentgym_tlm.policies.base import Policy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.vllm import VllmPolicy
from agentgym_tlm.prefix import Prefix
from agentgym_tlm.prompt import TagsFormat
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import StopReason, Trajectory
from tests.policies.model_server import ModelServer, Reply, ServedModel, in_turn, serving
from tests.toy_env import ToyEnv, expert_trajectories, tiny_policy

TASKS = tuple(ToyEnv().manifest)


@pytest.fixture(scope="module")
def local() -> LanguageModelPolicy:
    """The model that is served; it babbles, and sometimes ends its turn."""
    return tiny_policy(hidden_size=16, layers=1, max_new_tokens=8)


@pytest.fixture
def server(local: LanguageModelPolicy) -> Iterator[ModelServer]:
    with serving(ServedModel(local)) as running:
        yield running


def policy(url: str, local: LanguageModelPolicy, **options: Any) -> VllmPolicy:
    fast = {"max_new_tokens": 8, "backoff": 0.01, "max_retries": 1, "timeout": 10.0, "format": local.format}
    return VllmPolicy("toy/tiny", local.tokenizer, base_url=url, name="tiny", **{**fast, **options})


def assert_same(played: list[Trajectory], expected: list[Trajectory]) -> None:
    for one, other in zip(played, expected, strict=True):
        assert one.sequences == other.sequences
        assert [turn.span for turn in one.turns] == [turn.span for turn in other.turns]
        assert [turn.response for turn in one.turns] == [turn.response for turn in other.turns]
        assert [turn.finish_reason for turn in one.turns] == [turn.finish_reason for turn in other.turns]
        assert one.stop_reason is other.stop_reason
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert turn.logprobs == pytest.approx(same.logprobs, abs=1e-4)


def test_plays_token_for_token_as_the_model_itself(local: LanguageModelPolicy, server: ModelServer) -> None:
    """What is trained on must not depend on where it was sampled: ids, spans, ends of turn, log-probabilities."""
    remote = policy(server.url, local, temperature=0.0)
    greedy = tiny_policy(hidden_size=16, layers=1, max_new_tokens=8, temperature=0.0)
    played = rollout(remote, "Toy-v0", n_slots=3, max_turns=4)
    assert_same(played, rollout(greedy, "Toy-v0", n_slots=3, max_turns=4))
    assert all(trajectory.has_tokens for trajectory in played)
    assert isinstance(remote, Policy)
    assert played[0].metadata["usage"]["completion_tokens"] == sum(
        len(played[0].response_ids(turn)) for turn in played[0].turns
    )


def test_a_turn_of_a_windowed_format_is_a_sequence_of_its_own(local: LanguageModelPolicy, server: ModelServer) -> None:
    greedy = tiny_policy(hidden_size=16, layers=1, max_new_tokens=8, temperature=0.0)
    greedy.use_renderer(Renderer(greedy.tokenizer, TagsFormat()))
    remote = policy(server.url, local, temperature=0.0, format=TagsFormat())
    played = rollout(remote, "Toy-v0", TASKS[:2], max_turns=4)
    assert_same(played, rollout(greedy, "Toy-v0", TASKS[:2], max_turns=4))
    assert [turn.sequence for turn in played[0].turns] == [0, 1, 2, 3]


def test_goes_on_behind_given_turns_as_the_model_itself(local: LanguageModelPolicy, server: ModelServer) -> None:
    """A continuation from the middle of an expert's episode begins with ids that nobody sampled."""
    expert = next(t for t in expert_trajectories() if len(t.turns) > 3)
    prefix = Prefix(expert, 2)
    greedy = tiny_policy(hidden_size=16, layers=1, max_new_tokens=8, temperature=0.0)
    remote = policy(server.url, local, temperature=0.0)
    assert_same(rollout(remote, "Toy-v0", [prefix], max_turns=5), rollout(greedy, "Toy-v0", [prefix], max_turns=5))


@pytest.mark.parametrize(
    ("mode", "temperature"), [("raw_logprobs", 1.0), ("processed_logprobs", 1.0), ("processed_logprobs", 0.5)]
)
def test_logprobs_are_those_at_the_sampling_temperature(
    local: LanguageModelPolicy, mode: str, temperature: float
) -> None:
    """As the trainer computes them: otherwise every importance weight is off from the first step."""
    with serving(ServedModel(local, mode=mode)) as server:
        [trajectory] = rollout(policy(server.url, local, temperature=temperature), "Toy-v0", TASKS[:1], max_turns=3)
    ids = trajectory.sequences[0]
    with torch.inference_mode():
        logits = local.model(torch.tensor([ids])).logits[0].float() / temperature
    expected = logits.log_softmax(-1)
    for turn in trajectory.turns:
        assert turn.span is not None
        assert turn.logprobs == pytest.approx([float(expected[i - 1, ids[i]]) for i in range(*turn.span)], abs=1e-4)


def test_same_seed_same_episode_whatever_is_played_beside_it(local: LanguageModelPolicy, server: ModelServer) -> None:
    remote = policy(server.url, local)
    together = rollout(remote, "Toy-v0", n_slots=6, max_turns=3)
    assert rollout(remote, "Toy-v0", TASKS[2:3], max_turns=3) == together[2:3]
    assert rollout(remote, "Toy-v0", TASKS[2:3], max_turns=3, seed=1)[0].sequences != together[2].sequences


def test_request_leaves_nothing_to_the_models_own_defaults(local: LanguageModelPolicy, server: ModelServer) -> None:
    """A generation_config.json with top_k=20 or a repetition penalty would silently sample from something else."""
    rollout(policy(server.url, local, top_p=0.9, logprobs=False), "Toy-v0", TASKS[:1], max_turns=1)
    body = server.asked[-1].body
    assert body.pop("seed") >= 0
    assert body.pop("prompt")[-1] == local.tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert body == {
        **{"model": "toy/tiny", "max_tokens": 8, "temperature": 1.0, "top_p": 0.9, "top_k": -1, "min_p": 0.0},
        **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        **{"stop_token_ids": sorted(local.stop_ids), "return_token_ids": True},
    }


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("raw_logprobs", {"temperature": 0.5}),
        ("processed_logprobs", {"temperature": 1.0, "top_p": 0.9}),
    ],
)
def test_logprobs_of_another_distribution_are_refused(
    local: LanguageModelPolicy, mode: str, options: dict[str, Any]
) -> None:
    needed = "processed_logprobs" if mode == "raw_logprobs" else "raw_logprobs"
    with serving(ServedModel(local, mode=mode)) as server:
        with pytest.raises(PolicyFailureError, match=f"--logprobs-mode {needed}"):
            rollout(policy(server.url, local, **options), "Toy-v0", TASKS[:1], max_turns=1)
        without = policy(server.url, local, logprobs=False, **options)
        [trajectory] = rollout(without, "Toy-v0", TASKS[:1], max_turns=1)
    assert trajectory.has_tokens
    assert trajectory.turns[0].logprobs is None


def test_no_mode_reports_logprobs_before_top_p_at_a_temperature() -> None:
    with pytest.raises(ConfigError, match=r"temperature=0.5 before top_p=0.9.*logprobs=False"):
        VllmPolicy("m", tiny_policy().tokenizer, base_url="http://127.0.0.1:9/v1", temperature=0.5, top_p=0.9)


def change(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda reply: reply["choices"][0].update(fields)


def reporting(logprob: float) -> Callable[[dict[str, Any]], None]:
    """Every token with this log-probability."""

    def tamper(reply: dict[str, Any]) -> None:
        [choice] = reply["choices"]
        choice["logprobs"]["token_logprobs"] = [logprob] * len(choice["token_ids"])

    return tamper


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (change(token_ids=None), r"vLLM 0\.10\.2 or newer.*openai:MODEL"),
        (change(prompt_token_ids=None), r"vLLM 0\.10\.2 or newer"),
        (change(prompt_token_ids=[1, 2]), r"saw other tokens than it was sent \(2 instead"),
        (change(logprobs=None), "one log-probability per token"),
        (change(logprobs={"token_logprobs": [-1.0]}), "one log-probability per token"),
        (reporting(float("nan")), "one log-probability per token"),
        (reporting(7.5), "one log-probability per token"),
    ],
    ids=["no ids", "no prompt ids", "cut prompt", "no logprobs", "few logprobs", "nan", "logits"],
)
def test_a_server_that_does_not_report_what_is_recorded_is_refused(
    local: LanguageModelPolicy, tamper: Callable[[dict[str, Any]], None], message: str
) -> None:
    with serving(ServedModel(local, change=tamper)) as server, pytest.raises(PolicyFailureError, match=message):
        rollout(policy(server.url, local), "Toy-v0", TASKS[:1])


@pytest.mark.parametrize("foreign", [-1, 10**6, 10**30])
def test_tokens_of_another_vocabulary_are_not_recorded(local: LanguageModelPolicy, foreign: int) -> None:
    """Of a tokenizer that is not the served model's: they would be played as no text, and be trained on."""

    def tamper(reply: dict[str, Any]) -> None:
        reply["choices"][0]["token_ids"][0] = foreign

    with serving(ServedModel(local, change=tamper)) as server:
        [trajectory] = rollout(policy(server.url, local), "Toy-v0", TASKS[:1])
        assert (trajectory.stop_reason, trajectory.turns) == (StopReason.POLICY_ERROR, [])
        assert "is it the served model's?" in (trajectory.error or "")
        with pytest.raises(PolicyFailureError, match="tokenizer="):
            rollout(policy(server.url, local, max_failures=3), "Toy-v0", TASKS)


def test_a_response_that_was_broken_off_is_asked_for_again(local: LanguageModelPolicy) -> None:
    """An engine that is shut down says "abort": half a response must not become a turn."""
    with serving(ServedModel(local, change=change(finish_reason="abort"))) as server:
        [trajectory] = rollout(policy(server.url, local), "Toy-v0", TASKS[:1])
    assert trajectory.stop_reason is StopReason.POLICY_ERROR
    assert "(abort) (attempts: 2)" in (trajectory.error or "")
    assert trajectory.turns == []
    assert trajectory.sequences == []


def test_context_is_what_the_server_allows(local: LanguageModelPolicy) -> None:
    with serving(ServedModel(local, max_model_len=100)) as server:
        remote = policy(server.url, local)
        assert remote.max_context == 100
        played = rollout(remote, "Toy-v0", TASKS[:2])
        for options in ({"max_context": 101}, {"max_new_tokens": 100}):
            with pytest.raises(ConfigError, match="100"):
                policy(server.url, local, **options)
    assert all(t.stop_reason is StopReason.TOKEN_BUDGET for t in played)
    assert all(len(t.sequences[0]) <= 100 for t in played)


def test_saved_policy_is_served_by_its_folder(
    local: LanguageModelPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`vllm serve RUN/sft/policy`: its prompt format and lengths are in the folder, and have not to be told again."""
    folder = tmp_path / "policy"
    local.save(folder)
    with serving(ServedModel(local, name=str(folder), root=str(folder))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        found = load_policy(f"vllm:{folder}", temperature=0.0)
        assert isinstance(found, VllmPolicy)
        assert (found.name, found.format, found.max_new_tokens) == (local.name, local.format, 8)
    with serving(ServedModel(local, name="short", root=str(folder))) as server:
        other = load_policy("vllm:short", base_url=server.url, max_context=64)
        assert isinstance(other, VllmPolicy)
        assert other.max_context == 64
        assert other.fingerprint != found.fingerprint
    nowhere = ServedModel(local, name="short", root=str(tmp_path))
    with serving(nowhere) as server, pytest.raises(DataError, match="holds no tokenizer"):
        load_policy("vllm:short", base_url=server.url)


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (Reply({"data": [{"id": "other", "max_model_len": 9}]}), ConfigError, "serves other, not 'toy/tiny'"),
        (Reply({"data": [{"id": "toy/tiny"}]}), ConfigError, "no vLLM server.*openai:toy/tiny"),
        (Reply({"models": []}), PolicyFailureError, "lists no models"),
        (Reply(status=401), PolicyFailureError, "OPENAI_API_KEY"),
    ],
)
def test_a_server_that_is_none_is_noticed_at_once(
    local: LanguageModelPolicy, reply: Reply, error: type[AgentGymError], message: str
) -> None:
    with serving(in_turn(reply)) as server, pytest.raises(error, match=message):
        policy(server.url, local)


def test_turns_after_a_failure_are_not_half_recorded(local: LanguageModelPolicy) -> None:
    """The tokens of an episode that breaks down in its third turn are those of its first two."""
    served = ServedModel(local)
    asked = iter(range(1000))

    def dies(request: Any) -> Reply:
        late = request.path == "/v1/completions" and next(asked) >= 2
        return Reply(status=500) if late else served(request)

    with serving(dies) as server:
        [broken] = rollout(policy(server.url, local, temperature=0.0), "Toy-v0", TASKS[:1])
    with serving(served) as server:
        [whole] = rollout(policy(server.url, local, temperature=0.0), "Toy-v0", TASKS[:1], max_turns=2)
    assert broken.stop_reason is StopReason.POLICY_ERROR
    assert broken.sequences == whole.sequences
    assert broken.turns == [replace(turn, reward=0.0) for turn in whole.turns]
