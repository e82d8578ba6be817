"""Training with weights, gradients and optimizer state in shares: FSDP2 or DeepSpeed's ZeRO-2, through Accelerate.

What is trained is a copy of the policy's model; Accelerate shares it out. The policy's own model stays an ordinary one:
while the copy learns its weights are given up, and before it plays, scores or is saved they are put together again. So
every process plays whole and alone, at its own pace, and no episode waits for a share of another process.

Deviations from what Accelerate does by itself:

1. Shares are float32 whatever the precision, and autocast does the rest. FSDP2's own policy would round the log-probs,
   DeepSpeed's the weights that the policy plays with. Casts are not kept from one layer to another.
2. Gradients are shared out after every backward pass, not once per update: whole ones would take what sharding saves.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.trainers.args import TrainingArguments

PATIENCE = timedelta(days=1)
"""How long processes wait for each other: one of them may play for hours."""


class Sharding:
    """How the processes of an ``accelerator`` share a model; ``on`` is False when each has all of it.

    Raises ConfigError for a way of sharding that this package does not train correctly with.
    """

    def __init__(self, accelerator: Accelerator, args: TrainingArguments) -> None:
        self.accelerator = accelerator
        self.args = args
        self.fsdp = accelerator.distributed_type == DistributedType.FSDP
        self.deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
        self.on = self.fsdp or self.deepspeed
        if self.on and args.mixed_precision == "fp16":
            raise ConfigError("mixed_precision=fp16 does not work with FSDP or DeepSpeed: use bf16")
        if self.fsdp:
            self._configure_fsdp(accelerator.state.fsdp_plugin)
        if self.deepspeed:
            self._configure_deepspeed(accelerator.state.deepspeed_plugin)

    def _configure_fsdp(self, plugin: Any) -> None:
        if plugin.fsdp_version != 2:
            raise ConfigError("FSDP version 1 is not supported: set fsdp_version: 2 in the Accelerate configuration")
        if plugin.activation_checkpointing:
            raise ConfigError("use --gradient-checkpointing instead of fsdp_activation_checkpointing")
        if plugin.cpu_ram_efficient_loading:
            raise ConfigError("every process loads the whole model: set fsdp_cpu_ram_efficient_loading: false")
        plugin.mixed_precision_policy = None

    def _configure_deepspeed(self, plugin: Any) -> None:
        if plugin.zero_stage != 2:
            raise ConfigError(
                f"DeepSpeed's ZeRO stage {plugin.zero_stage} is not supported: its processes would wait for each other "
                "where they compute different numbers of tokens. Set zero_stage: 2, or share the weights with FSDP2"
            )
        norm = self.args.max_grad_norm
        plugin.deepspeed_config.update(
            {
                "train_micro_batch_size_per_gpu": self.args.per_device_train_batch_size,
                "gradient_accumulation_steps": 1,  # the loop weights and sums micro-batches itself
                "gradient_clipping": 0.0 if math.isinf(norm) else norm,
                "bf16": {"enabled": False},
            }
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """The arguments' precision, as a context or a decorator."""
        if not self.on:
            context: AbstractContextManager[Any] = self.accelerator.autocast()
            return context
        enabled = self.args.mixed_precision == "bf16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def accumulating(self, module: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """Where the backward pass of one micro-batch runs, the ``last`` one of an update or one before."""
        if self.deepspeed:
            self.accelerator.sync_gradients = last  # DeepSpeed's engine steps in the backward pass when it is set
        context: AbstractContextManager[Any] = self.accelerator.no_sync(module)
        return nullcontext() if last or self.on else context

    def module(self, model: nn.Module, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """What to prepare and train so that ``model`` learns: it or, to be shared out, a copy, in its wrapper."""
        if not self.on:
            return wrap(model)
        trained = copy.deepcopy(model).to(self.accelerator.device).float()
        module = wrap(trained)
        cast: Any = self.autocast()
        module.forward = cast(module.forward)
        return module

    def give_up(self, model: nn.Module) -> None:
        """Free the weights of the policy's ``model``; only their shapes are left until :meth:`put_together`."""
        if not self.on:
            return
        for parameter in model.parameters():
            parameter.data = parameter.data.new_full((), math.nan).expand(parameter.shape)

    def put_together(self, model: nn.Module, prepared: nn.Module) -> None:
        """Make the ``prepared`` module's weights those of the policy's ``model``; call on every process.

        Does nothing for a model whose weights were not given up.
        """
        if not self.on or all(parameter.is_contiguous() for parameter in model.parameters()):
            return
        trained = dict(self.accelerator.unwrap_model(prepared).model.named_parameters())
        for name, parameter in model.named_parameters():
            weights = torch.empty_like(parameter, memory_format=torch.contiguous_format)
            parameter.data = weights.copy_(_whole(trained[name].detach()))

    def grad_norm(self, parameters: Any) -> Tensor | float:
        """Clip the gradients to ``max_grad_norm``; their norm before."""
        norm = self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)
        return _whole(norm) if isinstance(norm, Tensor) else float(norm)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
