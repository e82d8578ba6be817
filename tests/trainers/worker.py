"""One small training run in a process of its own: it can kill itself at a step, resume, or be one of several.

python -m tests.trainers.worker {sft|dpo|dmpo|dil|kto|tlm-dre} FOLDER [--kill-at STEP] [--resume] [--accumulate N]
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping, Sequence

import torch

from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.pairs import build_pairs
from agentgym_tlm.trainers.methods import METHODS, Method
from agentgym_tlm.trainers.preference import PreferenceTrainer
from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer
from tests.trainers.toys import episode, tiny_policy


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=["sft", "dpo", "dmpo", "dil", "kto", "tlm-dre"])
    parser.add_argument("folder")
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--interrupt-at", type=int, default=-1)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    policy = tiny_policy()
    policy.model.config.attention_dropout = options.dropout
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = options.dropout

    def on_log(metrics: Mapping[str, float]) -> None:
        if metrics["step"] == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if metrics["step"] == options.interrupt_at:
            raise KeyboardInterrupt

    expert = [episode([(5, 3 + s), (4, 2)], seed=s, task=f"task{s}", won=True) for s in range(6)]
    failed = [episode([(5, 2), (4, 5), (3, 1 + s)], seed=9 + s, task=f"task{s}") for s in range(6)]
    shared = {
        "output_dir": options.folder,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 2 if options.trainer == "kto" else 1,
        "gradient_accumulation_steps": options.accumulate,
        "max_steps": 8,
        "logging_steps": 1,
        "save_steps": 3,
    }
    sft = Method(SFTArguments, SFTTrainer)
    arguments, kind = sft if options.trainer == "sft" else METHODS[options.trainer]
    trainer = kind(policy, EnvArgs(), arguments(**shared), on_log=on_log)
    if options.resume:
        trainer.resume()
    if isinstance(trainer, PreferenceTrainer):
        trainer.train_pairs(build_pairs(expert, failed)[0])
    elif isinstance(trainer, SFTTrainer):
        trainer.train_trajectories(expert)
    trainer.save()


if __name__ == "__main__":
    main()
