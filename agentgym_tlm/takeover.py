"""What a new cell of a comparison takes over: evaluations, samples, and its own folder of an earlier call."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentgym_tlm.cells import finished_cells
from agentgym_tlm.config import dump, load
from agentgym_tlm.files import write_text
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.trainers.args import TrainingArguments
from agentgym_tlm.trainers.methods import METHODS
from agentgym_tlm.trainers.preference import PreferenceTrainer
from agentgym_tlm.variants import Variant

_SAMPLING = dict.fromkeys(("num_tasks", "tasks_per_iteration", "samples_per_task", "temperature"))
_SCORING = {
    **dict.fromkeys(("max_pairs_per_task", "max_repeats", "max_rejected_tokens", "max_extra_turns")),
    **dict.fromkeys(("per_device_train_batch_size", "mixed_precision", "lora")),  # of the last bits
    "pairing": "expert",
    "include_end_of_turn": True,
}
"""On what samples depend, and on what the scored pairs made of them, with what it means not to have the option."""


def share_evaluation(sft: Path, folder: Path) -> None:
    """Give a new cell the evaluation of the SFT policy, which is not to be played again."""
    target = folder / "trajectories"
    if not target.exists():
        partial = folder / "trajectories.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for log in (sft / "trajectories").glob("sft-*.jsonl"):
            shutil.copy(log, partial)
        partial.rename(target)


def share_samples(variant: Variant, config: ExperimentConfig, folder: Path) -> None:
    """Give a new cell the episodes that another one sampled with the same policy, tasks and temperature.

    They would be its own: in the first iteration, trainers of pairs differ only in what they learn from these. So would
    be the pairs with their reference scores, where both make them alike.
    """
    if not _samples_pairs(variant.trainer) or (folder / variant.trainer).exists():
        return
    for source, cell in finished_cells(folder.parent.parent):
        other = Variant.parse(cell.trainer).trainer
        if source.parent != folder.parent or not _samples_pairs(other):
            continue
        method = load(ExperimentConfig.with_trainer(other)(), source / "config.yaml").method
        if not _alike(method, config.method, _SAMPLING):
            continue
        partial = folder / "samples.partial"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "iteration-0").mkdir(parents=True)
        for log in ("expert.jsonl", "iteration-0/sampled.jsonl"):
            if (source / other / log).exists():
                shutil.copy(source / other / log, partial / log)
        pairs = source / other / "iteration-0" / "pairs"
        if (
            pairs.exists()
            and all(map(_scores_pairs, (variant.trainer, other)))
            and _alike(method, config.method, _SCORING)
        ):
            shutil.copytree(pairs, partial / "iteration-0" / "pairs")
            shutil.copy(pairs.parent / "dropped.json", partial / "iteration-0")
        partial.rename(folder / variant.trainer)
        return


def _alike(method: TrainingArguments, other: TrainingArguments, options: Mapping[str, Any]) -> bool:
    return all(getattr(method, name, absent) == getattr(other, name, absent) for name, absent in options.items())


def _samples_pairs(trainer: str) -> bool:
    return _has_steps(trainer, "train_iteration", "collect", "build")


def _scores_pairs(trainer: str) -> bool:
    return (
        _has_steps(trainer, "train_pairs", "score") and getattr(METHODS[trainer].trainer, "reference", None) is not None
    )


def _has_steps(trainer: str, *steps: str) -> bool:
    """Whether a trainer does these as every trainer of pairs does."""
    kind = METHODS[trainer].trainer if trainer in METHODS else None
    return (
        kind is not None
        and issubclass(kind, PreferenceTrainer)
        and all(getattr(kind, step) is getattr(PreferenceTrainer, step) for step in steps)
    )


def resumed(config: ExperimentConfig) -> ExperimentConfig:
    """Going on with the cell's folder if it was begun, wherever that and its data are now, which have the same lock."""
    file = config.run_dir / "config.yaml"
    if not file.exists():
        return config
    begun = load(config, file)
    moved = replace(
        begun,
        sft_policy=config.sft_policy,
        policy=config.policy,
        expert=config.expert,
        envs=replace(begun.envs, data_dir=config.envs.data_dir),
        evaluation=replace(begun.evaluation, n_slots=config.evaluation.n_slots),
    )
    write_text(file, dump(moved))
    return replace(config, resume=True)
