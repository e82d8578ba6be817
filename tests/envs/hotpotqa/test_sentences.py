"""Where sentences end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.hotpotqa.sentences import split_sentences


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One ends. Two ends! Three?", ["One ends.", " Two ends!", " Three?"]),
        (
            "The U.S. Navy made Gen. A. B. Lind a major. He left.",
            ["The U.S. Navy made Gen. A. B. Lind a major.", " He left."],
        ),
        ('She said "No." Then she left.', ['She said "No."', " Then she left."]),
        ("It cost 1.5 million. 3 paid.", ["It cost 1.5 million.", " 3 paid."]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_sentences(paragraph: str, sentences: list[str]) -> None:
    """ReAct cuts after "U.S." and "Gen.", so that five sentences are three."""
    assert list(split_sentences(paragraph)) == sentences


@settings(max_examples=60)
@given(text=st.text(alphabet="ab.!? A\n\"'", max_size=60))
def test_nothing_is_lost(text: str) -> None:
    """Joined, the sentences are the paragraph."""
    assert "".join(split_sentences(text)) == text
