"""Low-rank adapters on a policy's model, through peft."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from agentgym_tlm.errors import DependencyError
from agentgym_tlm.trainers.args import LoraArguments


def merged(model: Any) -> PreTrainedModel:
    """The model with any adapters made part of its weights, in place."""
    plain: PreTrainedModel = model if isinstance(model, PreTrainedModel) else model.merge_and_unload()
    return plain


def with_adapters(model: PreTrainedModel, lora: LoraArguments) -> Any:
    """The model with fresh adapters, which are what is trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise DependencyError('LoRA needs peft: pip install "agentgym-tlm[lora]"') from error
    targets: str | list[str] = (
        lora.target_modules if lora.target_modules == "all-linear" else lora.target_modules.split(",")
    )
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
