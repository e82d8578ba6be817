"""The clipped loss that all online methods share, token by token against the formula, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.trainers.policy_gradient import Aggregation, aggregate, clipped_loss, k3
from tests.trainers.toys import played

OLD = [-1.0, -2.0, -0.5, -1.5, -0.7]
REF = [-1.1, -1.0, -0.5, -2.5, -0.9]
RATIOS = [1.5, 0.5, 1.1, 4.0, 0.6]
ADVANTAGES = [1.0, 1.0, -2.0, -1.0, -0.5]


def batch(advantages: list[float] = ADVANTAGES) -> TurnBatch:
    """Two episodes, of 2 + 2 tokens in two turns and of 1 token."""
    episodes = [played([0.0, 0.0], lengths=[2, 2]), played([0.0], lengths=[1], seed=1)]
    sizes = [4, 1]
    examples = [
        Example.from_trajectory(each).with_token_values(
            advantages=values[0].numpy(), old_logprobs=values[1].numpy(), ref_logprobs=values[2].numpy()
        )
        for each, *values in zip(
            episodes, *(torch.tensor(flat).split(sizes) for flat in (advantages, OLD, REF)), strict=True
        )
    ]
    return collate(examples)


def logprobs(ratios: list[float] = RATIOS) -> Tensor:
    return (torch.tensor(OLD) + torch.tensor(ratios).log()).requires_grad_()


def losses(low: float, high: float, dual_clip: float | None = None) -> list[float]:
    """-min(ρA, clip(ρ)A) of every token, and -c A at most where A < 0; by the book."""
    found = []
    for ratio, advantage in zip(RATIOS, ADVANTAGES, strict=True):
        loss = max(-ratio * advantage, -min(max(ratio, 1 - low), 1 + high) * advantage)
        found.append(min(loss, -dual_clip * advantage) if dual_clip is not None and advantage < 0 else loss)
    return found


def averaged(values: list[float], aggregation: Aggregation) -> float:
    return sum(values) / 5 if aggregation == "token_mean" else (sum(values[:4]) / 4 + values[4]) / 2


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epsilon": 0.2}, [-1.2, -0.5, 2.2, 4.0, 0.4]),
        ({"epsilon": 0.2, "epsilon_high": 0.6}, [-1.5, -0.5, 2.2, 4.0, 0.4]),
        ({"epsilon": 0.2, "dual_clip": 3.0}, [-1.2, -0.5, 2.2, 3.0, 0.4]),
        ({"epsilon": 0.5, "dual_clip": 1.05}, [-1.5, -0.5, 2.1, 1.05, 0.3]),
    ],
)
def test_clipped_loss(options: dict[str, Any], expected: list[float], aggregation: Aggregation) -> None:
    """Of 1.5, 0.5 | 1.1, 4, 0.6 with A = 1, 1 | -2, -1, -0.5."""
    low = options["epsilon"]
    assert losses(low, options.get("epsilon_high", low), options.get("dual_clip")) == pytest.approx(expected)
    loss, _ = clipped_loss(logprobs(), batch(), aggregation=aggregation, **options)
    assert loss.item() == pytest.approx(averaged(expected, aggregation))


def test_gradient_stops_where_the_clip_holds() -> None:
    """dL/dlog π = -ρA inside, and exactly 0 where the ratio has gone far enough in the advantage's direction."""
    given = logprobs()
    loss, metrics = clipped_loss(given, batch(), epsilon=0.2, dual_clip=3.0)
    loss.backward()
    assert given.grad is not None
    assert (5 * given.grad).tolist() == pytest.approx([0.0, -0.5, 2.2, 0.0, 0.0])
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 5)  # 1.5 up, 0.6 down; not what the dual clip bounds


def test_on_the_sampling_weights_it_is_reinforce() -> None:
    """With ratio 1 the gradient is -A, whatever the clip."""
    given = torch.tensor(OLD).requires_grad_()
    loss, metrics = clipped_loss(given, batch(), epsilon=0.01, dual_clip=1.5)
    loss.backward()
    assert given.grad is not None
    assert (5 * given.grad).tolist() == pytest.approx([-value for value in ADVANTAGES])
    assert metrics["clip_fraction"] == metrics["policy_kl"] == 0


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_divergence_from_the_reference(aggregation: Aggregation) -> None:
    """β (exp(q) - q - 1) of every token, averaged as the rest is; its gradient is β (1 - exp(q))."""
    given = logprobs()
    q = [ref - new for ref, new in zip(REF, given.tolist(), strict=True)]
    kl = [math.exp(each) - each - 1 for each in q]
    nothing = batch([0.0] * 5)
    loss, metrics = clipped_loss(given, nothing, epsilon=0.2, beta=0.3, aggregation=aggregation)
    loss.backward()
    assert given.grad is not None
    assert loss.item() == pytest.approx(0.3 * averaged(kl, aggregation), rel=1e-5)
    assert metrics["kl"].item() == pytest.approx(averaged(kl, aggregation), rel=1e-5)
    weights = [1 / 5] * 5 if aggregation == "token_mean" else [1 / 8] * 4 + [1 / 2]
    expected = [0.3 * weight * (1 - math.exp(each)) for weight, each in zip(weights, q, strict=True)]
    assert given.grad.tolist() == pytest.approx(expected, rel=1e-4)
    policy_kl = [ratio - math.log(ratio) - 1 for ratio in RATIOS]
    assert metrics["policy_kl"].item() == pytest.approx(averaged(policy_kl, aggregation), rel=1e-5)


def test_k3_is_unbiased() -> None:
    """Its mean over samples of π is KL(π, π_ref), exactly, for a distribution of three outcomes."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    mean = (torch.tensor(p) * k3(torch.tensor(np.log(q / p)))).sum().item()
    assert mean == pytest.approx(float((p * np.log(p / q)).sum()))


def test_probabilities_that_ran_away_stay_finite() -> None:
    """A token that the policy has all but forgotten must not turn an update into nan."""
    given = torch.tensor([-200.0, -1e4, 0.0, -300.0, -0.7], requires_grad=True)
    loss, metrics = clipped_loss(given, batch(), epsilon=0.2, beta=0.1)
    loss.backward()
    assert loss.isfinite()
    assert given.grad is not None
    assert given.grad.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


def test_turns_of_an_episode_are_one_sequence() -> None:
    """In a windowed format an episode has several rows; the mean over it is over the tokens of all of them."""
    episodes = [played([0.0, 0.0], lengths=[3, 1], windowed=True), played([0.0], lengths=[2], seed=1)]
    rows = collate([Example.from_trajectory(each) for each in episodes])
    values = torch.arange(6.0)
    assert aggregate(values, rows, "sequence_mean").item() == pytest.approx(((0 + 1 + 2 + 3) / 4 + (4 + 5) / 2) / 2)
    assert aggregate(values, rows, "token_mean").item() == pytest.approx(15 / 6)
