"""A model behind a chat completions server: the wire, the prompts, and that its failures are nobody's zero."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_tlm.batch import select_trainable
from agentgym_tlm.errors import ConfigError, DependencyError, PolicyFailureError
from agentgym_tlm.evaluate import EvalResult, results_table
from agentgym_tlm.pairs import unusable_reason
from agentgym_tlm.policies import load_language_model, load_policy
from agentgym_tlm.policies.base import Conversation, Policy
from agentgym_tlm.policies.chat_api import ChatApiPolicy
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.prompt import DEFAULT_INSTRUCTIONS, TagsFormat
from agentgym_tlm.rollout import logged_rollout, rollout
from agentgym_tlm.trajectory import FinishReason, StopReason, TrajectoryWriter, read_trajectories
from tests.policies.model_server import Asked, Reply, chat, chat_expert, in_turn, serving
from tests.toy_env import ToyEnv

TASKS = tuple(ToyEnv().manifest)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def policy(url: str, **options: Any) -> ChatApiPolicy:
    return ChatApiPolicy("toy", base_url=url, **{"backoff": 0.01, "max_retries": 1, "timeout": 5.0, **options})


def conversation(observations: Sequence[str] = ("You see a lamp.",), responses: Sequence[str] = ()) -> Conversation:
    return Conversation(
        "Toy-v0", "t", "bring it", np.random.default_rng(0), observations=list(observations), responses=list(responses)
    )


def test_plays_as_well_as_what_is_behind_the_server() -> None:
    """Every turn reaches the model as the conversation so far: the expert behind it wins as it does itself."""
    with serving(chat_expert) as server:
        played = rollout(policy(server.url), "Toy-v0", n_slots=3)
    expert = rollout(ExpertPolicy(), "Toy-v0")
    assert all(trajectory.won for trajectory in played)
    for trajectory, same in zip(played, expert, strict=True):
        assert [turn.action for turn in trajectory.turns] == [turn.action for turn in same.turns]
        assert all(turn.span is None and turn.trainable for turn in trajectory.turns)


def test_request_is_the_chat_so_far_with_the_options() -> None:
    responses = ["Thought: a\nAction: look"]
    with serving(in_turn(chat("Action: wait"))) as server:
        playing = policy(server.url, temperature=0.5, top_p=0.9, max_new_tokens=77)
        playing.act([conversation(["You see a lamp.", " Nothing happens. "], responses)])
        [asked] = server.asked
    assert asked.path == "/v1/chat/completions"
    first, second, third = asked.body.pop("messages")
    assert first["content"] == f"{DEFAULT_INSTRUCTIONS}\n\nYou see a lamp.\n\nYour task is to: bring it"
    assert second == {"role": "assistant", "content": responses[0]}
    assert third == {"role": "user", "content": "Nothing happens."}
    seed = asked.body.pop("seed")
    assert 0 <= seed < 2**31
    assert asked.body == {
        **{"model": "toy", "temperature": 0.5, "top_p": 0.9, "max_tokens": 77},
        "stop": ["\nObservation:"],
    }


def test_windowed_format_is_one_message_a_turn() -> None:
    """The protocol of GiGPO has no chat: every prompt tells the last turns and what can be done now."""
    format = TagsFormat(history_length=1)
    with serving(in_turn(chat("<think>so</think><action>look</action>"))) as server:
        [trajectory] = rollout(policy(server.url, format=format), "Toy-v0", TASKS[:1], max_turns=3)
        asked = [request.body["messages"] for request in server.asked]
    assert [turn.action for turn in trajectory.turns] == ["look"] * 3
    assert all(turn.well_formed and turn.action_valid for turn in trajectory.turns)
    assert [len(messages) for messages in asked] == [1, 1, 1]
    last = asked[2][0]["content"]
    assert "Step: 3" in last
    assert "Action 2: look" in last
    assert "Action 1" not in last
    assert "go to study" in last


def test_fields_can_be_renamed_left_out_and_added() -> None:
    """Servers differ in small things, and a new model in the name of an option must not need a new release."""
    extra = {"max_tokens": None, "max_completion_tokens": 9, "seed": None, "stop": None, "user": "me"}
    with serving(in_turn(chat("Action: wait"))) as server:
        policy(server.url, extra_body=extra).act([conversation()])
        body = server.asked[0].body
    assert body.keys() == {"model", "messages", "temperature", "top_p", "max_completion_tokens", "user"}


def test_seeds_are_the_episodes_own() -> None:
    """Whatever else is played beside it, and however often the server was asked: same seed, same request."""

    def seeds(**options: Any) -> set[int]:
        with serving(lambda asked: chat("Action: look")) as server:
            rollout(policy(server.url), "Toy-v0", max_turns=2, **options)
            assert len({asked.body["seed"] for asked in server.asked}) == len(server.asked)
            return {asked.body["seed"] for asked in server.asked}

    alone = seeds(tasks=TASKS[:1], n_slots=1)
    together = seeds(n_slots=4)
    assert len(together) == 2 * len(TASKS)
    assert alone < together
    assert not alone & seeds(tasks=TASKS[:1], seed=1)


@pytest.mark.parametrize(
    ("reply", "text", "reason"),
    [
        (chat(" Action: look\n"), "Action: look", FinishReason.STOP),
        (chat("Thought: so", "length"), "Thought: so", FinishReason.LENGTH),
        (chat(None, "length"), "", FinishReason.LENGTH),
        (chat(None, refusal="I would rather not."), "I would rather not.", FinishReason.STOP),
    ],
    ids=["stop", "length", "all thought", "refusal"],
)
def test_answers_become_generations(reply: Reply, text: str, reason: FinishReason) -> None:
    with serving(in_turn(reply)) as server:
        [generation] = policy(server.url).act([conversation()])
    assert (generation.text, generation.finish_reason, generation.token_ids) == (text, reason, None)


@pytest.mark.parametrize(
    "broken", [{"choices": []}, {"id": 1}, {"choices": [{"text": "x"}]}, {"choices": [{"message": {"content": 7}}]}]
)
def test_malformed_answers_are_asked_for_again(broken: dict[str, Any]) -> None:
    with serving(in_turn(Reply(broken), chat("Action: look"))) as server:
        [generation] = policy(server.url).act([conversation()])
        assert generation.text == "Action: look"
    with serving(in_turn(chat("Action: look"), Reply(broken))) as server:
        playing = policy(server.url)
        playing.act([conversation()])
        [generation] = playing.act([conversation()])
        assert generation.error is not None
        assert "the server's answer has no" in generation.error


def test_half_a_character_does_not_end_the_rollout() -> None:
    """A response that was cut off within an emoji is part of every later request, and UTF-8 has no half ones."""
    half, whole = chat("Thought: \ud83d\nAction: look"), chat("Thought: \ud83d\ude00\nAction: look")
    with serving(in_turn(half, whole)) as server:
        [trajectory] = rollout(policy(server.url), "Toy-v0", TASKS[:1], max_turns=2)
        assert server.asked[1].body["messages"][1]["content"] == "Thought: \ufffd\nAction: look"
    assert [turn.response for turn in trajectory.turns] == [
        "Thought: \ufffd\nAction: look",
        "Thought: \U0001f600\nAction: look",
    ]


def test_what_the_server_counts_is_recorded() -> None:
    with serving(chat_expert) as server:
        [trajectory] = rollout(policy(server.url), "Toy-v0", TASKS[:1])
    turns = len(trajectory.turns)
    assert trajectory.metadata["usage"] == {"prompt_tokens": 100 * turns, "completion_tokens": 7 * turns}
    assert trajectory.metadata["model"] == "toy-2026-11-30"


def breaks_down_in(task: str) -> Any:
    """The expert, which fails with 500 on the second turn of ``task``."""
    goal = task.rpartition("-")[2]

    def answer(asked: Asked) -> Reply:
        messages = asked.body["messages"]
        broken = len(messages) == 3 and f"lamp to the {goal}" in messages[0]["content"]
        return Reply({"error": {"message": "down"}}, status=500) if broken else chat_expert(asked)

    return answer


def test_a_failed_request_is_no_zero_and_loses_no_other_episode(tmp_path: Path) -> None:
    """It is told apart, counted apart, never trained on, and played again when the rollout is gone on with."""
    log = tmp_path / "log.jsonl"
    tasks = ["lamp-hall-cellar", "lamp-cellar-hall", "lamp-study-hall"]
    with serving(breaks_down_in("x-x-cellar")) as server:
        played = logged_rollout(log, policy(server.url), "Toy-v0", tasks, n_slots=3)
        assert [t.stop_reason.value for t in played] == ["policy_error", "won", "won"]
        failed = played[0]
        assert len(failed.turns) == 1
        assert "answers 500: down" in (failed.error or "")
        assert not failed.won
        assert unusable_reason(failed) == "policy_error"
        assert select_trainable([failed])[1] == {"policy_error": 1}
        result = EvalResult.of(played)
        assert (result.success.n, result.success.successes, result.policy_errors, result.env_errors) == (2, 2, 1, 0)
        assert "policy\nerrors" in [column.header for column in results_table([result]).columns]
        assert EvalResult.from_dict(result.to_dict()) == result
        server.answer = chat_expert
        before = len(server.asked)
        again = logged_rollout(log, policy(server.url), "Toy-v0", tasks, n_slots=3)
        assert [t.stop_reason for t in again] == [StopReason.WON] * 3
        assert again[1:] == played[1:]
        assert len(server.asked) - before == len(again[0].turns), "finished episodes are not paid for twice"


def test_a_server_that_has_died_ends_the_rollout_and_keeps_what_is_done(tmp_path: Path) -> None:
    log, counted = tmp_path / "log.jsonl", iter(range(10_000))

    def dies(asked: Asked) -> Reply:
        return chat_expert(asked) if next(counted) < 12 else Reply(status=503)

    with serving(dies) as server:
        with pytest.raises(PolicyFailureError, match="no answer to 2 requests in a row"):
            logged_rollout(log, policy(server.url, max_failures=2), "Toy-v0", n_slots=2)
        kept = list(read_trajectories(log))
        assert kept
        assert all(t.stop_reason is StopReason.WON for t in kept)
        server.answer = chat_expert
        whole = logged_rollout(log, policy(server.url), "Toy-v0", n_slots=2)
        assert whole == rollout(policy(server.url), "Toy-v0", n_slots=2)


def test_context_overflow_is_the_episodes_budget() -> None:
    error = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    with serving(in_turn(chat("Action: look"), Reply(error, status=400))) as server:
        [trajectory] = rollout(policy(server.url), "Toy-v0", TASKS[:1])
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert len(trajectory.turns) == 1


def test_what_the_servers_filter_withholds_is_no_answer() -> None:
    with serving(in_turn(chat("", "content_filter"))) as server:
        [trajectory] = rollout(policy(server.url), "Toy-v0", TASKS[:1])
        assert len(server.asked) == 1
    assert trajectory.stop_reason is StopReason.POLICY_ERROR
    assert "content_filter" in (trajectory.error or "")


def test_log_of_another_server_is_not_gone_on_with(tmp_path: Path) -> None:
    """One model name on two servers may be two models."""
    log = tmp_path / "log.jsonl"
    with serving(chat_expert) as server, serving(chat_expert) as other:
        logged_rollout(log, policy(server.url), "Toy-v0", TASKS[:1])
        with pytest.raises(ConfigError, match="policy weights"):
            logged_rollout(log, policy(other.url), "Toy-v0", TASKS[:1])


def test_key_is_in_no_log(tmp_path: Path) -> None:
    with serving(breaks_down_in("x-x-cellar")) as server, TrajectoryWriter(tmp_path / "log.jsonl") as writer:
        rollout(policy(server.url), "Toy-v0", writer=writer)
    assert "sk-secret" not in (tmp_path / "log.jsonl").read_text()


def test_is_found_by_name_and_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    found = load_policy("openai:org/model:free", timeout=3)
    assert isinstance(found, ChatApiPolicy)
    assert isinstance(found, Policy)
    assert (found.model, found.name) == ("org/model:free", "openai:org/model:free")
    assert found.server.base_url == "http://127.0.0.1:9/v1"
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY"):
        load_policy("openai:model")


def test_one_text_to_stop_at_is_not_taken_for_its_letters() -> None:
    """As --policy-kwargs stop=END gives it."""
    with serving(chat_expert) as server:
        for stop, sent in (("END", ["END"]), (["A", "B"], ["A", "B"]), (None, None)):
            policy(server.url, stop=stop).act([conversation()])
            assert server.asked[-1].body.get("stop") == sent


def test_missing_extra_is_answered_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("http", "chat_api"):
        monkeypatch.delitem(sys.modules, f"agentgym_tlm.policies.{module}")
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(DependencyError, match=r"pip install 'agentgym-tlm\[remote\]'"):
        load_policy("openai:m")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("openai:", {}, "openai:MODEL"),
        ("openai", {}, "openai:MODEL"),
        ("openai:m", {"colour": 1}, r"no option colour; there are base_url,.* timeout"),
        ("openai:m", {"temperature": -1}, "temperature"),
        ("openai:m", {"timeout": "soon"}, "timeout"),
        ("openai:m", {"timeout": None}, "timeout must be a number, not None"),
        ("openai:m", {"concurrency": None}, "concurrency must be a whole number, not None"),
        ("openai:m", {"stop": 5}, "stop must be a text or a list of texts, not 5"),
        ("openai:m", {"extra_body": "top_k"}, "extra_body must hold fields"),
        ("openai:m", {"extra_body": {"top_k": float("nan")}}, "extra_body.* cannot be sent as JSON"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_policy(name, **options)


@pytest.mark.parametrize("name", ["openai:m", "vllm:m"])
def test_a_trainer_refuses_a_model_behind_a_server(name: str) -> None:
    """Before it looks for the server: there is nothing to train there."""
    with pytest.raises(ConfigError, match="not a language model: there is nothing to train"):
        load_language_model(name)
