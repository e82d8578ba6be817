"""The renderer: ids that are trained on must be the ids that were sampled, in the model's own template."""

from __future__ import annotations

import copy

import pytest
from transformers import PreTrainedTokenizerBase

from agentgym_tlm.errors import TemplateError, TrajectoryError
from agentgym_tlm.prompt import ReactFormat
from agentgym_tlm.renderer import CHATML, Renderer
from agentgym_tlm.trajectory import Trajectory
from tests.chat_tokenizers import LLAMA2_LIKE, LLAMA2_PREFIX, NO_END, NO_THINKING, QWEN3_LIKE, chat_tokenizer
from tests.toy_env import expert_trajectories, tiny_policy

PLAIN = ReactFormat(instructions="")


def tokenizers() -> list[PreTrainedTokenizerBase]:
    return [chat_tokenizer(CHATML), tiny_policy().tokenizer]


def _messages(trajectory: Trajectory, turns: int) -> list[dict[str, str]]:
    messages = []
    for i, turn in enumerate(trajectory.turns[:turns]):
        first = PLAIN.first_message(trajectory.instruction, turn.observation)
        messages.append({"role": "user", "content": first if i == 0 else PLAIN.observation_message(turn.observation)})
        messages.append({"role": "assistant", "content": turn.response})
    return messages


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=["chatml", "tiny"])
def test_ids_are_those_of_the_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """A model must see exactly the conversation format that it was trained on."""
    renderer = Renderer(tokenizer, PLAIN)
    for trajectory in expert_trajectories():
        ids = renderer.encode_trajectory(trajectory).sequences[0]
        expected = tokenizer.apply_chat_template(_messages(trajectory, len(trajectory.turns)), return_dict=False)
        assert isinstance(expected, list)
        assert ids + renderer._separator_ids == expected


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=["chatml", "tiny"])
def test_encoding_equals_a_live_conversation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Expert episodes (SFT) and sampled ones (alignment) must not differ in a single token of format."""
    renderer = Renderer(tokenizer, PLAIN)
    trajectory = expert_trajectories()[0]
    encoded = renderer.encode_trajectory(trajectory)
    observations = [turn.observation for turn in trajectory.turns]
    ids: list[int] = []
    for i, turn in enumerate(encoded.turns):
        ids += renderer.prompt(trajectory.instruction, observations, i)
        assert turn.span is not None
        assert turn.span[0] == len(ids), "a response begins where the generation prompt ends"
        ids += renderer.response(turn.response)
        assert turn.span[1] == len(ids)
        assert encoded.response_ids(turn)[-1] == renderer.end_of_turn_id, "the end of turn has to be learnt"
        assert tokenizer.decode(encoded.response_ids(turn)[:-1]) == turn.response
    assert encoded.sequences == [ids]
    assert encoded.prompt_format == "react"
    assert encoded.has_tokens


def test_what_follows_the_end_of_turn_belongs_to_the_next_observation() -> None:
    """ChatML's line break after <|im_end|> is never sampled: it must not be in a span, and must not be lost."""
    tokenizer = chat_tokenizer(CHATML)
    renderer = Renderer(tokenizer, PLAIN)
    assert tokenizer.decode(renderer.response("Action: look")) == "Action: look<|im_end|>"
    assert (
        tokenizer.decode(renderer.next_prompt("A lamp."))
        == "\n<|im_start|>user\nA lamp.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_refuses_to_tokenise_twice() -> None:
    renderer = Renderer(chat_tokenizer(CHATML), PLAIN)
    encoded = renderer.encode_trajectory(expert_trajectories()[0])
    with pytest.raises(ValueError, match="already has tokens"):
        renderer.encode_trajectory(encoded)


def test_encoding_leaves_the_original_alone() -> None:
    trajectory = copy.deepcopy(expert_trajectories()[0])
    Renderer(chat_tokenizer(CHATML), PLAIN).encode_trajectory(trajectory)
    assert trajectory == expert_trajectories()[0]


def test_special_tokens_in_an_observation_stay_text() -> None:
    """A page or an echo that contains <|im_end|> must not end the user's message."""
    tokenizer = chat_tokenizer(CHATML)
    renderer = Renderer(tokenizer, PLAIN)
    ids = renderer.next_prompt("It reads <|im_end|>.")
    assert ids.count(renderer.end_of_turn_id) == 1
    assert "It reads <|im_end|>." in tokenizer.decode(ids)


def test_the_closing_includes_what_the_template_puts_before_the_end_of_turn() -> None:
    tokenizer = chat_tokenizer(LLAMA2_PREFIX)
    renderer = Renderer(tokenizer, PLAIN)
    assert tokenizer.decode(renderer.response("Action: look")) == "Action: look </s>"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "has no chat template"),
        (QWEN3_LIKE, "not prefix-preserving.*<think>"),
        (NO_THINKING, "generation prompt is not what it puts before"),
        (LLAMA2_LIKE, "generation prompt is not what it puts before"),
        (NO_END, "no special token after an assistant message"),
        (CHATML.replace("message['content']", "message['content'] | upper"), "does not show a user message"),
    ],
)
def test_refuses_templates_that_cannot_be_appended_to(template: str | None, problem: str) -> None:
    """Training on ids that the template would have rendered differently is silent damage; refusing is not."""
    with pytest.raises(TemplateError, match=problem) as caught:
        Renderer(chat_tokenizer(template), PLAIN)
    assert "CHATML" in str(caught.value), "the error has to say what to do"


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=["chatml", "tiny"])
def test_reprompting_changes_the_first_prompt_and_no_other_token(tokenizer: PreTrainedTokenizerBase) -> None:
    """What was sampled is what is trained on, even where its text would be tokenised differently."""
    renderer = Renderer(tokenizer, PLAIN)
    for trajectory in expert_trajectories()[:6]:
        encoded = renderer.encode_trajectory(trajectory)
        (ids,) = encoded.sequences
        for turn in encoded.turns:
            assert turn.span is not None
            middle = turn.span[0] + 1
            ids[middle : turn.span[1] - 1] = ids[middle : turn.span[1] - 1][::-1]  # ids that no text encodes to
        encoded.turns[0].logprobs = [0.0] * len(encoded.response_ids(encoded.turns[0]))
        before = copy.deepcopy(encoded)
        marked = renderer.decorated(suffix="A successful attempt:").reprompt(encoded)
        assert encoded == before
        assert [marked.response_ids(turn) for turn in marked.turns] == [encoded.response_ids(t) for t in encoded.turns]
        assert marked.turns[0].span is not None
        assert encoded.turns[0].span is not None
        start, old = marked.turns[0].span[0], encoded.turns[0].span[0]
        assert marked.sequences[0][start:] == ids[old:]
        assert tokenizer.decode(marked.sequences[0][:start]) == tokenizer.decode(ids[:old]).replace(  # type: ignore[union-attr]
            trajectory.turns[0].observation, f"{trajectory.turns[0].observation}\n\nA successful attempt:"
        )
        assert marked.turns[0].logprobs is None  # they were those given another prompt
        assert renderer.decorated().reprompt(marked).sequences == encoded.sequences


def test_an_episode_after_another_begins_a_new_message() -> None:
    """Also where the first was cut off before its end of turn; the instructions are not said twice."""
    tokenizer = chat_tokenizer(CHATML)
    renderer = Renderer(tokenizer, ReactFormat(instructions="Play."))
    first, second = (renderer.encode_trajectory(t) for t in expert_trajectories()[:2])
    whole = renderer.reprompt(second, after=first)
    cut = copy.deepcopy(first)
    assert cut.turns[-1].span is not None
    cut.sequences[0].pop()
    cut.turns[-1].span = (cut.turns[-1].span[0], cut.turns[-1].span[1] - 1)
    assert renderer.reprompt(second, after=cut).sequences == whole.sequences
    (ids,) = whole.sequences
    assert ids[: len(first.sequences[0])] == first.sequences[0]
    turn = whole.turns[len(first.turns)]
    assert turn.span is not None
    assert tokenizer.decode(ids[len(first.sequences[0]) : turn.span[0]]) == (
        f"\n<|im_start|>user\n{second.turns[0].observation}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [whole.response_ids(t) for t in whole.turns] == [t.response_ids(u) for t in (first, second) for u in t.turns]


def test_what_has_no_single_sequence_cannot_get_another_prompt() -> None:
    renderer = Renderer(chat_tokenizer(CHATML), PLAIN)
    with pytest.raises(TrajectoryError, match="cannot get another prompt"):
        renderer.reprompt(expert_trajectories()[0])
    windowed = renderer.encode_trajectory(expert_trajectories()[0])
    windowed.sequences = [*windowed.sequences, [1, 2]]
    with pytest.raises(TrajectoryError, match="more than one sequence"):
        renderer.reprompt(windowed)
