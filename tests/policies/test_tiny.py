"""tiny: a tokenizer that gives texts back as they were, and a model that is the same from the same seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.tiny import TINY_FORMAT, build_tiny, build_tokenizer, tokenizer_texts
from tests.toy_env import expert_trajectories

TEXTS = [*tokenizer_texts(expert_trajectories()), "On the shelf 1, you see a mug 12, and a tv's remote (on)."]
TOKENIZER = build_tokenizer(TEXTS)


def _round_trip(text: str) -> str:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    decoded = TOKENIZER.decode(ids)
    assert isinstance(decoded, str)
    return decoded


def test_gives_every_text_back() -> None:
    """A response that decodes differently from what was encoded is a different action."""
    for text in TEXTS:
        assert _round_trip(text) == text


@given(st.lists(st.sampled_from(["a lamp", "mug 7", "shelf 10", "the study", "door"]), min_size=1, max_size=4))
def test_gives_composed_responses_back(words: list[str]) -> None:
    response = TINY_FORMAT.compose("I go on to " + " ".join(words) + ".", "go to " + " ".join(words))
    assert _round_trip(response) == response


def test_a_word_is_the_same_piece_after_a_bracket_as_after_a_space() -> None:
    """Copying a name from a text into an action would otherwise have to be learnt anew for every word."""
    texts = ["I search the 12 The Grey Widow.", "Action: Search[The Grey Widow]", "Finish[12]", "['no'] [] [ [the] ["]
    tokenizer = build_tokenizer(texts)
    for text in texts:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert tokenizer.tokenize("Search[The Grey]")[-4:-1] == ["\ue000", *tokenizer.tokenize(" The Grey")]
    assert tokenizer.decode(tokenizer.convert_tokens_to_ids(["\ue000", "Action"])) == "[Action"


def test_numbers_are_spelled_in_digits() -> None:
    """So that a number never seen in training can be read and written."""
    assert TOKENIZER.tokenize("You lamp 1203") == ["You", " lamp", " 1", "2", "0", "3"]


def test_unknown_words_are_unknown_not_errors() -> None:
    assert _round_trip("the zebra") == "<unk><unk>"


def test_the_vocabulary_does_not_depend_on_the_order_of_the_texts() -> None:
    assert build_tokenizer(reversed(TEXTS)).get_vocab() == TOKENIZER.get_vocab()


def test_each_boundary_of_the_template_is_one_token() -> None:
    message = {"role": "user", "content": "You lamp"}
    text = TOKENIZER.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    assert TOKENIZER.tokenize(text) == ["<|user|>", "You", " lamp", "<|end|>", "<|assistant|>"]


def test_the_seed_decides_the_weights_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (build_tiny(TEXTS, hidden_size=16, layers=1, heads=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    weights = [next(policy.model.parameters()) for policy in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert weights[0].dtype == torch.float32


def test_needs_texts() -> None:
    with pytest.raises(ConfigError, match="needs texts"):
        build_tiny([])
