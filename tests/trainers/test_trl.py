"""On single turns, where definitions coincide, losses and gradients are those of TRL on the same token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.logprobs import TokenLogprobs, token_logprobs
from agentgym_tlm.pairs import score_reference
from agentgym_tlm.policies.tiny import build_tokenizer
from agentgym_tlm.trainers.dpo import dpo_loss
from agentgym_tlm.trainers.kto import kto_loss, mismatched
from agentgym_tlm.trainers.policy_gradient import Aggregation, clipped_loss
from agentgym_tlm.trainers.sft import sft_loss
from agentgym_tlm.trajectory import Trajectory
from tests.trainers.toys import VOCAB, episode, tiny_model

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install 'agentgym-tlm[dev]'")
datasets = pytest.importorskip("datasets", reason="TRL's datasets is not installed: pip install 'agentgym-tlm[dev]'")

KINDS = ("qwen2", "llama")
BETA = 0.3
CHOSEN = [episode([(3 + i, 2 + i)], seed=i, task=f"task{i}", won=True) for i in range(4)]
REJECTED = [episode([(3 + i, 5 - i)], seed=20 + i, task=f"task{i}") for i in range(4)]
for better, worse in zip(CHOSEN, REJECTED, strict=True):  # a pair has one prompt
    ((start, _),) = [turn.span for turn in better.turns if turn.span]
    worse.sequences = [better.sequences[0][:start] + worse.sequences[0][start:]]


def models(kind: str) -> tuple[Any, Any]:
    """A policy and another model as its reference."""
    return tiny_model(kind, seed=1).eval(), tiny_model(kind, seed=0).eval()


def ids(trajectory: Trajectory) -> tuple[list[int], list[int]]:
    """Prompt and completion."""
    (turn,) = trajectory.turns
    assert turn.span is not None
    return trajectory.sequences[0][: turn.span[0]], trajectory.response_ids(turn)


def scored_batch(reference: Any, *sides: list[Trajectory]) -> TurnBatch:
    return collate(*[[Example.from_trajectory(t) for t in score_reference(reference, side)] for side in sides])


def compare(mine: Tensor, theirs: Tensor, model: Any, atol: float = 1e-6) -> None:
    """Loss and gradient with respect to every weight."""
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (mine, theirs)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol)


def trainer(kind: str, folder: Path, model: Any, rows: list[dict[str, Any]], **options: Any) -> Any:
    """TRL's trainer of that kind; the texts of ``rows`` are only there for it to begin."""
    given = {name: options.pop(name) for name in ("ref_model", "reward_funcs") if name in options}
    args = getattr(trl, f"{kind}Config")(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        per_device_train_batch_size=len(rows),
        bf16=False,
        **options,
    )
    tokenizer = build_tokenizer(["a b c"])
    dataset = datasets.Dataset.from_list(rows)
    made = getattr(trl, f"{kind}Trainer")(
        model=model, args=args, train_dataset=dataset, processing_class=tokenizer, **given
    )
    made.model.eval()
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_sft(kind: str, tmp_path: Path) -> None:
    model, _ = models(kind)
    batch = collate([Example.from_trajectory(each) for each in CHOSEN])
    mine = sft_loss(token_logprobs(model, batch), batch)
    theirs = trainer("SFT", tmp_path, model, [{"prompt": "a", "completion": "b"}] * 4)
    examples = [
        {"input_ids": prompt + response, "labels": [-100] * len(prompt) + response}
        for prompt, response in map(ids, CHOSEN)
    ]
    compare(mine, theirs.compute_loss(model, theirs.data_collator(examples)), model)


@pytest.mark.parametrize("kind", KINDS)
def test_dpo(kind: str, tmp_path: Path) -> None:
    model, reference = models(kind)
    batch = scored_batch(reference, CHOSEN, REJECTED)
    mine, metrics = dpo_loss(token_logprobs(model, batch), batch, BETA)
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4
    theirs = trainer("DPO", tmp_path, model, rows, ref_model=reference, beta=BETA)
    examples = [
        {"prompt_ids": ids(better)[0], "chosen_ids": ids(better)[1], "rejected_ids": ids(worse)[1]}
        for better, worse in zip(CHOSEN, REJECTED, strict=True)
    ]
    compare(mine, theirs.compute_loss(model, theirs.data_collator(examples)), model)
    (logged,) = theirs._metrics["eval"]["rewards/margins"]
    assert metrics["margin"].item() == pytest.approx(logged, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_kto(kind: str, tmp_path: Path) -> None:
    """With TRL's mismatched pairs, which are the completions of a batch shifted by one."""
    reference, model = models(kind)  # this way round z_ref is above 0
    trajectories = [*CHOSEN[:2], *REJECTED[1:]]
    others = [mismatched(x, y, 128) for x, y in zip(trajectories, trajectories[-1:] + trajectories[:-1], strict=True)]
    batch, shifted = scored_batch(reference, trajectories), scored_batch(reference, others)
    with torch.no_grad():
        ratios = shifted.turn_sums(token_logprobs(model, shifted) - shifted.flat(shifted.ref_logprobs)).sum(-1)
    z_ref = ratios.mean().clamp(min=0)
    assert z_ref > 0.1
    mine, _ = kto_loss(token_logprobs(model, batch), batch, z_ref, BETA, 1.5, 0.8)
    rows = [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "c", "label": False}]
    theirs = trainer(
        "KTO", tmp_path, model, rows, ref_model=reference, beta=BETA, desirable_weight=1.5, undesirable_weight=0.8
    )
    examples = [
        {
            "prompt_ids": ids(own)[0],
            "completion_ids": ids(own)[1],
            "KL_completion_ids": ids(other)[1],
            "label": own.won,
        }
        for own, other in zip(trajectories, others, strict=True)
    ]
    compare(mine, theirs.compute_loss(model, theirs.data_collator(examples)), model)
    assert theirs._metrics["eval"]["kl"] == [pytest.approx(z_ref.item(), abs=1e-5)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("loss_type", "aggregation"), [("grpo", "sequence_mean"), ("bnpo", "token_mean"), ("dapo", "token_mean")]
)
def test_grpo(kind: str, loss_type: str, aggregation: Aggregation, tmp_path: Path) -> None:
    """With clips on both sides, TRL's delta for the dual clip, k3, and a temperature; old log-probs are off by 0.4."""
    model, reference = models(kind)
    temperature, scored = 0.7, score_reference(reference, [*CHOSEN, *REJECTED], temperature=0.7)
    examples = [Example.from_trajectory(each) for each in scored]
    module = TokenLogprobs(model, temperature=temperature)
    plain = collate(examples)
    new = module(plain.input_ids, plain.loss_mask, plain.groups)
    torch.manual_seed(0)
    sizes = [example.loss_tokens for example in examples]
    old = (new.detach() + 0.4 * torch.randn(len(new))).split(sizes)
    advantages = torch.randn(len(examples))
    batch = collate(
        [
            example.with_token_values(old_logprobs=values.numpy(), advantages=np.full(len(values), float(advantage)))
            for example, values, advantage in zip(examples, old, advantages, strict=True)
        ]
    )
    mine, metrics = clipped_loss(
        new, batch, epsilon=0.2, epsilon_high=0.3, dual_clip=1.5, beta=BETA, aggregation=aggregation
    )
    assert 0.2 < metrics["clip_fraction"] < 0.8
    options = {"epsilon": 0.2, "epsilon_high": 0.3, "delta": 1.5, "temperature": temperature, "beta": 0.0}
    theirs = trainer(
        "GRPO",
        tmp_path,
        model,
        [{"prompt": "a"}] * len(examples),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        loss_type=loss_type,
        use_bias_correction_kl=False,  # which weights k3 with the ratio (DeepSeek-V3.2); GRPO does not
        **options,
    )
    theirs.beta = BETA  # as an option it would make TRL look for the reference model on disk
    inputs: dict[str, Tensor] = {
        "advantages": advantages,
        "old_per_token_logps": pad_sequence(old, batch_first=True),
        "ref_per_token_logps": pad_sequence(batch.flat(batch.ref_logprobs).split(sizes), batch_first=True),
        "num_items_in_batch": torch.tensor(sum(sizes)),
    }
    for name, side in (("prompt", "left"), ("completion", "right")):
        parts = [torch.tensor(both[name == "completion"]) for both in map(ids, scored)]
        padded: dict[str, Any] = {"batch_first": True, "padding_side": side}
        inputs[f"{name}_ids"] = pad_sequence(parts, **padded)
        inputs[f"{name}_mask"] = pad_sequence([torch.ones_like(part) for part in parts], **padded)
    compare(mine, theirs._compute_loss(model, inputs), model, atol=1e-5)
    assert theirs._metrics["eval"]["clip_ratio/region_mean"][0] > 0.2


def test_tokenizer_is_smaller_than_the_models() -> None:
    """TRL would otherwise be given ids that its tokenizer has and the models do not."""
    assert len(build_tokenizer(["a b c"])) <= VOCAB
