"""Running a batch of conversations through the model token by token, with the slot cache or without any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Conversation
from agentgym_tlm.policies.cache import Slot, SlotCache

_PREFILL_TOKENS = 16384  # most tokens, padding included, of one forward pass over prompts
_SHRINK_AT = 0.75  # finished rows leave the batch once this fraction of it remains: moving rows is not free


class Forward(Protocol):
    """The model: logits of the last position [batch, vocabulary], with or without a cache."""

    def __call__(self, cache: SlotCache | None, **inputs: torch.Tensor) -> torch.Tensor: ...


@dataclass(eq=False)
class Row:
    """One conversation's part of a batch."""

    conversation: Conversation
    ids: list[int]  # the conversation's sequence
    uniforms: npt.NDArray[np.float64]  # [max_new_tokens]
    slot: Slot | None


class CachedDecoder:
    """Runs each new token once. ``batch`` [n] are the rows still decoded, in the order of the logits.

    The batch is kept a prefix of the cache's rows, so that attention works on the cache in place. Rows that have
    finished go along until enough of them have: what they write lies behind their length and is never attended to.
    """

    def __init__(self, forward: Forward, cache: SlotCache, rows: list[Row], device: torch.device) -> None:
        self._forward, self._cache, self._rows = forward, cache, rows
        self._slots = [row.slot for row in rows if row.slot is not None]
        self._device = device
        self._starts = torch.tensor([len(row.ids) for row in rows], device=device)
        self._steps = 0
        cache.move_to_front(self._slots)
        self._order(range(len(rows)))

    def _order(self, rows: Iterable[int]) -> None:
        """Take ``rows`` as the batch, in the order of their cache rows."""
        self._members = sorted(rows, key=lambda i: self._slots[i].row)
        self._longest = max(len(self._rows[i].ids) for i in self._members)
        self.batch = torch.tensor(self._members, device=self._device)

    def prefill(self) -> torch.Tensor:
        """Run all rows' uncached tokens, rows of similar length together; logits in the order of ``batch``."""
        logits: list[torch.Tensor] = []
        order: list[int] = []
        widths = [len(row.ids) - slot.length for row, slot in zip(self._rows, self._slots, strict=True)]
        for group in _groups(widths):
            members = sorted(group, key=lambda i: self._slots[i].row)
            ids, padding = _pad_left([self._rows[i].ids[self._slots[i].length :] for i in members], self._device)
            ends = self._starts[torch.tensor(members, device=self._device)]
            positions = torch.arange(ids.shape[1], device=self._device) - ids.shape[1] + ends[:, None]
            length = max(len(self._rows[i].ids) for i in members)
            logits.append(self._run(ids, positions, padding, [self._slots[i].row for i in members], length))
            order += members
            for i in members:
                self._slots[i].length = len(self._rows[i].ids)
        places = {i: place for place, i in enumerate(order)}
        return torch.cat(logits)[torch.tensor([places[i] for i in self._members], device=self._device)]

    def step(self, ids: torch.Tensor, running: torch.Tensor, remaining: int) -> torch.Tensor:
        """Run one new token per row of the batch and return the next logits.

        ``running`` [n] are the ``remaining`` rows that have not finished; the others may leave the batch first.
        """
        if remaining <= _SHRINK_AT * len(self._members):
            tokens = torch.zeros(len(self._rows), dtype=torch.long, device=self._device)
            tokens[self.batch] = ids
            for i in self._members:  # how much of each row has to move along
                self._slots[i].length = len(self._rows[i].ids) + self._steps
            kept = self.batch[running].tolist()
            self._cache.move_to_front([self._slots[i] for i in kept])
            self._order(kept)
            ids = tokens[self.batch]
        positions = (self._starts[self.batch] + self._steps)[:, None]
        self._steps += 1
        padding = torch.zeros((len(ids), 1), dtype=torch.bool, device=self._device)
        rows = [self._slots[i].row for i in self._members]
        return self._run(ids[:, None], positions, padding, rows, self._longest + self._steps)

    def _run(
        self, ids: torch.Tensor, positions: torch.Tensor, padding: torch.Tensor, cache_rows: list[int], length: int
    ) -> torch.Tensor:
        positions = positions.masked_fill(padding, 0)
        try:
            self._cache.prepare(cache_rows, positions, padding, length)
            visible = torch.arange(length, device=self._device) <= positions[:, :, None]
            return self._forward(self._cache, input_ids=ids, attention_mask=visible[:, None], position_ids=positions)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the key/value cache of {len(self._slots)} episodes of up to {length} tokens does not fit the device: "
                "lower n_slots or max_context"
            ) from error


class PlainDecoder:
    """Recomputes every row's whole sequence for every token; nothing is kept."""

    def __init__(self, forward: Forward, rows: list[Row], device: torch.device) -> None:
        self._forward = forward
        self._sequences = [list(row.ids) for row in rows]
        self.batch = torch.arange(len(rows), device=device)

    def prefill(self) -> torch.Tensor:
        """Next logits of every row in ``batch``."""
        ids, padding = _pad_left([self._sequences[i] for i in self.batch.tolist()], self.batch.device)
        positions = (torch.cumsum(~padding, dim=1) - 1).clamp(min=0)
        return self._forward(None, input_ids=ids, attention_mask=(~padding).long(), position_ids=positions)

    def step(self, ids: torch.Tensor, running: torch.Tensor, remaining: int) -> torch.Tensor:
        """Append one token per row, drop the finished rows, and return the next logits."""
        del remaining
        for i, token in zip(self.batch.tolist(), ids.tolist(), strict=True):
            self._sequences[i].append(token)
        self.batch = self.batch[running]
        return self.prefill()


def _pad_left(pieces: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [batch, longest] padded with 0 on the left, and the boolean mask of the padding."""
    width = max(map(len, pieces))
    ids = torch.tensor([[0] * (width - len(piece)) + piece for piece in pieces], device=device)
    lengths = torch.tensor([len(piece) for piece in pieces], device=device)
    return ids, torch.arange(width, device=device) < width - lengths[:, None]


def _groups(widths: list[int]) -> list[list[int]]:
    """Indices in groups of similar width: little padding, and not more than ``_PREFILL_TOKENS`` in a group."""
    groups: list[list[int]] = []
    for i in sorted(range(len(widths)), key=lambda i: widths[i]):
        if groups:
            group = groups[-1]
            similar = widths[i] <= 2 * widths[group[0]] + 16
            if similar and widths[i] * (len(group) + 1) <= _PREFILL_TOKENS:
                group.append(i)
                continue
        groups.append([i])
    return groups
