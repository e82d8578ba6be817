"""SFT and two iterations of tlm-DRE, with sampling, evaluation, checkpoints and a resumed copy, of any processes.

python -m tests.trainers.sharded FOLDER [--accumulate N]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, set_seed

from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT, build_tiny, tokenizer_texts
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.args import LoraArguments
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, TLMDRETrainer
from tests.trainers.crossing import ENVS, won

CHECKPOINTING = {"gradient_checkpointing": True}
KINDS: dict[str, tuple[Any, Any, bool, dict[str, Any], dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, False, CHECKPOINTING, CHECKPOINTING),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, True, {"mixed_precision": "bf16"}, {"lora": LoraArguments(r=4)}),
}
"""Architecture, whether embeddings and head are tied, options of SFT and of tlm-DRE."""


def untrained(kind: str) -> LanguageModelPolicy:
    """A policy of two layers."""
    model, shape, tied, _, _ = KINDS[kind]
    expert = list(rollout(ExpertPolicy(format=TINY_FORMAT), "Crossing-v0"))
    policy = build_tiny(tokenizer_texts(expert), hidden_size=32, layers=2, max_context=128, max_new_tokens=12)
    set_seed(0)
    config = shape(
        vocab_size=len(policy.tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    policy.model = model(config)
    return policy


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args(argv)
    for kind in KINDS:
        run(kind, options.folder / kind, options.accumulate)


def run(kind: str, folder: Path, accumulate: int) -> None:
    shared: dict[str, Any] = {
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": accumulate,
        "max_steps": 2,
        "logging_steps": 1,
        "save_steps": 1,
        "save_total_limit": None,
    }
    *_, sft_options, options = KINDS[kind]
    sft = SFTTrainer(untrained(kind), ENVS, SFTArguments(output_dir=str(folder / "sft"), **shared, **sft_options))
    sft.on_log = lambda _: note_shares(sft, folder)
    sft.train()
    policy = sft.save()

    def aligned(name: str, *, resume: bool = False) -> None:
        args = TLMDREArguments(
            output_dir=str(folder / name), num_iterations=2, num_tasks=4, eval_steps=1, **shared, **options
        )
        loaded = LanguageModelPolicy.load(policy, device="cpu")
        trainer = TLMDRETrainer(loaded, ENVS, args, evaluate=lambda policy: {"won": len(won(policy))})
        if resume:
            trainer.resume()
        assert (trainer.state.iteration, trainer.state.step) == ((1, 3) if resume else (0, 0))
        trainer.train()
        trainer.save()

    aligned("whole")
    if PartialState().is_main_process:
        left_out = shutil.ignore_patterns("policy", "adapter", "checkpoint-4")
        shutil.copytree(folder / "whole", folder / "resumed", ignore=left_out)
    PartialState().wait_for_everyone()
    aligned("resumed", resume=True)


def note_shares(trainer: SFTTrainer, folder: Path) -> None:
    """Write down which share of the weights, and of AdamW's moments, this process holds while it learns."""
    weights = dict(trainer.accelerator.unwrap_model(trainer._module).named_parameters()).values()
    moments = [state["exp_avg"] for state in trainer._optimizer.state.values()]
    total = sum(parameter.numel() for parameter in weights)
    held = [
        sum(tensor.to_local().numel() if isinstance(tensor, DTensor) else tensor.numel() for tensor in tensors) / total
        for tensors in (weights, moments)
    ]
    stubs = all(parameter.untyped_storage().nbytes() <= 8 for parameter in trainer.policy.model.parameters())
    (folder / "shares.json").write_text(json.dumps([*held, stubs]))


if __name__ == "__main__":
    main()
