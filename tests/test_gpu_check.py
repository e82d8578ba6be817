"""The GPU check as a dry run: GPU time is rented by the minute, and a mistake in the script would cost all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.sh"


def check(folder: Path, *options: str, path: str = "") -> tuple[int, str, dict[str, Any]]:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SCRIPT), "--dry-run", "--output", str(folder), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, json.loads((folder / "gpu_check.json").read_text())


def test_every_step_runs(tmp_path: Path) -> None:
    code, shown, results = check(tmp_path)
    assert code == 0, shown
    assert len(results) == 10
    trained = [result for name, result in results.items() if "tlm-dre" in name or "sft" in name or "grpo" in name]
    assert len(trained) == 6
    assert all(result["tokens_per_second"] > 0 for result in trained)
    assert results["rollout-float32"]["logprob_error"] < 1e-4
    losses = results["loss"]["losses"]
    assert losses["float32"] == losses["cpu float32"]
    assert 0 < losses["bf16 autocast"]["log-prob error"] < 0.05
    assert "| tlm-dre, LoRA |" in (tmp_path / "gpu_check.md").read_text()
    assert "failed" not in shown


def test_a_step_that_fails_takes_no_other_along(tmp_path: Path) -> None:
    """A machine without peft still says what it can."""
    (tmp_path / "peft.py").write_text("raise ImportError('not here')\n")
    steps = ("--only", "sft-lora", "rollout-float32")
    code, shown, results = check(tmp_path / "out", *steps, path=str(tmp_path))
    assert code == 1, shown
    assert results["sft-lora"] == {"error": "ImportError: not here"}
    assert results["rollout-float32"]["tokens"] > 0
    assert "| sft, LoRA | failed |" in shown
