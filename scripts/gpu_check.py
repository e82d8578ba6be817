"""What ``gpu_check.sh`` runs: training and playing on a GPU with a random model the size of Qwen2-0.5B.

Measured on ALFWorld-v0's generated games, with the package's own trainers and rollout, nothing stripped:

1. ``loss``: losses and the gradient norm of one small batch, in float32 and in bf16 autocast, against a CPU's float32;
2. ``rollout``: 64 episodes side by side with sampled responses, in bfloat16 and in float32, and how far the recorded
   log-probs are from those that the trainers compute;
3. ``sft``, ``tlm-dre``, ``grpo``: updates in bf16 autocast, of all weights and of LoRA's adapters: tokens per second
   over all updates but the first ones, and the peak of the memory.

The tokenizer is word-level, padded to a vocabulary of 151,936 ids, with ChatML tokens. A random model writes no action
and never ends its turn: every response is as long as it may be, no draft comes true, and all of GRPO's episodes fail
alike, so that its advantages are 0. Speed and memory do not depend on that; ``loss`` has advantages of its own.

The steps run one after another in a process of their own. Should one fail or take too long, the process is started
again behind it, and the others' numbers are kept: ``gpu_check.jsonl`` gets every result at once, ``gpu_check.json``
and ``gpu_check.md`` all of them in the end, ``worker.log`` what the process had to say. The exit code is 1 if a step
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Result = dict[str, Any]

TRAININGS = [f"{method}{suffix}" for method in ("sft", "tlm-dre", "grpo") for suffix in ("", "-lora")]
STEPS = ["rollout-bfloat16", *TRAININGS[::2], "loss", *TRAININGS[1::2], "rollout-float32"]
"""The more important ones first."""
SETUP_SECONDS = 100
STEP_SECONDS = 75


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check"), help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP", help="steps to run")
    parser.add_argument("--seconds", type=float, default=285, help="time for all of it")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, with tiny dimensions")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    results = Supervisor(options.output, options.dry_run, options.seconds).run(options.only)
    (options.output / "gpu_check.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "gpu_check.md").write_text(report(results))
    print(report(results), flush=True)
    return int(any("error" in result for result in results.values()))


class Supervisor:
    """Starts the worker, again behind a step that failed, and stops one that takes too long."""

    def __init__(self, folder: Path, dry_run: bool, seconds: float) -> None:
        self._folder = folder
        self._events = folder / "gpu_check.jsonl"
        self._dry_run = dry_run
        self._end = time.monotonic() + seconds
        self._results: dict[str, Result] = {}

    def run(self, steps: list[str]) -> dict[str, Result]:
        """Results by step; those of a step that failed have an ``error`` only."""
        self._events.unlink(missing_ok=True)
        (self._folder / "worker.log").unlink(missing_ok=True)
        left = list(steps)
        while left and time.monotonic() < self._end:
            failure = self._work(left)
            left = [step for step in left if step not in self._results]
            if failure and left:
                began = left[0] in self._begun()
                self._note(left[0] if began else "setup", {"error": failure})
                if not began:
                    break
                left.pop(0)
        for step in left:
            self._note(step, {"error": "not run"})
        return self._results

    def _work(self, steps: list[str]) -> str:
        """Let one process do as many of ``steps`` as it can; why it did not do all, or nothing."""
        program = Path(__file__).with_name("gpu_check_steps.py")
        command = [sys.executable, str(program), *steps, "--events", str(self._events)]
        environment = dict(os.environ)
        if self._dry_run:
            command.append("--dry-run")
            environment |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        with (self._folder / "worker.log").open("a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        since, done, limit = time.monotonic(), len(self._begun()), SETUP_SECONDS
        while process.poll() is None:
            time.sleep(0.2)
            self._take_results()
            if len(self._begun()) > done:
                since, done, limit = time.monotonic(), len(self._begun()), STEP_SECONDS
            out_of_time = time.monotonic() > self._end
            if out_of_time or time.monotonic() > since + limit:
                process.kill()
                process.wait()
                self._take_results()
                return "out of time" if out_of_time else f"took more than {limit} seconds"
        self._take_results()
        if process.returncode == 0:
            return ""
        said = (self._folder / "worker.log").read_text(errors="replace").strip().splitlines()
        return said[-1][:300] if said else f"exit code {process.returncode}"

    def _read(self) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        return [json.loads(line) for line in self._events.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def _begun(self) -> list[str]:
        return [event["step"] for event in self._read() if "result" not in event]

    def _take_results(self) -> None:
        for event in self._read():
            if "result" in event and event["step"] not in self._results:
                self._note(event["step"], event["result"])

    def _note(self, step: str, result: Result) -> None:
        self._results[step] = result
        shown = {name: value for name, value in result.items() if not isinstance(value, dict)}
        print(f"{step}: {json.dumps(shown)}", flush=True)


def report(results: Mapping[str, Result]) -> str:
    """The results as Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in results.get("machine", {}).items())
    lines = [machine, "", "| | tokens per second | peak memory, GiB | tokens per update | |", "| --- " * 5 + "|"]
    for step in STEPS:
        result = results.get(step)
        if result is None or step == "loss":
            continue
        if "error" in result:
            lines.append(f"| {_title(step)} | failed | | | {result['error'].replace('|', '/')} |")
            continue
        note = ""
        if result.get("logprob_error") is not None:
            note = f"log-probs differ from a trainer's by {result['logprob_error']:.1g} on average"
        elif result.get("rollout_kl") is not None:
            note = f"rollout_kl {result['rollout_kl']:.1g}"
        peak = "" if result["peak_gib"] is None else f"{result['peak_gib']:.1f}"
        update = f"{result['tokens_per_update']:,.0f}" if "tokens_per_update" in result else ""
        lines.append(f"| {_title(step)} | {result['tokens_per_second']:,.0f} | {peak} | {update} | {note} |")
    losses = results.get("loss", {})
    if "losses" in losses:
        lines += ["", *_loss_table(losses["losses"])]
    elif losses:
        lines += ["", f"Losses against the CPU's: failed, {losses['error']}"]
    if "setup" in results:
        lines += ["", f"The set-up failed: {results['setup']['error']}"]
    return "\n".join(lines) + "\n"


def _title(step: str) -> str:
    if step.startswith("rollout"):
        return f"rollout, {step.partition('-')[2]} weights, generated tokens"
    return f"{step.removesuffix('-lora')}, {'LoRA' if step.endswith('-lora') else 'all weights'}"


def _loss_table(losses: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Values on the CPU, and how far, relatively, those on the device are from them."""
    cpu, *others = losses
    lines = ["| | " + " | ".join([cpu, *others]) + " |", "| --- " * (len(losses) + 1) + "|"]
    for name, expected in losses[cpu].items():
        if name == "log-prob error":
            shown = ["0", *(f"{losses[other][name]:.2g}" for other in others)]
        else:
            shown = [f"{expected:.6f}", *(f"{losses[o][name] / expected - 1:+.2e}" for o in others)]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
