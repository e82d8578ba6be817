"""SFT and two iterations of tlm-DRE, with sampling, evaluation, checkpoints and a resumed copy, of one or more processes.

python -m tests.trainers.sharded FOLDER [--accumulate N]
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, set_seed

from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.policies.tiny import TINY_FORMAT, build_tiny, tokenizer_texts
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from agentgym_tlm.trainers.tlm_dre import TLMDREArguments, TLMDRETrainer
from tests.trainers.crossing import ENVS, won

KINDS = {"llama": (LlamaForCausalLM, LlamaConfig, False), "qwen2": (Qwen2ForCausalLM, Qwen2Config, True)}
"""With embeddings of its own for the head, and with tied ones."""


def untrained(kind: str) -> LanguageModelPolicy:
    """A policy of two layers."""
    model, shape, tied = KINDS[kind]
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
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    options = parser.parse_args(argv)
    for kind in options.kinds:
        run(kind, options.folder / kind, options.accumulate)


def run(kind: str, folder: Path, accumulate: int) -> None:
    shared: dict[str, Any] = {
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": accumulate,
        "max_steps": 3,
        "logging_steps": 1,
        "save_steps": 1,
        "save_total_limit": None,
        "gradient_checkpointing": kind == "llama",
    }
    sft = SFTTrainer(untrained(kind), ENVS, SFTArguments(output_dir=str(folder / "sft"), **shared))
    sft.train()
    policy = sft.save()

    def trainer(name: str) -> TLMDRETrainer:
        args = TLMDREArguments(output_dir=str(folder / name), num_iterations=2, num_tasks=6, eval_steps=2, **shared)
        return TLMDRETrainer(
            LanguageModelPolicy.load(policy, device="cpu"), ENVS, args, evaluate=lambda p: {"won": len(won(p))}
        )

    whole = trainer("whole")
    whole.train()
    whole.save()
    if PartialState().is_main_process:
        shutil.copytree(folder / "whole", folder / "resumed", ignore=shutil.ignore_patterns("policy", "checkpoint-[56]"))
    PartialState().wait_for_everyone()
    resumed = trainer("resumed")
    resumed.resume()
    assert resumed.state.iteration == 1
    resumed.train()
    resumed.save()


if __name__ == "__main__":
    main()
