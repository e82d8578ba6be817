"""The tags format: GiGPO's protocol, so that its rules for what counts as an action are the ones that are applied."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tlm.errors import ConfigError, TrajectoryError
from agentgym_tlm.prompt import (
    MAX_ACTION_CHARS,
    ParsedResponse,
    ReactFormat,
    Situation,
    TagsArguments,
    TagsFormat,
    format_from_dict,
    format_to_dict,
    make_format,
)

FORMAT = TagsFormat()
SILENT = TagsFormat(thoughts=False)


@pytest.mark.parametrize(
    ("response", "parsed"),
    [
        ("<think>hm</think><action>look</action>", ("hm", "look", True)),
        ("<think>\nhm\n</think>\n<action>\nGo to  Desk 1\n</action> bye", ("hm", "go to desk 1", True)),
        ("<action>look</action><think>hm</think>", ("hm", "look", True)),
        ("<think></think><action>look</action>", ("", "look", True)),
        ("<think>a</think><action>look</action><action>help</action>", ("a", "look", True)),
        ("<THINK>a</THINK><ACTION>look</ACTION>", ("a", "look", True)),
        ("</action><think>a</think><action>look</action>", ("a", "look", True)),
        ("<action>look</action>", ("", "look", False)),
        ("<think>a<action>look</action>", ("", "look", False)),
        ("a</think><action>look</action>", ("", "look", False)),
        ("<think>a</think><action>look", ("a", None, False)),
        ("<think>a</think>look</action>", ("a", None, False)),
        ("<think>a</think><action> </action>", ("a", None, False)),
        ("Thought: a\nAction: look", ("", None, False)),
        (f"<think>a</think><action>{'go ' * MAX_ACTION_CHARS}</action>", ("a", None, False)),
        ("", ("", None, False)),
    ],
)
def test_action_and_validity(response: str, parsed: tuple[str, str | None, bool]) -> None:
    """An action in tags is carried out even where the thought is missing, but counts as invalid then."""
    assert FORMAT.parse(response) == ParsedResponse(*parsed)


def test_without_thoughts_the_action_alone_is_well_formed() -> None:
    assert SILENT.compose("hm", "look") == "<action>look</action>"
    assert SILENT.parse("<action>look</action>") == ParsedResponse("", "look", True)
    assert SILENT.parse("<action>look") == ParsedResponse("", None, False)


words = st.text("abcdefghij 0123456789.", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(thought=st.one_of(st.just(""), words), action=words)
def test_composed_responses_parse_back(thought: str, action: str) -> None:
    """What the expert writes must be read as what it meant."""
    assert FORMAT.parse(FORMAT.compose(thought, action)) == ParsedResponse(thought, action)


@given(st.text())
def test_never_raises(response: str) -> None:
    assert (FORMAT.parse(response).action is None) <= (not FORMAT.parse(response).well_formed)


@pytest.mark.parametrize("unit", ["<action>", "</action>", "<think>", "<", "<action></think>", " "])
def test_time_is_linear_in_the_response(unit: str) -> None:
    start = time.process_time()
    FORMAT.parse("<action>" + unit * (100_000 // len(unit)))
    assert time.process_time() - start < 5


def test_message_shows_task_step_window_and_commands() -> None:
    """The window holds the last two pairs only, unread responses as such, and never the command help."""
    plain = TagsFormat(instructions="")
    task = "find a mug"
    first = Situation(task, ["A room. Your task is to: find a mug"], [], ["go to desk 1", "help", "look"])
    assert plain.message(first) == (
        "Step: 1\nObservation 1: A room. Your task is to: find a mug\nCommands:\ngo to desk 1\nlook"
    )
    later = Situation(task, ["A room.", "A desk.", "A\nlamp. ", "Dark."], ["go to desk 1", None, "use lamp"], ["look"])
    assert plain.message(later) == (
        "Task: find a mug\nStep: 4\nObservation 2: A desk.\nAction 2: none\nObservation 3: A\nlamp.\n"
        "Action 3: use lamp\nObservation 4: Dark.\nCommands:\nlook"
    )
    assert TagsFormat("", history_length=0, admissible_commands=False).message(later) == (
        "Task: find a mug\nStep: 4\nObservation 4: Dark."
    )
    asked = FORMAT.message(later)
    assert plain.message(later) in asked
    assert asked.endswith("inside <think> </think>. Then give one of the commands inside <action> </action>.")
    assert "<think>" not in SILENT.message(later)


def test_an_episode_without_its_commands_is_refused() -> None:
    """An empty list in a prompt would teach that nothing is possible."""
    with pytest.raises(TrajectoryError, match="recorded without"):
        FORMAT.message(Situation("t", ["o"]))


def test_formats_are_kept_by_name() -> None:
    for format in (ReactFormat("Play.", suffix="!"), TagsFormat("", 3, thoughts=False)):
        assert format_from_dict(format_to_dict(format)) == format
    assert format_from_dict({"instructions": ""}) == ReactFormat(instructions=""), "as earlier releases wrote it"
    with pytest.raises(TypeError, match="no prompt format 'xml'"):
        format_from_dict({"name": "xml"})


def test_options_of_another_format_are_refused() -> None:
    """They would be ignored without a word."""
    assert make_format(None, TagsArguments()) is None
    assert make_format("tags", TagsArguments(history_length=1)) == TagsFormat(history_length=1)
    assert make_format("react", TagsArguments(), instructions="") == ReactFormat(instructions="")
    own = TagsFormat("Play.", history_length=3)
    assert make_format("tags", TagsArguments(), own=own) == TagsFormat("Play."), "it keeps its own instructions"
    assert make_format("react", TagsArguments(), own=own) == ReactFormat()
    for name in (None, "react"):
        with pytest.raises(ConfigError, match="--prompt-format tags"):
            make_format(name, TagsArguments(history_length=1))
    with pytest.raises(ConfigError, match="history_length"):
        TagsArguments(history_length=-1)
