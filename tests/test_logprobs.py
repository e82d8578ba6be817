"""Log-probs at the tokens of the loss are those of the full model, and no other position is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from agentgym_tlm.batch import Example, TurnBatch, collate
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.logprobs import TokenLogprobs, token_logprobs
from agentgym_tlm.trajectory import Trajectory
from tests.trainers.toys import VOCAB, episode, tiny_model


def batch_of(*trajectories: Trajectory) -> TurnBatch:
    return collate([Example.from_trajectory(trajectory) for trajectory in trajectories])


def full_logprobs(model: PreTrainedModel, batch: TurnBatch) -> Tensor:
    """The same log-probs the expensive way: all logits, with the padding mask."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits.float()
    every: Tensor = logits[:, :-1].log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    return every[batch.loss_mask[:, 1:]]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_equals_log_softmax_of_the_full_logits(kind: str, tie: bool, chunk_size: int | None) -> None:
    model = tiny_model(kind, tie=tie)
    batch = batch_of(
        episode([(4, 3), (5, 2)]),
        episode([(2, 6)], seed=1, windowed=True),
        episode([(3, 1), (1, 1), (2, 4)], seed=2, windowed=True),
    )
    expected = full_logprobs(model, batch)
    found = token_logprobs(model, batch, chunk_size)
    assert found.shape == (17,)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    grads = [torch.autograd.grad(value.sum(), list(model.parameters())) for value in (found, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_no_gradient_reaches_the_prediction_of_prompts_and_observations() -> None:
    """An agent must not learn to write the environment's text, nor an injected mistake."""
    model = tiny_model()
    batch = batch_of(episode([(4, 3), (5, 2), (2, 3)], untrainable={1}), episode([(2, 4)], seed=1))
    seen: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        outputs.last_hidden_state.retain_grad()
        seen.append(outputs.last_hidden_state)

    module = TokenLogprobs(model)
    handle = model.base_model.register_forward_hook(keep)
    module(batch.input_ids, batch.loss_mask, batch.groups).sum().backward()
    handle.remove()
    assert seen[0].grad is not None
    touched = seen[0].grad.abs().sum(-1) > 0  # a position's hidden state predicts the next token
    predicts = batch.loss_mask.shape[1] - 1
    assert torch.equal(touched[:, :predicts], batch.loss_mask[:, 1:])
    assert not touched[:, predicts:].any()
    assert batch.loss_mask.sum(-1).tolist() == [6, 4]


def test_head_sees_only_loss_tokens_chunk_by_chunk() -> None:
    model = tiny_model()
    batch = batch_of(episode([(9, 3), (9, 4)]), episode([(9, 4)], seed=1))
    module = TokenLogprobs(model, chunk_size=4)
    sizes: list[int] = []
    handle = model.get_output_embeddings().register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[0]))
    with torch.no_grad():
        module(batch.input_ids, batch.loss_mask, batch.groups)
    handle.remove()
    assert sizes == [4, 4, 4]  # 11 tokens, the last chunk rounded up


def test_padding_and_company_change_nothing() -> None:
    """Token ids equal to the pad id are ordinary tokens; neighbours and padding do not leak."""
    model = tiny_model()
    trajectory = episode([(4, 3), (5, 2)])
    trajectory.sequences[0][2] = trajectory.sequences[0][5] = 0
    alone = token_logprobs(model, batch_of(trajectory))
    batch = batch_of(trajectory, episode([(30, 9)], seed=1))
    together = token_logprobs(model, batch)
    torch.testing.assert_close(together[:5], alone, rtol=1e-5, atol=1e-6)
    assert batch.attention_mask.sum(-1).tolist() == [14, 39]


def test_groups_are_padded_separately_and_keep_the_order() -> None:
    model = tiny_model()
    chosen = [Example.from_trajectory(episode([(3, 2)], seed=s)) for s in range(2)]
    rejected = [Example.from_trajectory(episode([(9, 8)], seed=2 + s)) for s in range(2)]
    batch = collate(chosen, rejected)
    assert batch.groups == ((0, 2, 5), (2, 4, 17))
    torch.testing.assert_close(token_logprobs(model, batch), full_logprobs(model, batch), rtol=1e-5, atol=1e-6)


SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    "model",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=3.0)),
        lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25)),
        lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)),
    ],
    ids=["soft-capped", "scaled", "divided"],
)
def test_logit_scaling_of_the_model_is_applied(model: Any) -> None:
    torch.manual_seed(0)
    built = model().eval()
    batch = batch_of(episode([(4, 3), (5, 2)]))
    torch.testing.assert_close(token_logprobs(built, batch), full_logprobs(built, batch), rtol=1e-4, atol=1e-5)


class _Unusual(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits.square()
        return outputs


def test_model_with_an_unknown_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="_Unusual"):
        TokenLogprobs(_Unusual(LlamaConfig(**SHAPE)))


def test_adapters_are_part_of_the_model() -> None:
    model: Any = get_peft_model(tiny_model(), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    batch = batch_of(episode([(4, 3), (5, 2)]))
    with torch.no_grad():
        adapted = token_logprobs(model, batch)
        with model.disable_adapter():
            plain = token_logprobs(model, batch)
        merged = full_logprobs(model.merge_and_unload(), batch)
    torch.testing.assert_close(adapted, merged, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(adapted, plain, atol=1e-2)
    torch.testing.assert_close(plain, full_logprobs(tiny_model(), batch), rtol=1e-5, atol=1e-6)
