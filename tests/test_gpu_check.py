"""The GPU check as a dry run: GPU time is rented by the minute, and a mistake in the script would cost all of it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.sh"


def test_every_step_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SCRIPT), "--dry-run", "--output", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, Any] = json.loads((tmp_path / "gpu_check.json").read_text())
    assert len(results) == 10
    trained = [result for name, result in results.items() if "tlm-dre" in name or "sft" in name or "grpo" in name]
    assert len(trained) == 6
    assert all(result["tokens_per_second"] > 0 for result in trained)
    assert results["rollout-float32"]["logprob_error"] < 1e-4
    losses = results["loss"]["losses"]
    assert losses["float32"] == losses["cpu float32"]
    assert 0 < losses["bf16 autocast"]["log-prob error"] < 0.05
    assert "| tlm-dre, LoRA |" in (tmp_path / "gpu_check.md").read_text()
    assert "failed" not in done.stdout


def test_a_step_that_fails_takes_no_other_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be measured is measured, and the table says what could not."""
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parents[1]))
    script = runpy.run_path(str(SCRIPT.with_suffix(".py")))
    results = script["Supervisor"](tmp_path, True, 100.0).run(["no-such-step", "rollout-float32"])
    assert results["no-such-step"] == {"error": "KeyError: 'no-such-step'"}
    assert results["rollout-float32"]["tokens"] > 0
    shown = script["report"]({**results, "sft-lora": {"error": "out of | memory"}})
    assert "| sft, LoRA | failed | | | out of / memory |" in shown
    assert "| rollout, float32 weights, generated tokens |" in shown
