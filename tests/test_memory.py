"""The estimate of what training takes, against what PyTorch really keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, PretrainedConfig, Qwen2Config, Qwen2ForCausalLM

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.memory import count_weights, training_memory
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.lora import with_adapters

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def kept_bytes(model: Any, tokens: int, *, bf16: bool) -> int:
    """What the body of a model keeps for the backward pass, without its weights."""
    kept: dict[int, tuple[torch.Tensor, int]] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (tensor, storage.nbytes())
        return tensor

    ids = torch.randint(0, SHAPE["vocab_size"], (2, tokens // 2))
    noting = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with noting, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        model.model(input_ids=ids, use_cache=False)
    return sum(size for _, size in kept.values())


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    ("kind", "config"), [(LlamaForCausalLM, LlamaConfig(**SHAPE)), (Qwen2ForCausalLM, Qwen2Config(**SHAPE))]
)
def test_activations_are_those_that_pytorch_keeps(kind: Any, config: PretrainedConfig, bf16: bool) -> None:
    """Who rents a GPU by the estimate must not run out of memory on it."""
    model = kind(config)
    more, fewer = (training_memory(config, tokens=tokens, bf16=bf16).activations for tokens in (1024, 512))
    expected = kept_bytes(model, 1024, bf16=bf16) - kept_bytes(model, 512, bf16=bf16)
    assert more - fewer == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("tied", [False, True])
def test_weights_gradients_and_optimizer_are_counted_exactly(tied: bool) -> None:
    config = LlamaConfig(**SHAPE, tie_word_embeddings=tied)
    total = sum(parameter.numel() for parameter in LlamaForCausalLM(config).parameters())
    assert count_weights(config) == total
    memory = training_memory(config, tokens=64)
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * total, 4 * total, 8 * total)
    quarter = training_memory(config, tokens=64, shards=4)
    assert (quarter.gradients, quarter.optimizer) == (total, 2 * total)
    layers = LlamaForCausalLM(config).model.layers
    matrices = [sum(p.numel() for p in layer.parameters() if p.ndim == 2) for layer in layers]
    assert quarter.weights == total + 8 * (total - sum(matrices[1:]))  # gathered: one layer and all else


def test_adapters_are_counted_exactly() -> None:
    """With LoRA only the adapters have gradients and moments."""
    pytest.importorskip("peft")
    config = LlamaConfig(**SHAPE)
    adapted = with_adapters(LlamaForCausalLM(config), LoraArguments(r=8))
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    memory = training_memory(config, tokens=64, lora_r=8)
    assert (memory.gradients, memory.optimizer) == (4 * trained, 8 * trained)
    assert memory.weights == 4 * (count_weights(config) + trained)


def test_checkpointing_keeps_one_layer_and_the_inputs_of_all() -> None:
    config = LlamaConfig(**{**SHAPE, "num_hidden_layers": 12})
    whole, saved = (training_memory(config, tokens=512, gradient_checkpointing=on).activations for on in (False, True))
    assert saved < whole / 4


def test_other_shapes_are_refused() -> None:
    """A wrong number would be worse than none."""
    with pytest.raises(ConfigError, match="not shaped like Llama"):
        training_memory(GPT2Config(), tokens=64)


def test_adapters_leave_a_half_precision_model_as_it_is() -> None:
    config = LlamaConfig(**SHAPE, dtype="bfloat16")
    half, whole = (training_memory(config, tokens=64, lora_r=rank) for rank in (8, None))
    adapters = half.gradients // 4
    assert half.weights == 2 * count_weights(config) + 4 * adapters
    assert whole.weights == 4 * count_weights(config)
    assert whole.activations - half.activations == 2 * count_weights(config)  # autocast has nothing to cast
    assert training_memory(config, tokens=64, lora_r=8, shards=2).weights >= 2 * (count_weights(config) + adapters)
