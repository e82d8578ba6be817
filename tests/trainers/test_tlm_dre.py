"""tlm-DRE is the paper's loss: its invariants, its kernels, its two ablations, on numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.logprobs import token_logprobs
from agentgym_tlm.pairs import Pair, read_pairs, score_pairs
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.tlm_dre import (
    Kernel,
    Reduction,
    TLMDREArguments,
    TLMDRETrainer,
    bregman_loss,
    coefficient,
    confidence,
    log_ratio,
    tlm_dre_loss,
    turn_weights,
)
from agentgym_tlm.trajectory import Trajectory
from tests.trainers.toys import episode, tiny_model, tiny_policy

KERNELS = get_args(Kernel)
REDUCTIONS = get_args(Reduction)


def scored(lengths: list[tuple[int, int]], logprobs: list[list[float]], seed: int = 0) -> Trajectory:
    trajectory = episode(lengths, seed=seed)
    for turn, values in zip(trajectory.turns, logprobs, strict=True):
        turn.ref_logprobs = values
    return trajectory


def hand_batch(args: TLMDREArguments) -> TurnBatch:
    """One pair of two-turn trajectories; every number below follows from these.

    chosen:   turn 1 has 2 tokens with log π_ref = -0.05 each: p = exp(-0.05) = 0.951 > 0.9, so ω = ω_L
              turn 2 has 3 tokens with log π_ref = -0.30 each: p = exp(-0.30) = 0.741,       so ω = ω_U
    rejected: turn 1 has 1 token  with log π_ref = -0.01:      p = 0.990,                    so ω = ω_L
              turn 2 has 2 tokens with log π_ref = -1.00 each: p = 0.368,                    so ω = ω_U
    """
    chosen = scored([(2, 2), (1, 3)], [[-0.05, -0.05], [-0.3, -0.3, -0.3]])
    rejected = scored([(2, 1), (1, 2)], [[-0.01], [-1.0, -1.0]], seed=1)
    lower, upper = args.omega_lower, args.omega_upper
    weights_w = [1.0, 1.0] if args.weight_side == "rejected" else [lower, upper]
    return collate([Example.from_trajectory(chosen, weights_w)], [Example.from_trajectory(rejected, [lower, upper])])


SHIFT = torch.tensor([0.02, 0.02, 0.1, 0.1, 0.1, -0.3, -0.2, -0.2])
"""log π_θ - log π_ref: per turn 0.04 and 0.3 on the chosen side, -0.3 and -0.4 on the rejected side."""


def hand_logprobs(batch: TurnBatch) -> Tensor:
    return batch.flat(batch.ref_logprobs) + SHIFT


def dre(batch: TurnBatch, args: TLMDREArguments, logprobs: Tensor | None = None) -> Tensor:
    return tlm_dre_loss(hand_logprobs(batch) if logprobs is None else logprobs, batch, args)[0]


@pytest.mark.parametrize(
    ("reduction", "z_w", "z_l", "log_c"),
    [
        # (.2 * .04 + .3) / 5,  (.2 * -.3 - .4) / 3,  .8 * 2 * -.05 / 5
        ("token_mean", 0.0616, -0.46 / 3, -0.016),
        # .2 * .02 + .1,  .2 * -.3 - .2,  .8 * -.05
        ("turn_mean", 0.104, -0.26, -0.04),
        # .2 * .04 + .3,  .2 * -.3 - .4,  .8 * 2 * -.05
        ("sum", 0.308, -0.46, -0.08),
    ],
)
def test_two_turn_example_by_hand(reduction: Reduction, z_w: float, z_l: float, log_c: float) -> None:
    args = TLMDREArguments(reduction=reduction)
    batch = hand_batch(args)
    loss, metrics = tlm_dre_loss(hand_logprobs(batch), batch, args)
    assert metrics["z_w"].item() == pytest.approx(z_w, abs=1e-6)
    assert metrics["z_l"].item() == pytest.approx(z_l, abs=1e-6)
    assert metrics["C"].item() == pytest.approx(math.exp(log_c), abs=1e-6)
    assert loss.item() == pytest.approx(math.exp(z_l) - math.exp(log_c) * z_w, abs=1e-6)
    assert metrics["margin"].item() == pytest.approx(z_w - z_l, abs=1e-6)
    assert metrics["accuracy"].item() == 1.0
    assert metrics["lower_weight_share_w"].item() == metrics["lower_weight_share_l"].item() == 0.5


def test_weights_on_the_rejected_side_only() -> None:
    args = TLMDREArguments(weight_side="rejected")
    batch = hand_batch(args)
    loss, metrics = tlm_dre_loss(hand_logprobs(batch), batch, args)
    assert metrics["C"].item() == 1.0
    assert loss.item() == pytest.approx(math.exp(-0.46 / 3) - 0.34 / 5, abs=1e-6)


def test_without_coefficient() -> None:
    args = TLMDREArguments(coefficient="none")
    assert dre(hand_batch(args), args).item() == pytest.approx(math.exp(-0.46 / 3) - 0.0616, abs=1e-6)


@pytest.mark.parametrize(
    ("reduction", "turn_1", "turn_2"), [("token_mean", 0.008 / 5, 0.06), ("turn_mean", 0.004, 0.1)]
)
def test_turn_local_coefficient(reduction: Reduction, turn_1: float, turn_2: float) -> None:
    """Reading C2: turn i's log-ratio has the factor p_i^(1 - ω_i); critical turns (ω = 1) have none."""
    args = TLMDREArguments(coefficient="turn_local", reduction=reduction)
    rejected = -0.46 / 3 if reduction == "token_mean" else -0.26
    expected = math.exp(rejected) - (math.exp(-0.05 * 0.8) * turn_1 + turn_2)
    assert dre(hand_batch(args), args).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kernel", ["lsif", "bkl", "basu"])
def test_turn_local_coefficient_needs_a_sum_over_turns(kernel: Kernel) -> None:
    with pytest.raises(ConfigError, match="turn_local"):
        TLMDREArguments(coefficient="turn_local", kernel=kernel)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_policy_equal_to_the_reference(reduction: Reduction) -> None:
    """At the start of training the loss is 1 (UKL), 0 (LSIF), (1 + C) log 2 (BKL) exactly: a wrong reference shows."""
    args = TLMDREArguments(reduction=reduction)
    batch = hand_batch(args)
    same = batch.flat(batch.ref_logprobs)
    c = tlm_dre_loss(same, batch, args)[1]["C"].item()
    assert dre(batch, args, same).item() == 1.0
    assert dre(batch, replace(args, kernel="lsif"), same).item() == 0.0
    bkl = dre(batch, replace(args, kernel="bkl"), same).item()
    assert bkl == pytest.approx((1 + c) * math.log(2), abs=1e-6)


F: dict[str, Any] = {
    "ukl": lambda r, alpha: r * r.log() - r,
    "lsif": lambda r, alpha: (r - 1) ** 2 / 2,
    "bkl": lambda r, alpha: r * r.log() - (r + 1) * (r + 1).log(),
    "basu": lambda r, alpha: (r ** (1 + alpha) - r) / alpha,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("alpha", [0.3, 1.7])
def test_closed_forms_against_the_definition(kernel: Kernel, alpha: float) -> None:
    """f'(r_l) r_l - f(r_l) - C f'(r_w), with f' by automatic differentiation, for ratios from e^-4 to e^4."""
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)
    z_w, z_l, c = (grid.flatten() for grid in torch.meshgrid(z, z, z.new_tensor([0.1, 1.0]), indexing="ij"))

    def f_and_slope(r: Tensor) -> tuple[Tensor, Tensor]:
        r = r.clone().requires_grad_()
        value: Tensor = F[kernel](r, alpha)
        return value.detach(), torch.autograd.grad(value.sum(), r)[0]

    f_l, slope_l = f_and_slope(z_l.exp())
    _, slope_w = f_and_slope(z_w.exp())
    expected = slope_l * z_l.exp() - f_l - c * slope_w
    found = bregman_loss(kernel, z_w, z_l, c, alpha=alpha, z_clip=100.0)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def dil_repository_loss(kernel: str, policy: Tensor, ref: Tensor, mask: Tensor) -> Tensor:
    """DIL's loss (arXiv 2503.05079) written from its definition: averaged log-probs, chosen rows first."""
    chosen, rejected = ((policy - ref) * mask).sum(-1).div(mask.sum(-1)).chunk(2)
    policy_chosen, _ = (policy * mask).sum(-1).div(mask.sum(-1)).chunk(2)
    if kernel == "lsif":
        return (0.5 * torch.exp(2 * rejected) - torch.exp(chosen)).mean()
    if kernel == "ukl":
        return (torch.exp(rejected) - policy_chosen).mean()
    return (torch.log1p(torch.exp(-chosen)) + torch.log1p(torch.exp(rejected))).mean()


def model_pairs(count: int = 3) -> tuple[Any, list[Pair]]:
    """Pairs scored with one model, and another model to train."""
    pairs = [
        Pair(episode([(4, 3), (5, 2)], seed=s, won=True), episode([(4, 2), (3, 4), (2, 1 + s)], seed=50 + s))
        for s in range(count)
    ]
    return tiny_model(seed=1), score_pairs(tiny_model(seed=0), pairs)


def pair_batch(pairs: list[Pair], weights: dict[int, list[float]] | None = None) -> TurnBatch:
    sides = ([pair.chosen for pair in pairs], [pair.rejected for pair in pairs])
    return collate(*[[Example.from_trajectory(t, (weights or {}).get(id(t))) for t in side] for side in sides])


def gradients(loss: Tensor, model: Any) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("kernel", ["ukl", "lsif", "bkl"])
def test_unit_weights_are_dil(kernel: Kernel) -> None:
    """The ablation "w/o tlm": C = 1 and the gradient is that of DIL, whose loss differs by constants only."""
    args = TLMDREArguments(kernel=kernel, omega_lower=1.0)
    model, pairs = model_pairs()
    batch = pair_batch(pairs)
    loss, metrics = tlm_dre_loss(token_logprobs(model, batch), batch, args)
    assert metrics["C"].item() == 1.0
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    policy = torch.zeros(batch.input_ids.shape)
    policy[:, 1:] = logits[:, :-1].log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    assert batch.ref_logprobs is not None
    expected = dil_repository_loss(kernel, policy, batch.ref_logprobs, batch.loss_mask.float())
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-4, atol=1e-6)


def test_unit_weights_without_dre_are_dpo() -> None:
    """The ablation "w/o DRE" with ω = 1 is trajectory DPO with summed log-probs (ETO): value and gradient."""
    args = TLMDREArguments(loss_type="dpo", omega_lower=1.0, beta=0.3)
    model, pairs = model_pairs()
    batch = pair_batch(pairs)
    loss, _ = tlm_dre_loss(token_logprobs(model, batch), batch, args)
    losses = []
    for pair in pairs:
        deltas = []
        for trajectory in (pair.chosen, pair.rejected):
            ids = torch.tensor(trajectory.sequences)
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            total = torch.zeros(())
            for turn in trajectory.turns:
                assert turn.span is not None
                assert turn.ref_logprobs is not None
                for position, ref in zip(range(*turn.span), turn.ref_logprobs, strict=True):
                    total = total + logprobs[position - 1, ids[0, position]] - ref
            deltas.append(total)
        losses.append(-torch.log(torch.sigmoid(0.3 * (deltas[0] - deltas[1]))))
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-4, atol=1e-6)


def test_turn_weighted_dpo_by_hand() -> None:
    args = TLMDREArguments(loss_type="dpo")
    assert args.resolved_reduction == "sum"
    expected = -math.log(1 / (1 + math.exp(-0.1 * (0.308 + 0.46))))
    assert dre(hand_batch(args), args).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("reduction", ["turn_mean", "sum"])
@pytest.mark.parametrize("side", [slice(0, 4), slice(4, 8)], ids=["chosen", "rejected"])
def test_confident_turns_get_the_lower_weight(reduction: Reduction, side: slice) -> None:
    """For turns of equal length the gradients on a confident and a critical turn are as ω_L to ω_U, on both sides."""
    args = TLMDREArguments(reduction=reduction)
    values = [[-0.05, -0.05], [-0.7, -0.7]]
    examples = [Example.from_trajectory(scored([(2, 2), (1, 2)], values, seed=s), [0.2, 1.0]) for s in range(2)]
    batch = collate(examples[:1], examples[1:])
    logprobs = batch.flat(batch.ref_logprobs).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(dre(batch, args, logprobs), logprobs)
    confident, critical = gradient[side].view(2, 2)
    torch.testing.assert_close(confident, 0.2 * critical)


def test_coefficient_is_a_constant_in_zero_one() -> None:
    ref = torch.tensor([[-0.5, -3.0], [-40.0, -0.1]], requires_grad=True)
    n, weights = torch.tensor([[2.0, 4.0], [5.0, 1.0]]), torch.tensor([[0.2, 1.0], [0.0, 0.2]])
    for reduction in REDUCTIONS:
        c = coefficient(ref, n, weights, reduction)
        assert not c.requires_grad
        assert ((c > 0) & (c <= 1)).all()
        assert coefficient(ref, n, torch.ones_like(weights), reduction).tolist() == [1.0, 1.0]


def test_confidence_and_weights_by_hand() -> None:
    p = confidence(torch.tensor([[-0.2, -3.0, 0.0]]), torch.tensor([[2.0, 3.0, 0.0]]))
    torch.testing.assert_close(p, torch.tensor([[math.exp(-0.1), math.exp(-1.0), 1.0]]))
    assert turn_weights(p, 0.9, 0.2, 1.0)[0, :2].tolist() == [pytest.approx(0.2), 1.0]
    assert turn_weights(torch.tensor([0.9]), 0.9, 0.2, 1.0).tolist() == [1.0]  # Eq. 10: strictly above the pivot


def test_padding_turns_count_for_nothing() -> None:
    """A trajectory with fewer turns than its neighbour, or with an injected mistake, has the same ratio as alone."""
    delta, n, weights = torch.tensor([[0.5, 0.3]]), torch.tensor([[2.0, 3.0]]), torch.tensor([[0.2, 1.0]])
    padded_delta, padded_n, padded_weights = (torch.cat([x, torch.zeros(1, 3)], dim=1) for x in (delta, n, weights))
    for reduction in REDUCTIONS:
        alone = log_ratio(delta, n, weights, reduction)
        padded = log_ratio(padded_delta, padded_n, padded_weights, reduction)
        assert torch.equal(alone, padded)


def test_ratio_that_ran_away_is_still_pulled_back() -> None:
    z = torch.tensor([60.0], dtype=torch.float64, requires_grad=True)
    for kernel in KERNELS:
        loss = bregman_loss(kernel, torch.zeros(1), z, torch.ones(1)).sum()
        (gradient,) = torch.autograd.grad(loss, z)
        assert math.isfinite(loss.item())
        assert gradient.item() > 0.99
    below, above = (bregman_loss("ukl", torch.zeros(1), torch.tensor([10.0 + e]), torch.ones(1)) for e in (-1e-3, 1e-3))
    torch.testing.assert_close(below, above, rtol=3e-3, atol=0)


def test_gradient_where_the_tangent_begins() -> None:
    """There, too, it is that of exp: not twice as much."""
    z = torch.tensor([10.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(bregman_loss("ukl", torch.zeros(1), z, torch.ones(1)).sum(), z)
    assert gradient.item() == pytest.approx(math.exp(10))


def trainer_for(folder: Path, policy: Any = None, **options: Any) -> TLMDRETrainer:
    args = TLMDREArguments(
        output_dir=str(folder),
        **{"learning_rate": 3e-3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, **options},
    )
    return TLMDRETrainer(policy or tiny_policy(), EnvArgs(), args)


def loss_lines(trainer: TLMDRETrainer) -> list[dict[str, float]]:
    """Filled with the log lines of updates while the trainer runs."""
    lines: list[dict[str, float]] = []

    def on_log(line: Mapping[str, float]) -> None:
        if "loss" in line:
            lines.append(dict(line))

    trainer.on_log = on_log
    return lines


def test_pair_order_and_accumulation_change_nothing() -> None:
    model, pairs = model_pairs(4)
    args = TLMDREArguments()
    weights = {id(t): [0.2] + [1.0] * (len(t.turns) - 1) for pair in pairs for t in (pair.chosen, pair.rejected)}
    whole = pair_batch(pairs, weights)
    expected = gradients(tlm_dre_loss(token_logprobs(model, whole), whole, args)[0], model)
    shuffled = pair_batch([pairs[i] for i in (2, 0, 3, 1)], weights)
    found = gradients(tlm_dre_loss(token_logprobs(model, shuffled), shuffled, args)[0], model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    parts = [pair_batch(part, weights) for part in (pairs[:1], pairs[1:])]
    shares = [0.25, 0.75]
    total = sum(
        share * gradients(tlm_dre_loss(token_logprobs(model, part), part, args)[0], model)
        for share, part in zip(shares, parts, strict=True)
    )
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"kernel": "lsif"}, {"kernel": "bkl"}, {"kernel": "basu"}, {"loss_type": "dpo"}, {"reduction": "turn_mean"}],
    ids=str,
)
def test_training_separates_chosen_from_rejected(tmp_path: Path, options: dict[str, Any]) -> None:
    """Every variant raises the chosen ratio above the rejected one, from exactly equal at the start."""
    trainer = trainer_for(tmp_path, max_steps=12, logging_steps=1, save_steps=None, **options)
    lines = loss_lines(trainer)
    policy = trainer.policy
    pairs = [
        Pair(episode([(4, 3), (5, 2)], seed=s, won=True), episode([(4, 2), (3, 4)], seed=50 + s)) for s in range(4)
    ]
    trainer.train_pairs(pairs)
    assert lines[0]["margin"] == pytest.approx(0.0, abs=1e-5)
    assert lines[-1]["margin"] > 0.05
    assert lines[-1]["z_l"] < 0 < lines[-1]["z_w"]
    assert lines[-1]["accuracy"] == 1.0
    assert policy.version != "0"


def test_weights_come_from_the_frozen_reference_once(tmp_path: Path) -> None:
    """Confidence is the SFT policy's, whatever the policy has become, and is kept with the pairs."""
    trainer = trainer_for(tmp_path, max_steps=2, save_steps=None)
    pairs = [Pair(episode([(4, 3)], won=True), episode([(4, 2), (3, 4)], seed=1))]
    expected = score_pairs(tiny_policy().model, pairs)
    trainer.train_pairs(pairs)
    (kept,) = read_pairs(tmp_path / "iteration-0" / "pairs")
    for mine, theirs in ((kept.chosen, expected[0].chosen), (kept.rejected, expected[0].rejected)):
        for a, b in zip(mine.turns, theirs.turns, strict=True):
            assert a.confidence == pytest.approx(b.confidence, rel=1e-6)
    again = trainer_for(tmp_path / "again", policy=trainer.policy, max_steps=1, save_steps=None, logging_steps=1)
    lines = loss_lines(again)
    again.train_pairs([kept])
    assert lines[0]["margin"] > 1e-3  # scored anew with the trained policy it would be 0


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_off(tmp_path: Path, checkpointing: bool) -> None:
    """π_ref was scored without it: with it, the ratio of the reference to itself would not be 1, nor the UKL loss."""
    policy = tiny_policy()
    policy.model.config.attention_dropout = 0.3
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    runs: list[int] = []
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(torch.is_grad_enabled()))
    trainer = trainer_for(
        tmp_path, policy, max_steps=1, logging_steps=1, save_steps=None, gradient_checkpointing=checkpointing
    )
    lines = loss_lines(trainer)
    trainer.train_pairs([Pair(episode([(4, 9)], won=True), episode([(4, 8), (3, 4)], seed=1))])
    assert lines[0]["loss"] == pytest.approx(1.0, abs=1e-6)
    assert lines[0]["margin"] == pytest.approx(0.0, abs=1e-6)
    assert sum(runs) == (4 if checkpointing else 2)  # chosen and rejected, once more each when recomputed


def test_no_failure_to_learn_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no pair"):
        trainer_for(tmp_path).train_pairs([])


def test_pivot_as_a_quantile(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, p_pivot_quantile=0.5)
    chosen = scored([(1, 1), (1, 1)], [[-0.1], [-0.2]])
    rejected = scored([(1, 1), (1, 2)], [[-0.3], [-9.0, -9.0]])
    rejected.turns[1].trainable = False  # an injected mistake says nothing about the policy's confidence
    assert trainer.pivot([Pair(chosen, rejected)]) == pytest.approx(math.exp(-0.2))


def test_adapters_leave_the_reference_alone(tmp_path: Path) -> None:
    """With LoRA the model without its adapters stays the SFT policy, bit for bit, and scoring uses that."""
    plain = tiny_policy()
    trainer = trainer_for(tmp_path, max_steps=4, lora=LoraArguments(r=4), save_steps=None, learning_rate=1e-2)
    pairs = [Pair(episode([(4, 3)], won=True), episode([(4, 2), (3, 4)], seed=1))]
    trainer.train_pairs(pairs)
    batch = pair_batch(pairs)
    model: Any = trainer.policy.model
    with torch.no_grad():
        before = token_logprobs(plain.model, batch)
        with model.disable_adapter():
            assert torch.equal(token_logprobs(model, batch), before)
        trained = token_logprobs(model, batch)
        assert not torch.allclose(trained, before, atol=1e-3)
        saved = type(plain).load(trainer.save(), device="cpu")
        torch.testing.assert_close(token_logprobs(saved.model, batch), trained, rtol=1e-4, atol=1e-4)
