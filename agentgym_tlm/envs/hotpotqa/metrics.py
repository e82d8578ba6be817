"""HotpotQA's answer metrics, value for value those of its official evaluation script (``hotpot_evaluate_v1.py``).

What follows from its rules, and stays so that numbers compare: punctuation is deleted without leaving a blank, so "3-4"
equals "34" and "1.5 million" equals "15 million"; only ASCII punctuation is, and nothing is normalised in Unicode;
articles fall away, so a gold answer such as "The The" normalises to nothing: an empty prediction matches it exactly and
yet has F1 0; and F1 can be 1 without an exact match, when only the order of words differs.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import NamedTuple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = ("yes", "no", "noanswer")


class AnswerScore(NamedTuple):
    """How one answer compares with the gold answer."""

    em: bool
    """Exact match of the normalised answers."""
    f1: float
    precision: float
    recall: float


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_answer(prediction: str, gold: str) -> AnswerScore:
    """Exact match, and overlap of words; where either answer is yes, no or noanswer, only equality counts."""
    predicted, expected = normalize_answer(prediction), normalize_answer(gold)
    em = predicted == expected
    if not em and (predicted in _CLOSED_ANSWERS or expected in _CLOSED_ANSWERS):
        return AnswerScore(em, 0.0, 0.0, 0.0)
    predicted_words, expected_words = predicted.split(), expected.split()
    common = sum((Counter(predicted_words) & Counter(expected_words)).values())
    if not common:
        return AnswerScore(em, 0.0, 0.0, 0.0)
    precision, recall = common / len(predicted_words), common / len(expected_words)
    return AnswerScore(em, 2 * precision * recall / (precision + recall), precision, recall)
