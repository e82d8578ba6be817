"""DIL's three losses: by hand, as the released code has them, and as what is left of tlm-DRE without turn weights."""

from __future__ import annotations

import math

import pytest
import torch

from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.trainers.dil import DILArguments, Kernel, dil_loss
from agentgym_tlm.trainers.tlm_dre import Kernel as TLMDREKernel
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, tlm_dre_loss
from tests.trainers.test_tlm_dre import (
    dil_repository_loss,
    gradients,
    hand_batch,
    hand_logprobs,
    model_pairs,
    pair_batch,
)

D_W, D_L = 0.34 / 5, -0.7 / 3
"""Mean log-ratios of the example's 5 chosen and 3 rejected tokens."""


@pytest.mark.parametrize(
    ("kernel", "expected", "at_reference"),
    [
        ("lsif", (math.exp(2 * D_L) - 1) / 2 - (math.exp(D_W) - 1), 0.0),
        ("ukl", math.exp(D_L) - D_W, 1.0),
        ("bce", math.log(1 + math.exp(-D_W)) + math.log(1 + math.exp(D_L)), 2 * math.log(2)),
    ],
)
def test_two_turn_example_by_hand(kernel: Kernel, expected: float, at_reference: float) -> None:
    batch = hand_batch(TLMDREArguments())
    loss, metrics = dil_loss(hand_logprobs(batch), batch, kernel)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics["z_w"].item() == pytest.approx(D_W, abs=1e-6)
    assert metrics["z_l"].item() == pytest.approx(D_L, abs=1e-6)
    assert dil_loss(batch.flat(batch.ref_logprobs), batch, kernel)[0].item() == pytest.approx(at_reference, abs=1e-6)


@pytest.mark.parametrize(("kernel", "same"), [("lsif", "lsif"), ("ukl", "ukl"), ("bce", "bkl")])
def test_is_tlm_dre_without_turn_weights(kernel: Kernel, same: TLMDREKernel) -> None:
    """The paper's ablation "w/o tlm" (ω = 1): the same value and the same gradient."""
    model, pairs = model_pairs()
    batch = pair_batch(pairs)
    logprobs = token_logprobs(model, batch)
    loss, metrics = dil_loss(logprobs, batch, kernel)
    other, other_metrics = tlm_dre_loss(logprobs, batch, TLMDREArguments(kernel=same, omega_lower=1.0))
    torch.testing.assert_close(loss, other, rtol=1e-6, atol=1e-7)
    for name in ("z_w", "z_l", "margin", "accuracy"):
        assert metrics[name] == other_metrics[name]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(other, list(model.parameters()), retain_graph=True)])
    torch.testing.assert_close(gradients(loss, model), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kernel", ["lsif", "ukl", "bce"])
def test_is_the_released_code_up_to_a_constant(kernel: Kernel) -> None:
    """Its losses leave out what does not depend on the policy; the gradients are the same."""
    model, pairs = model_pairs()
    batch = pair_batch(pairs)
    loss, _ = dil_loss(token_logprobs(model, batch), batch, kernel)
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    policy = torch.zeros(batch.input_ids.shape)
    policy[:, 1:] = logits[:, :-1].log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    assert batch.ref_logprobs is not None
    expected = dil_repository_loss(kernel, policy, batch.ref_logprobs, batch.loss_mask.float())
    if kernel == "lsif":
        assert loss.item() == pytest.approx(expected.item() + 0.5, rel=1e-5)
    if kernel == "bce":
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-4, atol=1e-6)


def test_defaults_are_the_sources() -> None:
    args = DILArguments()
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 128
    assert (args.kernel, args.lr_scheduler_type, args.warmup_ratio, args.num_train_epochs) == (
        "lsif",
        "cosine",
        0.1,
        1.0,
    )
    assert 3e-7 <= args.learning_rate <= 1e-6
