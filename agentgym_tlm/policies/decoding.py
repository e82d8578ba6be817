"""Running a batch of conversations through the model pass by pass, with the slot cache or without any.

A pass covers the tokens of a row that are not cached yet, and behind them a draft of what may follow, so that one pass
can yield several tokens; see :mod:`~agentgym_tlm.policies.drafting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Conversation
from agentgym_tlm.policies.cache import Slot, SlotCache
from agentgym_tlm.policies.drafting import LONGEST_CONTEXT, Drafter

_PREFILL_TOKENS = 16384  # most tokens, padding included, of one forward pass over prompts
_SHRINK_AT = 0.75  # finished rows leave the batch once this fraction of it remains: moving rows is not free


class Forward(Protocol):
    """The model: logits of the last ``keep`` positions [batch, keep, vocabulary], with or without a cache."""

    def __call__(self, cache: SlotCache | None, keep: int, **inputs: torch.Tensor) -> torch.Tensor: ...


@dataclass(eq=False)
class Row:
    """One conversation's part of a batch, and what it has written so far."""

    conversation: Conversation
    ids: list[int]  # the conversation's sequence
    uniforms: npt.NDArray[np.float64]  # [max_new_tokens]
    slot: Slot | None
    draft: list[int] = field(default_factory=list)
    draft_limit: int = 4
    written: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False

    def beyond(self, length: int) -> list[int]:
        """Tokens of the sequence, and of what has been written, behind the first ``length``."""
        return self.ids[length:] + self.written[max(0, length - len(self.ids)) :]

    def take(self, ids: list[int], logprobs: list[float], stop_ids: frozenset[int]) -> None:
        """Write the tokens that were sampled behind each token of the draft, as far as the draft was right."""
        right = 0
        while right < len(self.draft) and ids[right] == self.draft[right]:
            right += 1
        for token, logprob in zip(ids[: right + 1], logprobs, strict=False):
            self.written.append(token)
            self.logprobs.append(logprob)
            self.finished = token in stop_ids or len(self.written) == len(self.uniforms)
            if self.finished:
                break
        if self.draft:
            self.draft_limit = 2 * self.draft_limit if right == len(self.draft) else right + 1
        self.draft = []


class CachedDecoder:
    """Runs each new token once, behind it the drafts of ``drafter``.

    The batch is kept a prefix of the cache's rows, so that attention works on the cache in place. Rows that have
    finished go along until enough of them have: what they write lies behind their length and is never attended to. The
    same holds for drafts that were wrong.
    """

    def __init__(
        self, forward: Forward, cache: SlotCache, drafter: Drafter, rows: list[Row], device: torch.device
    ) -> None:
        self._forward, self._cache, self._drafter, self._device = forward, cache, drafter, device
        self._batch: list[Row] = []
        for row in rows:
            slot = _slot(row)
            drafter.learn(row.ids, min(slot.learnt, slot.length))
            slot.learnt = len(row.ids)

    def run(self, rows: list[Row], most_drafted: int) -> Iterator[tuple[list[Row], torch.Tensor]]:
        """Run what is new of ``rows``, those of similar width together; each group with its last logits.

        Logits are [rows, keep, vocabulary], the last of a row's being those behind its draft, which has at most
        ``most_drafted`` tokens.
        """
        for row in rows:
            limit = min(row.draft_limit, most_drafted, len(row.uniforms) - len(row.written) - 1)
            row.draft = self._drafter.draft(row.ids[-LONGEST_CONTEXT:] + row.written, limit)
        if len(rows) <= _SHRINK_AT * len(self._batch) or not self._batch:
            self._cache.move_to_front([_slot(row) for row in rows])
            self._batch = sorted(rows, key=lambda row: _slot(row).row)
        pieces = [row.beyond(_slot(row).length) + row.draft for row in self._batch]
        for group in _groups([len(piece) for piece in pieces]):
            group.sort()
            members = [self._batch[i] for i in group]
            keep = 1 + max(len(row.draft) for row in members)
            logits = self._run(members, [pieces[i] for i in group], keep)
            yield members, logits
            for row in members:
                _slot(row).length = len(row.ids) + len(row.written) - 1

    def _run(self, rows: list[Row], pieces: list[list[int]], keep: int) -> torch.Tensor:
        ends = [_slot(row).length + len(piece) for row, piece in zip(rows, pieces, strict=True)]
        ids, padding = _pad_left(pieces, self._device)
        width, length = ids.shape[1], max(ends)
        positions = torch.tensor([range(end - width, end) for end in ends], device=self._device).clamp(min=0)
        try:
            self._cache.prepare([_slot(row).row for row in rows], positions, padding, length)
            visible = torch.arange(length, device=self._device) <= positions[:, :, None]
            return self._forward(
                self._cache, keep, input_ids=ids, attention_mask=visible[:, None], position_ids=positions
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the key/value cache of {len(self._batch)} episodes of up to {length} tokens does not fit the device: "
                "lower n_slots or max_context"
            ) from error


class PlainDecoder:
    """Recomputes every row's whole sequence for every token; nothing is kept, and nothing drafted."""

    def __init__(self, forward: Forward, device: torch.device) -> None:
        self._forward, self._device = forward, device

    def run(self, rows: list[Row], most_drafted: int) -> Iterator[tuple[list[Row], torch.Tensor]]:
        """All rows with their last logits [rows, 1, vocabulary]."""
        del most_drafted
        ids, padding = _pad_left([row.beyond(0) for row in rows], self._device)
        positions = (torch.cumsum(~padding, dim=1) - 1).clamp(min=0)
        yield rows, self._forward(None, 1, input_ids=ids, attention_mask=(~padding).long(), position_ids=positions)


def _slot(row: Row) -> Slot:
    assert row.slot is not None
    return row.slot


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
