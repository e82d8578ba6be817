"""Preference pairs from expert and sampled trajectories, and their scores under a frozen reference model."""

from __future__ import annotations

import copy
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch
from torch import nn

from agentgym_tlm.batch import Example, collate, untrainable_reason
from agentgym_tlm.errors import ConfigError, TrajectoryError
from agentgym_tlm.logprobs import TokenLogprobs
from agentgym_tlm.trajectory import FinishReason, StopReason, Trajectory, Turn, read_trajectories, write_trajectories


@dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """Two trajectories of the same task, the first preferred to the second."""

    chosen: Trajectory
    rejected: Trajectory


def build_pairs(
    expert: Iterable[Trajectory],
    sampled: Iterable[Trajectory],
    *,
    max_pairs_per_task: int | None = None,
    max_repeats: int | None = None,
    max_rejected_tokens: int | None = None,
    max_extra_turns: int | None = None,
    within_group: bool = False,
) -> tuple[list[Pair], Counter[str]]:
    """Pair every sampled trajectory with the expert's best on the same task, in the order of ``sampled``.

    The higher score is preferred: mostly the expert's, the sampled one where it beats an imperfect expert. The counter
    says how many sampled trajectories were left out and why: ``won`` and ``tie`` (not worse than the expert),
    ``env_error``, ``policy_error``, ``aborted``, ``empty_turn`` (no response text), ``no_tokens``,
    ``nothing_trainable``, ``no_expert`` (the expert has nothing usable there), ``repetitive`` (one action more than
    ``max_repeats`` times in a row), ``overlong`` (a failure of more than ``max_rejected_tokens``) and
    ``over_task_limit``. ``max_extra_turns`` cuts failures off so many turns after the expert's length. Source: ETO
    (arXiv 2403.02502), section 3.2 and its code.

    ``within_group`` puts the sampled wins of a failure's group, by turns, in the place of the expert's episode, which
    is left to groups without a win; ``won`` counts those that are in no pair.
    """
    best: dict[tuple[str, str], Trajectory] = {}
    for trajectory in expert:
        task = (trajectory.env_id, trajectory.task_id)
        if untrainable_reason(trajectory) is None and (task not in best or trajectory.score > best[task].score):
            best[task] = trajectory
    sampled = list(sampled)
    wins: dict[str, list[Trajectory]] = {}
    for trajectory in sampled if within_group else ():
        if trajectory.won and unusable_reason(trajectory) is None:
            wins.setdefault(trajectory.group_id, []).append(trajectory)
    pairs: list[Pair] = []
    left_out: list[tuple[Trajectory, str]] = []
    per_task: Counter[tuple[str, str]] = Counter()
    for trajectory in sampled:
        task = (trajectory.env_id, trajectory.task_id)
        group = [] if trajectory.won else wins.get(trajectory.group_id, [])
        better = group[per_task[task] % len(group)] if group else best.get(task)
        reason = _unusable(trajectory, better)
        if reason is None and better is not None:
            pair = _ordered(better, trajectory)
            if max_extra_turns is not None:
                pair = Pair(pair.chosen, cut_turns(pair.rejected, len(pair.chosen.turns) + max_extra_turns))
            if max_repeats is not None and repeats(trajectory) > max_repeats:
                reason = "repetitive"
            elif max_rejected_tokens is not None and sum(map(len, pair.rejected.sequences)) > max_rejected_tokens:
                reason = "overlong"
            elif max_pairs_per_task is not None and per_task[task] >= max_pairs_per_task:
                reason = "over_task_limit"
        if reason is not None:
            left_out.append((trajectory, reason))
            continue
        per_task[task] += 1
        pairs.append(pair)
    chosen = {id(pair.chosen) for pair in pairs}
    return pairs, Counter(reason for trajectory, reason in left_out if id(trajectory) not in chosen)


def _unusable(sampled: Trajectory, expert: Trajectory | None) -> str | None:
    """Why a sampled trajectory makes no pair with the expert's."""
    if sampled.won and (expert is None or expert.won):
        return "won"
    if (reason := unusable_reason(sampled)) is not None:
        return reason
    if expert is None:
        return "no_expert"
    return "tie" if sampled.score == expert.score and sampled.won == expert.won else None


def one_per_task(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """The first trajectory of every task."""
    first: dict[tuple[str, str], Trajectory] = {}
    for trajectory in trajectories:
        first.setdefault((trajectory.env_id, trajectory.task_id), trajectory)
    return list(first.values())


def unusable_reason(sampled: Trajectory) -> str | None:
    """Why nothing can be learnt from a sampled trajectory, whatever its outcome; None if something can."""
    if sampled.stop_reason is StopReason.ABORTED:
        return "aborted"
    if any(not turn.response.strip() for turn in sampled.turns):
        return "empty_turn"
    return untrainable_reason(sampled)


def _ordered(expert: Trajectory, sampled: Trajectory) -> Pair:
    """The better one first: by success, then by score."""
    if (sampled.won, sampled.score) > (expert.won, expert.score):
        return Pair(sampled, expert)
    return Pair(expert, sampled)


def repeats(trajectory: Trajectory) -> int:
    """How often one action occurs in a row, at most."""
    return max(len(list(run)) for _, run in groupby(turn.action for turn in trajectory.turns))


def as_continuation(trajectory: Trajectory, turns: int) -> Trajectory:
    """A copy whose first ``turns`` turns are context: no loss is taken on them."""
    given = [replace(turn, trainable=False) for turn in trajectory.turns[:turns]]
    return replace(trajectory, turns=[*given, *trajectory.turns[turns:]])


def cut_turns(trajectory: Trajectory, turns: int) -> Trajectory:
    """The first ``turns`` turns of a trajectory, with the tokens up to the end of the last of them."""
    if len(trajectory.turns) <= turns:
        return trajectory
    kept = replace(trajectory, turns=trajectory.turns[:turns], final_observation=trajectory.turns[turns].observation)
    ends: dict[int, int] = {}
    for turn in kept.turns:
        assert turn.span is not None
        ends[turn.sequence] = max(ends.get(turn.sequence, 0), turn.span[1])
    kept.sequences = [ids[: ends[i]] for i, ids in enumerate(trajectory.sequences) if i in ends]
    return kept


@torch.no_grad()
def score_reference(
    model: nn.Module,
    trajectories: Sequence[Trajectory],
    *,
    batch_size: int = 16,
    include_end_of_turn: bool = True,
    temperature: float = 1.0,
) -> list[Trajectory]:
    """Copies of ``trajectories`` whose trainable turns carry ``ref_logprobs`` and ``confidence`` under ``model``.

    Both are those of sampling at ``temperature``. One forward per sequence, those of similar length together; a
    trajectory that occurs several times is scored once and its copy shared. Raises TrajectoryError for trajectories
    that cannot be trained on.
    """
    unique = list({id(trajectory): trajectory for trajectory in trajectories}.values())
    rows = [(i, row) for i, t in enumerate(unique) for row in Example.from_trajectory(t).rows_apart()]
    found: list[list[float]] = [[] for _ in rows]
    training = model.training
    model.eval()
    module = TokenLogprobs(model, temperature=temperature)
    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda i: rows[i][1].length)
    for start in range(0, len(order), batch_size):
        members = order[start : start + batch_size]
        batch = collate([rows[i][1] for i in members])
        logprobs = module(batch.input_ids.to(device), batch.loss_mask.to(device), batch.groups).float().cpu()
        sizes = [rows[i][1].loss_tokens for i in members]
        for i, values in zip(members, logprobs.split(sizes), strict=True):
            found[i] = values.tolist()
    model.train(training)
    by_trajectory: list[list[float]] = [[] for _ in unique]
    for (i, _), values in zip(rows, found, strict=True):
        by_trajectory[i] += values
    scored = {
        id(trajectory): _with_scores(trajectory, values, include_end_of_turn)
        for trajectory, values in zip(unique, by_trajectory, strict=True)
    }
    return [scored[id(trajectory)] for trajectory in trajectories]


def score_pairs(
    model: nn.Module, pairs: Sequence[Pair], *, batch_size: int = 16, include_end_of_turn: bool = True
) -> list[Pair]:
    """:func:`score_reference` on both sides of every pair."""
    both = [trajectory for pair in pairs for trajectory in (pair.chosen, pair.rejected)]
    scored = score_reference(model, both, batch_size=batch_size, include_end_of_turn=include_end_of_turn)
    return [Pair(chosen, rejected) for chosen, rejected in zip(scored[::2], scored[1::2], strict=True)]


def turn_confidence(turn: Turn, *, include_end_of_turn: bool = True) -> float:
    """p = exp(mean log π_ref(token)) over the turn's tokens, in (0, 1] (tlm-DRE Eq. 9).

    The paper leaves open whether the end-of-turn token counts. Raises TrajectoryError for an unscored turn.
    """
    if turn.ref_logprobs is None:
        raise TrajectoryError("turn without ref_logprobs: score its trajectory with score_reference first")
    values = turn.ref_logprobs
    if not include_end_of_turn and turn.finish_reason is FinishReason.STOP and len(values) > 1:
        values = values[:-1]
    return math.exp(math.fsum(values) / len(values))


def is_scored(trajectory: Trajectory) -> bool:
    """True when every trainable turn carries its reference log-probs."""
    return all(turn.ref_logprobs is not None for turn in trajectory.turns if turn.trainable)


def write_pairs(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write ``chosen.jsonl`` and ``rejected.jsonl``, line by line a pair, as one atomic step.

    Raises ConfigError when ``folder`` is there already: pairs belong to one run and are never overwritten.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists already: read its pairs, or choose a new output_dir")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write_trajectories(partial / "chosen.jsonl", (pair.chosen for pair in pairs))
    write_trajectories(partial / "rejected.jsonl", (pair.rejected for pair in pairs))
    partial.rename(folder)


def read_pairs(folder: Path) -> list[Pair]:
    """Read what :func:`write_pairs` wrote; pairs that shared their chosen trajectory no longer share the object."""
    chosen, rejected = (list(read_trajectories(folder / f"{side}.jsonl")) for side in ("chosen", "rejected"))
    return [Pair(a, b) for a, b in zip(chosen, rejected, strict=True)]


def _with_scores(trajectory: Trajectory, logprobs: list[float], include_end_of_turn: bool) -> Trajectory:
    """Copy with the flat log-probs (sequence by sequence, in token order) handed out to the trainable turns."""
    scored = copy.copy(trajectory)
    scored.turns = [copy.copy(turn) for turn in trajectory.turns]
    at = 0
    for turn in sorted((t for t in scored.turns if t.trainable), key=lambda t: (t.sequence, t.span)):
        assert turn.span is not None
        size = turn.span[1] - turn.span[0]
        if size == 0:
            continue
        turn.ref_logprobs = logprobs[at : at + size]
        turn.confidence = turn_confidence(turn, include_end_of_turn=include_end_of_turn)
        at += size
    assert at == len(logprobs)
    return scored
