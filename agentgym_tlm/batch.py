"""Trajectories as tensors: the batch that every trainer's loss reads.

An :class:`Example` is one trajectory as arrays; :func:`collate` pads examples into a :class:`TurnBatch`. Losses see
per-token values *flat*, as ``[N]``: the N tokens of the loss in row-major order, without prompts, observations and
padding. Shapes: B rows, L positions, M trajectories, T turns. A row is one token sequence of a trajectory: M = B for
append-only prompt formats, while a windowed format has one row per turn, and a packed row holds several sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentgym_tlm.errors import TrajectoryError
from agentgym_tlm.trajectory import Trajectory

TOKEN_VALUES = ("ref_logprobs", "old_logprobs", "advantages", "returns", "old_values")
"""Fields of a row and of a batch with a number for every token."""


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """One token sequence, cut after its last token of the loss (nothing behind it is ever conditioned on)."""

    input_ids: npt.NDArray[np.int64]
    turn_ids: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]
    ref_logprobs: npt.NDArray[np.float32] | None
    old_logprobs: npt.NDArray[np.float32] | None
    advantages: npt.NDArray[np.float32] | None = None
    returns: npt.NDArray[np.float32] | None = None
    old_values: npt.NDArray[np.float32] | None = None

    @property
    def token_values(self) -> dict[str, npt.NDArray[np.float32] | None]:
        """What is known of single tokens, by the name that it has in a :class:`TurnBatch`."""
        return {name: getattr(self, name) for name in TOKEN_VALUES}


@dataclass(frozen=True, eq=False, slots=True)
class Example:
    """One trajectory as arrays, ready to be batched. ``turn_weights`` is [number of turns]."""

    rows: tuple[Row, ...]
    turn_weights: npt.NDArray[np.float32]
    won: bool

    @property
    def length(self) -> int:
        """Tokens of the longest row: what a batch is padded to."""
        return max(len(row.input_ids) for row in self.rows)

    @property
    def loss_tokens(self) -> int:
        """How many tokens the policy produced and may be trained on."""
        return sum(int(row.loss_mask.sum()) for row in self.rows)

    def rows_apart(self) -> list[Example]:
        """An example for each row, where a loss needs no more of the trajectory than that."""
        return [replace(self, rows=(row,)) for row in self.rows]

    def flat(self, name: str) -> npt.NDArray[Any]:
        """[N] entries of a field of the rows at the tokens of the loss, in order. Raises TrajectoryError if unknown."""
        parts = [(row.loss_mask, getattr(row, name)) for row in self.rows]
        if any(values is None for _, values in parts):
            raise TrajectoryError(f"the trajectory has no {name}: sample it with a language model, or score it, first")
        return np.concatenate([values[mask] for mask, values in parts])

    def of_turns(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """[N] values of the tokens of the loss, in order, from one value per turn."""
        by_turn = np.asarray(values, np.float32)
        by_token: npt.NDArray[np.float32] = by_turn[self.flat("turn_ids")]
        return by_token

    def with_token_values(self, **values: npt.NDArray[np.floating[Any]]) -> Example:
        """Copy with fields of ``TOKEN_VALUES``, each given as [N] values of the tokens of the loss, in order."""
        rows = []
        at = 0
        for row in self.rows:
            here = slice(at, at := at + int(row.loss_mask.sum()))
            placed: dict[str, Any] = {name: np.zeros(len(row.input_ids), np.float32) for name in values}
            for name, flat in values.items():
                placed[name][row.loss_mask] = flat[here]
            rows.append(replace(row, **placed))
        return replace(self, rows=tuple(rows))

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory, turn_weights: Sequence[float] | None = None) -> Example:
        """Arrays of ``trajectory``; ``turn_weights`` has one entry per turn (default 1).

        Raises TrajectoryError for a breakdown, for turns without tokens, for spans that do not fit their sequence, and
        when no token may be trained on.
        """
        _check_trainable(trajectory)
        weights = np.ones(len(trajectory.turns)) if turn_weights is None else np.asarray(turn_weights)
        if len(weights) != len(trajectory.turns):
            raise TrajectoryError(f"{len(weights)} turn weights for {len(trajectory.turns)} turns")
        rows = tuple(
            row
            for sequence in range(len(trajectory.sequences))
            if (row := _encode_sequence(trajectory, sequence)) is not None
        )
        return cls(rows=rows, turn_weights=weights.astype(np.float32), won=trajectory.won)


def untrainable_reason(trajectory: Trajectory) -> str | None:
    """Why no trainer may use this trajectory (a breakdown, ``no_tokens``, ``nothing_trainable``), or None."""
    if trajectory.stop_reason.is_breakdown:
        return trajectory.stop_reason.value
    if not trajectory.has_tokens:
        return "no_tokens"
    if not any(turn.trainable and turn.span is not None and turn.span[1] > turn.span[0] for turn in trajectory.turns):
        return "nothing_trainable"
    return None


def select_trainable(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], Counter[str]]:
    """The trajectories a trainer may use, and how many were left out for which reason."""
    kept: list[Trajectory] = []
    dropped: Counter[str] = Counter()
    for trajectory in trajectories:
        reason = untrainable_reason(trajectory)
        if reason is None:
            kept.append(trajectory)
        else:
            dropped[reason] += 1
    return kept, dropped


@dataclass(frozen=True, eq=False)
class TurnBatch:
    """Right-padded rows of tokens with everything a loss needs; see the module docstring for the letters.

    ``groups`` are contiguous blocks of rows ``(start, stop, length)`` that the model sees as one padded forward each
    (chosen and rejected trajectories differ much in length). Preference batches hold the chosen trajectories first and
    the rejected ones after them, in the same order. The fields of ``TOKEN_VALUES`` sit at the position of the token
    that they belong to and are 0 outside ``loss_mask``.
    """

    input_ids: Tensor  # [B, L] int64
    attention_mask: Tensor  # [B, L] int64, 1 for real tokens
    turn_ids: Tensor  # [B, L] int64, -1 where no response is
    loss_mask: Tensor  # [B, L] bool: produced by the policy in a turn that may be trained on
    trajectory_index: Tensor  # [B, L] int64 in [0, M)
    turn_weights: Tensor  # [M, T] float32, 0 where a trajectory has no such turn
    won: Tensor  # [M] bool
    groups: tuple[tuple[int, int, int], ...]
    position_ids: Tensor | None = None  # [B, L] int64, where a row holds several sequences
    ref_logprobs: Tensor | None = None  # [B, L] float32
    old_logprobs: Tensor | None = None  # [B, L] float32
    advantages: Tensor | None = None  # [B, L] float32
    returns: Tensor | None = None  # [B, L] float32: what a critic's value is to be
    old_values: Tensor | None = None  # [B, L] float32: what it was when the episodes had been sampled

    @property
    def num_trajectories(self) -> int:
        """M."""
        return self.turn_weights.shape[0]

    def to(self, device: torch.device | str) -> TurnBatch:
        """The same batch with every tensor on ``device``."""
        moved: dict[str, Any] = {
            field.name: _moved(value, torch.device(device))
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)

    def flat(self, values: Tensor | None) -> Tensor:
        """[N] entries of a token-level [B, L] field at the tokens of the loss. Raises TrajectoryError if it is None."""
        if values is None:
            raise TrajectoryError(
                "the batch lacks a token-level field: score its trajectories with the reference, sample them with a "
                "language model, or give them advantages first"
            )
        return values[self.loss_mask]

    def turn_sums(self, values: Tensor) -> Tensor:
        """[M, T] sums of flat [N] values over the tokens of each turn."""
        size = self.turn_weights.numel()
        index = (self.trajectory_index * self.turn_weights.shape[1] + self.turn_ids)[self.loss_mask]
        return values.new_zeros(size).index_add(0, index, values).view(self.turn_weights.shape)

    def turn_counts(self) -> Tensor:
        """n [M, T]: tokens of the loss per turn, as float32."""
        return self.turn_sums(torch.ones(int(self.loss_mask.sum()), device=self.loss_mask.device))


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; a GPU is sent it without waiting for what it is at work on."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def collate(*groups: Sequence[Example], packed: bool = False) -> TurnBatch:
    """Pad examples into one batch; each group of examples becomes one block of rows with a length of its own.

    With ``packed`` a row holds as many sequences as fit into the length of its group's longest one, each of which sees
    itself alone.
    """
    examples = [example for group in groups for example in group]
    blocks: list[tuple[int, int, int]] = []
    rows: list[list[tuple[int, Row]]] = []
    first = 0
    for group in groups:
        block = _pack(group, first) if packed else [[(first + i, row)] for i, e in enumerate(group) for row in e.rows]
        blocks.append((len(rows), len(rows) + len(block), max(example.length for example in group)))
        rows += block
        first += len(group)
    shape = (len(rows), max(length for _, _, length in blocks))
    input_ids, attention_mask, index, positions = (np.zeros(shape, np.int64) for _ in range(4))
    turn_ids, loss_mask = np.full(shape, -1, np.int64), np.zeros(shape, np.bool_)
    first_row = examples[0].rows[0]
    token_values = {
        name: np.zeros(shape, np.float32)
        for name, known in first_row.token_values.items()
        if known is not None and all(getattr(row, name) is not None for each in examples for row in each.rows)
    }
    for at, parts in enumerate(rows):
        start = 0
        for trajectory, row in parts:
            here = np.s_[at, start : start + len(row.input_ids)]
            start += len(row.input_ids)
            input_ids[here], attention_mask[here], index[here] = row.input_ids, 1, trajectory
            positions[here] = np.arange(len(row.input_ids))
            turn_ids[here], loss_mask[here] = row.turn_ids, row.loss_mask
            for name, values in token_values.items():
                values[here] = getattr(row, name)
    turn_weights = np.zeros((len(examples), max(len(example.turn_weights) for example in examples)), np.float32)
    for at, example in enumerate(examples):
        turn_weights[at, : len(example.turn_weights)] = example.turn_weights
    return TurnBatch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy(attention_mask),
        turn_ids=torch.from_numpy(turn_ids),
        loss_mask=torch.from_numpy(loss_mask),
        trajectory_index=torch.from_numpy(index),
        turn_weights=torch.from_numpy(turn_weights),
        won=torch.tensor([example.won for example in examples]),
        groups=tuple(blocks),
        position_ids=torch.from_numpy(positions) if packed else None,
        **{name: torch.from_numpy(values) for name, values in token_values.items()},
    )


def _pack(group: Sequence[Example], first: int) -> list[list[tuple[int, Row]]]:
    """The rows of a group, longest first, each in the first bin with room; with the index of its trajectory."""
    rows = [(first + i, row) for i, example in enumerate(group) for row in example.rows]
    rows.sort(key=lambda entry: -len(entry[1].input_ids))
    capacity = len(rows[0][1].input_ids)
    bins: list[list[tuple[int, Row]]] = []
    room: list[int] = []
    for entry in rows:
        length = len(entry[1].input_ids)
        at = next((i for i, left in enumerate(room) if left >= length), len(bins))
        if at == len(bins):
            bins.append([])
            room.append(capacity)
        bins[at].append(entry)
        room[at] -= length
    return bins


def _check_trainable(trajectory: Trajectory) -> None:
    reason = untrainable_reason(trajectory)
    if reason is not None:
        remedy = {
            "env_error": "the environment's machinery failed: leave the episode out (select_trainable)",
            "policy_error": "the policy's machinery failed: leave the episode out (select_trainable)",
            "no_tokens": "encode the trajectory with a Renderer first",
            "nothing_trainable": "no turn of it may be trained on: leave it out (select_trainable)",
        }[reason]
        raise TrajectoryError(f"trajectory of {trajectory.task_id!r} cannot be trained on: {reason}; {remedy}")


def _encode_sequence(trajectory: Trajectory, sequence: int) -> Row | None:
    """Arrays of one sequence of ``trajectory``, None if it holds no token of the loss."""
    ids = np.asarray(trajectory.sequences[sequence], np.int64)
    turn_ids, loss_mask = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.bool_)
    turns = [(i, turn) for i, turn in enumerate(trajectory.turns) if turn.sequence == sequence]
    for index, turn in turns:
        assert turn.span is not None
        start, end = turn.span
        if not 1 <= start <= end <= len(ids) or (turn_ids[start:end] >= 0).any():
            raise TrajectoryError(
                f"turn {index} of {trajectory.task_id!r} has span {turn.span}, which overlaps another turn or is not "
                f"within positions 1 to {len(ids)} of its sequence"
            )
        turn_ids[start:end] = index
        loss_mask[start:end] = turn.trainable
    if not loss_mask.any():
        return None
    stop = int(loss_mask.nonzero()[0][-1]) + 1
    return Row(
        input_ids=ids[:stop],
        turn_ids=turn_ids[:stop],
        loss_mask=loss_mask[:stop],
        ref_logprobs=_token_values(trajectory, turns, "ref_logprobs", stop),
        old_logprobs=_token_values(trajectory, turns, "logprobs", stop),
    )


def _token_values(
    trajectory: Trajectory, turns: list[tuple[int, Any]], name: str, length: int
) -> npt.NDArray[np.float32] | None:
    """A per-token list of the trainable turns at the positions of their tokens; None unless all of them have it."""
    trainable = [(index, turn) for index, turn in turns if turn.trainable]
    if any(getattr(turn, name) is None for _, turn in trainable):
        return None
    values = np.zeros(length, np.float32)
    for index, turn in trainable:
        start, end = turn.span
        if len(getattr(turn, name)) != end - start:
            raise TrajectoryError(
                f"turn {index} of {trajectory.task_id!r}: {name} does not match its {end - start} tokens"
            )
        values[start:end] = getattr(turn, name)
    return values
