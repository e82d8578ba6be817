"""The official numbers, computed by the official script."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.hotpotqa.metrics import normalize_answer, score_answer


def test_official_vectors(hotpotqa_data: Path) -> None:
    """EM and F1 that differ in one rule do not compare with any published number."""
    vectors = json.loads((hotpotqa_data / "metric_vectors.json").read_text())["answer"]
    assert len(vectors) == 50
    for vector in vectors:
        score = score_answer(vector["prediction"], vector["gold"])
        assert score == pytest.approx((vector["em"], vector["f1"], vector["precision"], vector["recall"])), vector
        assert normalize_answer(vector["prediction"]) == vector["normalized_prediction"], vector
        assert normalize_answer(vector["gold"]) == vector["normalized_gold"], vector


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "f1"),
    [
        ("The Ouse!", "ouse", True, 1.0),
        ("yes, they are", "yes", False, 0.0),
        ("no", "yes", False, 0.0),
        ("3-4", "34", True, 1.0),
        ("b a c", "c b", False, 1.0),
        ("", "The The", True, 0.0),
        ("river Ouse", "Ouse", False, 2 / 3),
    ],
)
def test_rules_by_hand(prediction: str, gold: str, em: bool, f1: float) -> None:
    """The rules that surprise, computed by hand."""
    score = score_answer(prediction, gold)
    assert score.em == em
    assert score.f1 == pytest.approx(f1)


def test_naming_everything_is_no_answer() -> None:
    """Metrics that look for the gold answer inside the prediction pay for listing all that was read."""
    assert not score_answer("Ouse or Sund or yes or no", "Ouse").em
    assert not score_answer("I do not know", "no").em


@settings(max_examples=60)
@given(text=st.text(), other=st.text())
def test_scores_are_shares(text: str, other: str) -> None:
    """Whatever a model answers, the reward stays in [0, 1] and does not depend on which side is which."""
    score, swapped = score_answer(text, other), score_answer(other, text)
    assert 0 <= score.f1 <= 1
    assert (score.em, score.precision, score.recall) == (swapped.em, swapped.recall, swapped.precision)
