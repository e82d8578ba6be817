"""What every trainer can be told; names follow TRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.ranges import COUNT, SEED, check_ranges


@dataclass(frozen=True, kw_only=True)
class LoraArguments:
    """Low-rank adapters through peft (extra lora); the model without its adapter stays what it was."""

    r: int = 16
    """Rank."""
    lora_alpha: int = 32
    """Scale of the update, divided by the rank."""
    lora_dropout: float = 0.0
    """Dropout on the adapter's input."""
    target_modules: str = "all-linear"
    """Module names, separated by commas, or all-linear."""

    def __post_init__(self) -> None:
        check_ranges(self, r=COUNT, lora_alpha=COUNT, lora_dropout="[0, 1)")


@dataclass(frozen=True, kw_only=True)
class TrainingArguments:
    """Options of the training loop; every algorithm adds its own.

    An update learns from per_device_train_batch_size x gradient_accumulation_steps x processes examples.
    """

    output_dir: Annotated[str, tyro.conf.Suppress] = "run"
    """Run folder: metrics, checkpoints, collected data, the trained policy."""
    learning_rate: float = 1e-5
    """Peak learning rate of AdamW."""
    per_device_train_batch_size: int = 8
    """Examples (trajectories or pairs) per forward pass and process."""
    gradient_accumulation_steps: int = 1
    """Forward passes per update and process."""
    num_train_epochs: float = 1.0
    """Passes over the data."""
    max_steps: int = -1
    """Updates per iteration; overrides num_train_epochs when positive."""
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "cosine"
    """Shape of the learning rate after the warm-up."""
    warmup_ratio: float = 0.03
    """Share of the updates over which the learning rate rises from 0 (all shapes but constant), but not all of them."""
    weight_decay: float = 0.0
    """AdamW decay of matrices; biases and norms are never decayed."""
    adam_beta1: float = 0.9
    """AdamW first-moment decay."""
    adam_beta2: float = 0.999
    """AdamW second-moment decay."""
    adam_epsilon: float = 1e-8
    """AdamW epsilon."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    """Autocast precision. What is trained is float32 in any case, half-precision weights are upcast; the base model of
    LoRA's adapters stays as it was loaded."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    packing: bool = False
    """Put short sequences into one row, each seeing itself alone: less padding, but no faster on a CPU."""
    lora: LoraArguments | None = None
    """Train adapters instead of all weights."""
    seed: Annotated[int, tyro.conf.Suppress] = 0
    """Seed of data order, dropout and sampling."""
    logging_steps: int = 10
    """Updates between two lines of metrics.jsonl; a checkpoint ends a line, too."""
    save_steps: int | None = 500
    """Updates between two checkpoints; all but the online methods save one more at the end. None: no checkpoints."""
    save_total_limit: int | None = 2
    """Newest checkpoints to keep; None: all."""
    eval_steps: int | None = None
    """Updates between two evaluations; None: none while training."""
    report_to: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Accelerate trackers: tensorboard, wandb, trackio, ..."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            learning_rate="(0, inf)",
            per_device_train_batch_size=COUNT,
            gradient_accumulation_steps=COUNT,
            num_train_epochs="(0, inf)",
            max_steps="[-1, inf)",
            warmup_ratio="[0, 1]",
            weight_decay="[0, inf)",
            adam_beta1="[0, 1)",
            adam_beta2="[0, 1)",
            adam_epsilon="[0, inf)",
            max_grad_norm="(0, inf]",
            seed=SEED,
            logging_steps=COUNT,
            save_steps=COUNT,
            save_total_limit=COUNT,
            eval_steps=COUNT,
        )
        for tracker in self.report_to:
            if tracker not in LOGGER_TYPE_TO_CLASS:
                raise ConfigError(
                    f"report_to: there is no tracker {tracker!r}; Accelerate has {', '.join(LOGGER_TYPE_TO_CLASS)}"
                )
            if tracker not in map(str, get_available_trackers()):
                raise ConfigError(f"report_to: {tracker} is not installed: install its package, or leave it out")


RUN_INDEPENDENT = frozenset(
    {"output_dir", "logging_steps", "save_steps", "save_total_limit", "eval_steps", "report_to"}
)
"""Options that a resumed run may change, because they do not change what is learnt."""
