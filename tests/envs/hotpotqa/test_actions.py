"""What models write, as actions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.hotpotqa.actions import MAX_ARGUMENT_CHARS, parse_action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Search[Orla Brandt]", ("search", "Orla Brandt")),
        ("search[Orla Brandt].", ("search", "Orla Brandt")),
        ("  FINISH [ yes ] and some more", ("finish", "yes")),
        ("Action 2: Lookup[bees]\nObservation: none\nAction 3: Finish[no]", ("lookup", "bees")),
        ("finish[a [b] c]", ("finish", "a [b] c")),
        ("finish[Ouse]\nQuestion: next [x]", ("finish", "Ouse")),
        ("search[a [b] and [c]", ("search", "a [b] and [c")),
        ("Finish[f[x) = [0, 1]]\nmore [x]", ("finish", "f[x) = [0, 1]")),
        ("Finish[a [b\nc]", ("finish", "a [b c")),
        ("Finish[]", ("finish", "")),
        ("Search[two\n\t lines\0]", ("search", "two lines")),
        ("think[I should Search[x]] Finish[y]", ("think", "I should Search[x]")),
    ],
)
def test_first_action_counts(text: str, action: tuple[str, str]) -> None:
    """Case, blanks, a full stop, further actions and brackets in the argument do not spoil an action."""
    assert parse_action(text) == action


def test_actions_of_another_protocol_are_text() -> None:
    """A thought in brackets hides no action where thoughts are none."""
    assert parse_action("Think[about it] search[Ouse]", ("search", "finish")) == ("search", "Ouse")
    assert parse_action("Lookup[x]", ("search", "finish")) is None


@pytest.mark.parametrize("text", ["", "   ", "foo", "search[Orla", "research[x]", "Search Orla", "[x]", "Click[x]"])
def test_everything_else_is_no_action(text: str) -> None:
    """What names no action is not guessed at."""
    assert parse_action(text) is None


def test_length_of_arguments_is_limited() -> None:
    """A runaway response is no title of a page."""
    assert parse_action(f"search[{'x' * MAX_ARGUMENT_CHARS}]") is not None
    assert parse_action(f"search[{'x' * (MAX_ARGUMENT_CHARS + 1)}]") is None


@settings(max_examples=60)
@given(
    argument=st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="[]"), max_size=50),
    before=st.text(alphabet=st.characters(exclude_characters="["), max_size=20),
)
def test_arguments_survive(argument: str, before: str) -> None:
    """An argument arrives as it was written, in whatever script, but for blanks."""
    action = parse_action(f"{before} Finish[{argument}]")
    assert action == ("finish", " ".join(argument.split()))
