"""Run folders as the main job leaves them, with episodes and scores that a test chooses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agentgym_tlm.config import dump
from agentgym_tlm.evaluate import EvalResult, write_results
from agentgym_tlm.pairs import Pair, write_pairs
from agentgym_tlm.policies.language_model import LanguageModelPolicy
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.trajectory import StopReason, Trajectory, Turn, write_trajectories
from tests import toy_env

SAY = "Thought: The lamp is here.\nAction: {}"


@cache
def policy() -> LanguageModelPolicy:
    """A policy whose tokenizer knows the words of the episodes."""
    return toy_env.tiny_policy()


def episode(
    actions: Sequence[str],
    *,
    won: bool = False,
    task: str = "lamp-hall-study",
    split: str = "train",
    label: str = "tiny",
    confidences: Sequence[float | None] | None = None,
    tokens: bool = True,
    **changes: Any,
) -> Trajectory:
    """An episode of ``Toy-v0`` with these actions; ``confidences`` are those of its turns under the reference."""
    turns = [
        Turn(
            observation="You see a lamp." if i == 0 else "Nothing happens.",
            response=SAY.format(action),
            action=action,
            action_valid=action != "rub lamp",
            reward=float(won and i == len(actions) - 1),
        )
        for i, action in enumerate(actions)
    ]
    trajectory = Trajectory(
        env_id="Toy-v0",
        task_id=task,
        task_type="to-study",
        split=split,
        instruction="bring the lamp to the study.",
        seed=0,
        turns=turns,
        won=won,
        score=float(won),
        stop_reason=StopReason.WON if won else StopReason.MAX_STEPS,
        policy=label,
        prompt_format="react",
    )
    if tokens:
        trajectory = policy().renderer.encode_trajectory(trajectory)
        for turn, p in zip(trajectory.turns, confidences or len(turns) * (None,), strict=True):
            count = len(trajectory.response_ids(turn))
            if p is None:
                turn.logprobs = [math.log(0.5)] * count
            else:
                turn.ref_logprobs, turn.confidence = [math.log(p)] * count, p
    return replace(trajectory, **changes)


def pair(chosen: Sequence[float] = (0.95, 0.99), rejected: Sequence[float] = (0.95, 0.5, 0.92)) -> Pair:
    """The same first action, then a good one against two bad ones; each turn with its confidence."""
    return Pair(
        episode(["go to study", "put lamp"], won=True, confidences=chosen),
        episode(["go to study", "rub lamp", "rub lamp"], confidences=rejected),
    )


def run_folder(
    folder: Path,
    trainer: str = "tlm-dre",
    *,
    seed: int = 0,
    won: tuple[int, int] = (2, 3),
    pairs: Sequence[Pair] = (),
    metrics: Iterable[dict[str, Any]] = (),
    sft_policy: Path | None = None,
    **options: Any,
) -> Path:
    """A run whose SFT policy won the first number of four tasks, and the trained one the second."""
    config = ExperimentConfig.defaults_for("tiny", "Toy-v0", trainer).with_method(**options)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(replace(config, seed=seed, sft_policy=sft_policy, output_dir=folder)))
    results = []
    for label, wins in zip(("sft", trainer), won, strict=True):
        played = [
            episode(
                ["go to study", "put lamp" if i < wins else "rub lamp"],
                won=i < wins,
                task=f"lamp-hall-study/{i}",
                split="valid_seen",
            )
            for i in range(4)
        ]
        write_trajectories(folder / "trajectories" / f"{label}-valid_seen.jsonl", played)
        results.append(EvalResult.of(played, label=label))
    write_results(folder / "results.json", results)
    expert = [episode(["go to study", "put lamp"], won=True, tokens=False, label="expert")]
    write_trajectories(folder / "trajectories" / "expert.jsonl", expert)
    if sft_policy is None:
        policy().tokenizer.save_pretrained(folder / "sft" / "policy")
    (folder / trainer).mkdir()
    (folder / trainer / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if pairs:
        (folder / trainer / "iteration-0").mkdir()
        write_pairs(folder / trainer / "iteration-0" / "pairs", pairs)
    return folder
