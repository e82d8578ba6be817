"""How much memory training a model takes, from its shape alone.

For N weights, n of which are trained, T tokens per forward pass, and hidden width h, key/value width k, feed-forward
width m, L layers of a Llama-like model:

    weights     4 N        float32; the optimizer steps in full precision, autocast computes in bfloat16
                2 N + 4 n  with LoRA on a model that was loaded in half precision, of which nothing is cast
    gradients   4 n
    optimizer   8 n        AdamW's two moments
    activations T L (32 h + 8 k + 16 m)   float32
                T L (30 h + 4 k +  8 m)   bfloat16 autocast, and 2 N of cast weights
                T L 4 h, and one layer of the above, with gradient checkpointing
    logits      3 chunks of at most 256 MiB, see logprobs.TokenLogprobs

Activations are what the backward pass keeps, counted with PyTorch's saved-tensor hooks on Llama and Qwen2 with SDPA
attention; a test counts again. Under FSDP2 every device holds its share of weights, gradients and optimizer state, the
activations of its own batch, and, gathered, one layer, the embeddings and the head, with their gradients; cast weights
are those of one layer with gradient checkpointing.
Under DeepSpeed's ZeRO-2 it holds all weights, and the same shares of the rest. The reference needs no memory: it is
scored once, before training. What playing takes is not counted: while a sharded policy plays, every device holds all
its weights once more, in float32 (LoRA's base model as it was loaded), and the caches of its episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.logprobs import LOGITS_PER_CHUNK

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes per device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def training_memory(
    config: PretrainedConfig,
    *,
    tokens: int,
    bf16: bool = True,
    gradient_checkpointing: bool = False,
    lora_r: int | None = None,
    shards: int = 1,
) -> TrainingMemory:
    """What one of ``shards`` devices holds at the peak of an update with ``tokens`` tokens per forward pass.

    ``lora_r``: the rank of adapters on all linear layers of the blocks, which alone are trained then. Raises
    ConfigError for a model that is not shaped like Llama.
    """
    text = config.get_text_config()
    try:
        h, m, layers = text.hidden_size, text.intermediate_size, text.num_hidden_layers
        heads = text.num_attention_heads
        k = getattr(text, "num_key_value_heads", heads) * (getattr(text, "head_dim", None) or h // heads)
    except AttributeError as error:
        raise ConfigError(f"{type(config).__name__} is not shaped like Llama ({error}): no estimate") from error
    total = count_weights(config)
    q = heads * (getattr(text, "head_dim", None) or h // heads)
    adapters = 0 if lora_r is None else layers * lora_r * (2 * (h + q) + 2 * (h + k) + 3 * (h + m))
    trained = total if lora_r is None else adapters
    layer = tokens * ((30 * h + 4 * k + 8 * m) if bf16 else (32 * h + 8 * k + 16 * m))
    activations = layer + tokens * layers * 4 * h if gradient_checkpointing else layers * layer
    per_layer = 2 * h * (q + k) + 3 * h * m
    half = lora_r is not None and shards == 1 and is_half(config.dtype)  # shares are float32
    cast = 2 * (per_layer if shards > 1 and gradient_checkpointing else total) if bf16 and not half else 0
    gathered = (4 if lora_r else 8) * (total - (layers - 1) * per_layer) if shards > 1 else 0
    positions = min(tokens, max(1, LOGITS_PER_CHUNK // text.vocab_size))
    return TrainingMemory(
        weights=((2 if half else 4) * total + 4 * adapters) // shards + gathered,
        gradients=4 * trained // shards,
        optimizer=8 * trained // shards,
        activations=activations + cast,
        logits=3 * 4 * positions * text.vocab_size,
    )


def is_half(dtype: torch.dtype | str | None) -> bool:
    """Whether AdamW's steps would be lost in the rounding of weights of ``dtype``."""
    return str(dtype).removeprefix("torch.") in ("float16", "bfloat16")


def count_weights(config: PretrainedConfig) -> int:
    """Number of weights of a causal language model, tied ones once; nothing is allocated."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())
