"""The react format: what a model writes has to reach the environment as the action that it meant, or as none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tlm.prompt import MAX_ACTION_CHARS, ParsedResponse, ReactFormat

FORMAT = ReactFormat()


@pytest.mark.parametrize(
    ("response", "thought", "action"),
    [
        ("Thought: I need a mug.\nAction: go to desk 1", "I need a mug.", "go to desk 1"),
        ("Action: look", "", "look"),
        ("thought 2: hm\naction 2: look", "hm", "look"),
        ("Thought: a\nAction: go to desk 1\nObservation: You are there.\nAction: open desk 1", "a", "go to desk 1"),
        ("Action: go to desk 1\nAction: open drawer 1", "", "go to desk 1"),
        ("Thought: I go. Action: go to desk 1", "I go.", "go to desk 1"),
        ("Action: go to desk 1 Observation: You arrive", "", "go to desk 1"),
        ("Thought: first\n\nThought: second\nAction: look", "first\n\nThought: second", "look"),
        ("go to desk 1", "", "go to desk 1"),
        ("  go to desk 1.\n", "", "go to desk 1"),
        ("<|im_start|>assistant\nThought: x\nAction: look<|im_end|>", "x", "look"),
        ("1. Thought: x\n2. Action: look", "x", "look"),
        ("1. Action: look", "", "look"),
        ("### Thought\nI go.\n\n### Action\ngo to desk 1", "I go.", "go to desk 1"),
        ("<thought>I go.</thought>\n<action>go to desk 1</action>", "I go.", "go to desk 1"),
        ("My next action is: look", "", "look"),
        ("I think that my action is: look", "I think that my", "look"),
    ],
)
def test_takes_a_response_apart(response: str, thought: str, action: str) -> None:
    assert FORMAT.parse(response) == ParsedResponse(thought, action)


@pytest.mark.parametrize(
    "response",
    [
        "Action: `go to desk 1`",
        "Action: go to desk 1.",
        'Action: "go to desk 1"',
        "Action: 'go to desk 1'.",
        "**Action:** go to desk 1",
        "**Action: go to desk 1**",
        "*Action*: **go to desk 1**",
        "### Action: go to desk 1",
        "- Action : go to desk 1",
        "ACTION 3: go to desk 1",
        "Action:\ngo to desk 1",
        "Action:\n```\ngo to desk 1\n```",
        "Action: ```go to desk 1```",
        "Action:   go  to\tdesk 1  ",
        "\x00Action: go to\x00desk 1\x00",
        "Action: go to desk 1<|im_end|>\n<|im_start|>user\nAction: look",
        "Action: go to desk 1</s>",
        "<think>\nAction: look?\n</think>\n\nAction: go to desk 1",
        "Action: go to desk 1\r\n",
        "<|start_header_id|>assistant<|end_header_id|>\n\nAction: go to desk 1<|eot_id|>",
        "<s> <|assistant|>go to desk 1",
        "<start_of_turn>model\nAction: go to desk 1<end_of_turn>",
        "Action: go to desk 1\n<|im_start|>user\nWhat now?",
        "Action: go to desk 1[/INST]",
        "Action: go to desk 1\n</think>",
        "Action\uff1ago to desk 1",
        "### Action\ngo to desk 1",
        "**Action**\n\ngo to desk 1",
        "Action\nAction: go to desk 1",
        "<action>go to desk 1</action>",
        "<ACTION>\ngo to desk 1\n</ACTION>",
        "Action: <action>go to desk 1</action>",
        "Action: [go to desk 1]",
        "Action: [`go to desk 1`].",
        "Actions: go to desk 1",
        "My action is: go to desk 1",
        "The action: go to desk 1",
        "Action#1: go to desk 1",
        "Action #1: go to desk 1",
    ],
)
def test_reads_the_action_through_decoration(response: str) -> None:
    assert FORMAT.parse(response).action == "go to desk 1"


@pytest.mark.parametrize(
    "response",
    [
        "",
        "   \n ",
        "Thought: I only think",
        "I am a language model.\nI cannot act.",
        "Action:",
        "Action: .",
        "Action:\nThought: later",
        "### Action\n### Thought\nlater",
        "<think>\nAction: look?\n</think>",
        "<|im_end|>Action: look",
        "Action: []",
        "Action: ``",
        "x" * (MAX_ACTION_CHARS + 1),
        "Action: " + "go " * MAX_ACTION_CHARS,
    ],
)
def test_an_unparsable_response_has_no_action(response: str) -> None:
    assert FORMAT.parse(response).action is None


@pytest.mark.parametrize(
    "action", ["finish[U.S.]", 'search["x"]', "take tv's remote from sofa 1", "use a_b", "Search[Foo]", "[a] or [b]"]
)
def test_leaves_punctuation_inside_an_action_alone(action: str) -> None:
    assert FORMAT.parse(f"Action: {action}").action == action


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        "\n",
        "\x00",
        "*",
        "_",
        "`",
        "'",
        "Action",
        "Action:",
        "Action: ",
        "Thought:",
        "<|",
        "```\n",
        "Action \n",
        "[",
        "[/INST]",
        "<s>",
        "<|im_start|>assistant\n",
        "<action>",
        "</think>",
        "my next ",
        "1. ",
        "### Action\n",
    ],
)
def test_time_is_linear_in_the_response(unit: str) -> None:
    """A runaway response of 100,000 characters must not stall the rollout (a quadratic match takes minutes)."""
    for prefix in ("", "Action:", "Action: ", "Thought: x\n"):
        start = time.process_time()
        FORMAT.parse(prefix + unit * (100_000 // len(unit)))
        assert time.process_time() - start < 5


@given(st.text())
def test_never_raises_and_never_returns_an_empty_action(response: str) -> None:
    action = FORMAT.parse(response).action
    assert action is None or (action == action.strip() != "" and "\n" not in action)


words = st.text("abcdefghij 0123456789", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(thought=st.one_of(st.just(""), words), action=words)
def test_composed_responses_parse_back(thought: str, action: str) -> None:
    """What the expert writes must be read as what it meant."""
    assert FORMAT.parse(FORMAT.compose(thought, action)) == ParsedResponse(thought, action)


def test_the_first_message_names_the_task_exactly_once() -> None:
    plain = ReactFormat(instructions="")
    assert plain.first_message("find a mug", "You see a desk.") == "You see a desk.\n\nYour task is to: find a mug"
    told = "You see a desk. Your task is to: find a mug"
    assert plain.first_message("find a mug", told) == told
    assert ReactFormat(instructions="Play.").first_message("find a mug", told) == f"Play.\n\n{told}"
