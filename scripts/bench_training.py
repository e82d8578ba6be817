"""Training speed and memory against TRL on the same pairs, with the same model and equal losses.

Every measurement runs in a process of its own: the same random weights (Qwen2, float32), the same trajectories (a
prompt, then turns of an observation and a shorter response; only responses are trained on), the same batches, AdamW
steps on the whole data. Speed is tokens of the data, prompts and observations included, per second of processor time;
the reference pass counts. Memory is the growth of the process's peak above what it had before training. TRL is told
what our mask is by its data collator, as its own multi-turn masks need a chat template with markers.

    python scripts/bench_training.py                # the table in the README
    python scripts/bench_training.py --only wide-dpo --repeats 1

Shapes: ``tiny`` is the policy that learns from scratch on ALFWorld; ``wide`` has a vocabulary of 151,936 and
ALFWorld-like trajectories, a fifth of whose tokens are responses.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

LEARNING_RATE = 1e-4
EPOCHS = 2
BETA = 0.1


@dataclass(frozen=True)
class Shape:
    """A model, and how long its trajectories are."""

    vocab_size: int
    hidden_size: int
    layers: int
    prompt: int = 200
    observation: int = 40
    response: int = 10
    turns: tuple[int, int] = (8, 20)  # of a chosen and, at most, of a rejected trajectory
    pairs: int = 8
    micro_batch: int = 2


SHAPES = {
    "tiny": Shape(vocab_size=1600, hidden_size=128, layers=4, prompt=90, observation=24, response=20, pairs=32),
    "wide": Shape(vocab_size=151_936, hidden_size=256, layers=4, pairs=4),
    **{
        f"wide-{turns}-turns": Shape(vocab_size=151_936, hidden_size=256, layers=4, turns=(turns, turns), pairs=2)
        for turns in (10, 20, 40)
    },
}
CASES = [("tiny", "dpo"), ("tiny", "sft"), ("wide", "dpo"), ("wide", "sft")] + [
    (f"wide-{turns}-turns", "dpo") for turns in (10, 20, 40)
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one case, such as wide-dpo")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side, interleaved; medians are shown")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return 0
    table = Table(title="tokens per CPU second, MB above the untrained process, last loss")
    for column in ("case", "ours", "TRL 1.16", "TRL, reference once", "speed", "memory"):
        table.add_column(column)
    for shape, method in CASES:
        if args.only in (None, f"{shape}-{method}"):
            table.add_row(f"{shape} {method}", *row(shape, method, args.repeats))
    Console(highlight=False).print(table)
    return 0


def row(shape: str, method: str, repeats: int) -> list[str]:
    """Cells of one case."""
    sides = ["ours", "trl"] + (["trl-precomputed"] if method == "dpo" else [])
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side in sides:
            command = [sys.executable, __file__, "--measure", side, shape, method]
            result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
            if result.returncode:
                raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
            found[side].append(json.loads(result.stdout.splitlines()[-1]))
    medians = {
        side: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for side, runs in found.items()
    }
    losses = [medians[side]["loss"] for side in sides]
    if not np.allclose(losses, losses[0], rtol=1e-3, atol=1e-5):
        raise SystemExit(f"{shape} {method}: the losses differ: {dict(zip(sides, losses, strict=True))}")
    cells = [f"{m['speed']:,.0f} / s, {m['memory']:,.0f} MB, {m['loss']:.5f}" for m in medians.values()]
    ours, trl = medians["ours"], medians["trl"]
    return [
        *cells,
        *[""] * (3 - len(cells)),
        f"{ours['speed'] / trl['speed']:.1f} x",
        f"1 / {trl['memory'] / ours['memory']:.1f}",
    ]


def measure(side: str, shape: str, method: str) -> dict[str, float]:
    """Tokens per CPU second, peak memory in MB, and the loss of the last update, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    spec = SHAPES[shape]
    data = trajectories(spec)
    run = OURS[method] if side == "ours" else TRL[method]
    with tempfile.TemporaryDirectory() as folder:
        reference = [0.0]
        train = run(spec, data, folder, reference if side == "trl-precomputed" else None)
        before = peak_mb()
        start = time.process_time()
        loss = train()
        seconds = time.process_time() - start + reference[0]
    used = data if method == "dpo" else data[:1]
    tokens = EPOCHS * sum(len(ids) for group in used for ids, _ in group)
    return {"speed": tokens / seconds, "memory": peak_mb() - before, "loss": loss}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


Sequence = tuple[list[int], list[tuple[int, int]]]
"""Token ids, and the half-open ranges of the responses in them."""


def trajectories(spec: Shape) -> list[list[Sequence]]:
    """Chosen and rejected trajectories; a pair has the same prompt."""
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(spec.pairs):
        prompt = rng.integers(10, spec.vocab_size, spec.prompt).tolist()
        low, high = spec.turns
        lengths = (low, int(rng.integers(low, high + 1)))
        pairs.append([sequence(spec, prompt, turns, rng) for turns in lengths])
    return [list(side) for side in zip(*pairs, strict=True)]


def sequence(spec: Shape, prompt: list[int], turns: int, rng: np.random.Generator) -> Sequence:
    ids, spans = list(prompt), []
    for turn in range(turns):
        if turn:
            ids += rng.integers(10, spec.vocab_size, spec.observation).tolist()
        spans.append((len(ids), len(ids) + spec.response))
        ids += rng.integers(10, spec.vocab_size, spec.response).tolist()
    return ids, spans


def model_of(spec: Shape) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    heads = spec.hidden_size // 64
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            intermediate_size=3 * spec.hidden_size,
            num_hidden_layers=spec.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )


def ours_dpo(spec: Shape, data: list[list[Sequence]], folder: str, _: None) -> Callable[[], float]:
    from agentgym_tlm.envs.args import EnvArgs
    from agentgym_tlm.pairs import Pair
    from agentgym_tlm.trainers.dpo import DPOArguments, DPOTrainer

    args = DPOArguments(beta=BETA, **shared(spec, folder))
    trainer = DPOTrainer(policy_of(spec), EnvArgs(), args)
    pairs = [Pair(trajectory(*a, won=True), trajectory(*b, won=False)) for a, b in zip(*data, strict=True)]
    return lambda: last_loss(trainer, lambda: trainer.train_pairs(pairs))


def ours_sft(spec: Shape, data: list[list[Sequence]], folder: str, _: None) -> Callable[[], float]:
    from agentgym_tlm.envs.args import EnvArgs
    from agentgym_tlm.trainers.sft import SFTArguments, SFTTrainer

    trainer = SFTTrainer(policy_of(spec), EnvArgs(), SFTArguments(**shared(spec, folder)))
    chosen = [trajectory(*a, won=True) for a in data[0]]
    return lambda: last_loss(trainer, lambda: trainer.train_trajectories(chosen))


def shared(spec: Shape, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": spec.micro_batch,
        "gradient_accumulation_steps": spec.pairs // spec.micro_batch,
        "num_train_epochs": EPOCHS,
        "save_steps": None,
        "logging_steps": 1,
    }


def policy_of(spec: Shape) -> Any:
    from agentgym_tlm.policies.tiny import build_tiny

    policy = build_tiny(["some words"], hidden_size=16, layers=1, heads=1, intermediate=16, max_context=4096, seed=0)
    policy.model = model_of(spec)
    return policy


def trajectory(ids: list[int], spans: list[tuple[int, int]], *, won: bool) -> Any:
    from agentgym_tlm.trajectory import StopReason, Trajectory, Turn

    turns = [
        Turn(observation="o", response="r", action="a", action_valid=True, reward=0.0, span=span) for span in spans
    ]
    return Trajectory(
        env_id="bench",
        task_id="task",
        task_type="",
        split="train",
        instruction="",
        seed=0,
        turns=turns,
        sequences=[ids],
        won=won,
        score=float(won),
        stop_reason=StopReason.WON if won else StopReason.MAX_STEPS,
    )


def last_loss(trainer: Any, train: Callable[[], None]) -> float:
    losses = []
    trainer.on_log = lambda record: losses.append(record.get("loss"))
    train()
    return float([loss for loss in losses if loss is not None][-1])


def trl_dpo(spec: Shape, data: list[list[Sequence]], folder: str, reference: list[float] | None) -> Callable[[], float]:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    class Prepared(DPOTrainer):  # type: ignore[misc]
        """Takes token ids as they are."""

        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def _precompute_ref_logps(self, *args: Any) -> Any:
            assert reference is not None
            start = time.process_time()
            dataset = super()._precompute_ref_logps(*args)
            reference[0] = time.process_time() - start
            return dataset

    masks: dict[tuple[int, ...], list[int]] = {}
    rows = []
    for (chosen, spans_w), (rejected, spans_l) in zip(*data, strict=True):
        prompt = chosen[: spans_w[0][0]]
        rows.append(
            {"prompt_ids": prompt, "chosen_ids": chosen[len(prompt) :], "rejected_ids": rejected[len(prompt) :]}
        )
        masks |= {tuple(chosen): mask_of(chosen, spans_w), tuple(rejected): mask_of(rejected, spans_l)}
    pad = DataCollatorForPreference(pad_token_id=0)

    def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = pad(examples)
        for i, ids in enumerate(batch["input_ids"]):
            length = int(batch["attention_mask"][i].sum())
            batch["completion_mask"][i, :length] = torch.tensor(masks[tuple(ids[:length].tolist())])
        return batch

    options = {**shared(spec, folder), "save_strategy": "no", "precompute_ref_log_probs": reference is not None}
    config = DPOConfig(beta=BETA, max_length=None, **trl_options(options))
    trainer = Prepared(
        model=model_of(spec),
        ref_model=model_of(spec) if reference is None else None,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=policy_of(spec).tokenizer,
        data_collator=collate,
    )
    return lambda: trl_loss(trainer)


def trl_sft(spec: Shape, data: list[list[Sequence]], folder: str, _: None) -> Callable[[], float]:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = [{"input_ids": ids, "completion_mask": mask_of(ids, spans)} for ids, spans in data[0]]
    config = SFTConfig(
        completion_only_loss=True, max_length=None, **trl_options({**shared(spec, folder), "save_strategy": "no"})
    )
    trainer = SFTTrainer(
        model=model_of(spec),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=policy_of(spec).tokenizer,
    )
    return lambda: trl_loss(trainer)


def trl_options(options: dict[str, Any]) -> dict[str, Any]:
    """Our options in TRL's words, with what it would do beside training switched off."""
    options = {name: value for name, value in options.items() if name != "save_steps"}
    return {
        **options,
        "optim": "adamw_torch_fused",
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "remove_unused_columns": False,
        "use_cpu": not torch.cuda.is_available(),
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def trl_loss(trainer: Any) -> float:
    trainer.train()
    return float([record["loss"] for record in trainer.state.log_history if "loss" in record][-1])


def mask_of(ids: list[int], spans: list[tuple[int, int]]) -> list[int]:
    mask = [0] * len(ids)
    for start, stop in spans:
        mask[start:stop] = [1] * (stop - start)
    return mask


OURS: dict[str, Callable[..., Callable[[], float]]] = {"dpo": ours_dpo, "sft": ours_sft}
TRL: dict[str, Callable[..., Callable[[], float]]] = {"dpo": trl_dpo, "sft": trl_sft}


if __name__ == "__main__":
    sys.exit(main())
