"""Drawing tokens: the distribution is the model's, and a draw is a function of its row and its number."""

from __future__ import annotations

import math

import pytest
import torch

from agentgym_tlm.policies.sampling import sample_tokens

PROBABILITIES = torch.tensor([0.1, 0.4, 0.2, 0.3])


def _draw(count: int, *, temperature: float = 1.0, top_p: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and log-probabilities for ``count`` evenly spaced uniform numbers."""
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    logits = PROBABILITIES.log().expand(count, -1)
    return sample_tokens(logits, uniforms, temperature=temperature, top_p=top_p)


def _frequencies(ids: torch.Tensor) -> list[float]:
    return [float((ids == i).double().mean()) for i in range(4)]


def test_frequencies_are_the_probabilities() -> None:
    ids, logprobs = _draw(1000)
    assert _frequencies(ids) == pytest.approx(PROBABILITIES.tolist(), abs=1e-3)
    assert logprobs.tolist() == pytest.approx(PROBABILITIES[ids].log().tolist(), abs=1e-6)


def test_temperature_sharpens_and_is_in_the_logprobs() -> None:
    """At temperature 1/2 the probabilities are squared: 1, 16, 4, 9 out of 30."""
    ids, logprobs = _draw(3000, temperature=0.5)
    assert _frequencies(ids) == pytest.approx([1 / 30, 16 / 30, 4 / 30, 9 / 30], abs=1e-3)
    assert float(logprobs[ids == 1][0]) == pytest.approx(math.log(16 / 30), abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.39, [0, 1, 0, 0]),
        (0.41, [0, 4 / 7, 0, 3 / 7]),
        (0.75, [0, 4 / 9, 2 / 9, 3 / 9]),
        (0.95, PROBABILITIES.tolist()),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, expected: list[float]) -> None:
    ids, logprobs = _draw(1000, top_p=top_p)
    assert _frequencies(ids) == pytest.approx(expected, abs=2e-3)
    assert logprobs.tolist() == pytest.approx(PROBABILITIES[ids].log().tolist(), abs=1e-6), "before the cut"


def test_greedy_takes_the_most_probable_token_at_temperature_one() -> None:
    ids, logprobs = _draw(3, temperature=0)
    assert ids.tolist() == [1, 1, 1]
    assert logprobs.tolist() == pytest.approx([math.log(0.4)] * 3)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, 1.0, -math.inf]])
    ids, logprobs = sample_tokens(logits, torch.tensor([uniform], dtype=torch.float64), temperature=1.0, top_p=1.0)
    assert ids.item() in (1, 2)
    assert math.isfinite(logprobs.item())


def test_half_precision_logits_are_sampled_in_full_precision() -> None:
    logits = PROBABILITIES.log().bfloat16()[None]
    _, logprobs = sample_tokens(logits, torch.tensor([0.3]), temperature=1.0, top_p=1.0)
    assert logprobs.dtype == torch.float32
