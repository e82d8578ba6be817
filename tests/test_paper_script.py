"""The script with the paper's hyper-parameters, as a dry run: the same architectures with tiny dimensions, on a CPU.

One runs alone, the other in the shares of two processes that the script's own configuration of Accelerate makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from agentgym_tlm.config import load
from agentgym_tlm.recipes import ExperimentConfig
from tests.toy_env import tiny_policy

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "benchmark" / "paper_7b.sh"
SHORT = "--expert.num-tasks 4 --{0}.num-tasks 4 --evaluation.num-tasks 2 --max-episode-steps 15 --data-dir embedded"


ACCELERATE = """#!{python}
import sys
from accelerate.commands.accelerate_cli import main

at = sys.argv.index("-m")
sys.argv[at:at] = ["-m", "tests.accelerators"]
main()
"""
"""``accelerate`` as it is, on two CPUs; see tests/accelerators.py."""


@pytest.mark.parametrize(
    ("kind", "shape", "trainer", "processes"),
    [(LlamaForCausalLM, LlamaConfig, "tlm-dre", 1), (Qwen2ForCausalLM, Qwen2Config, "dpo", 2)],
)
def test_dry_run(kind: Any, shape: Any, trainer: str, processes: int, tmp_path: Path) -> None:
    """An option that does not exist would be found after the GPUs were rented."""
    policy = tiny_policy(max_new_tokens=4)
    policy.model = kind(
        shape(
            vocab_size=len(policy.tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
        )
    )
    policy.save(tmp_path / "policy")
    command = ["bash", str(SCRIPT), str(tmp_path / "policy"), "ALFWorld-v0", trainer]
    options = [*SHORT.format(trainer).split(), "--output-dir", str(tmp_path / "run")]
    environment = {**os.environ, "PROCESSES": str(processes), "PYTHONPATH": str(SCRIPT.parents[2])}
    if processes == 1:
        environment["LAUNCH"] = sys.executable
    else:
        (tmp_path / "accelerate").write_text(ACCELERATE.format(python=sys.executable))
        (tmp_path / "accelerate").chmod(0o755)
        environment.update(PATH=f"{tmp_path}:{environment['PATH']}", OMP_NUM_THREADS="1")
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = load(ExperimentConfig.with_trainer(trainer)(), tmp_path / "run" / "config.yaml")
    assert (config.sft.num_train_epochs, config.sft.learning_rate, config.sft.gradient_accumulation_steps) == (
        3,
        1e-5,
        64 // processes,
    )
    method = config.method
    assert (method.num_train_epochs, method.learning_rate, method.gradient_accumulation_steps) == (
        1,
        7e-7,
        32 // processes,
    )
    assert (tmp_path / "run" / "results.json").is_file()
    sharded = list((tmp_path / "run" / trainer).glob("checkpoint-*/pytorch_model_fsdp_0"))
    assert bool(sharded) == (processes > 1)
