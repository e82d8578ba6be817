"""A key/value cache whose slots outlive a turn: one slot per running episode, each with its own length.

Keys and values lie in one preallocated tensor per layer, ``[slots, key/value heads, capacity, head size]``, which grows
when it must. A forward pass covers the new tokens of some slots, left-padded to one width: every token is written at
its own position of its own row, and attention sees the rows up to the longest of them, so that a turn costs its new
tokens and not its history. Padding is written to the last position of a row, which no token ever uses. What lies behind
a row's length is never attended to and is overwritten before it could be.

When the slots of a pass are the first rows, attention works on the tensors in place; :meth:`SlotCache.move_to_front`
arranges that for the passes of a decoding loop. Otherwise the rows are gathered.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from agentgym_tlm.errors import ConfigError

_CAPACITY_STEP = 256


@dataclass(eq=False)
class Slot:
    """One episode's row: ``length`` tokens of its sequence are cached; ``learnt`` of them its drafts are made from."""

    cache: SlotCache
    row: int
    length: int = 0
    learnt: int = 0


class SlotCache(Cache):
    """See the module docstring. ``max_length`` bounds the tokens of a slot."""

    def __init__(self, max_length: int) -> None:
        super().__init__(layers=[])
        self.max_length = max_length
        self._slots: list[Slot | None] = []
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._capacity = 0
        self._rows = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)
        self._length = 0
        self._in_place = False

    def allocate(self) -> Slot:
        """An empty slot, in the first free row."""
        row = self._slots.index(None) if None in self._slots else len(self._slots)
        slot = Slot(self, row)
        self._slots[row : row + 1] = [slot]
        return slot

    def free(self, slot: Slot) -> None:
        """Give the slot's row to whoever comes next."""
        self._slots[slot.row] = None

    @property
    def unused(self) -> bool:
        """True when every slot has been freed."""
        return not any(self._slots)

    def move_to_front(self, slots: Sequence[Slot]) -> None:
        """Exchange rows so that ``slots`` occupy the first ``len(slots)`` of them."""
        self._grow(0)
        wanted = {id(slot) for slot in slots}
        sources = [slot.row for slot in slots if slot.row >= len(slots)]
        targets = [row for row, slot in enumerate(self._slots[: len(slots)]) if id(slot) not in wanted]
        if not sources:
            return
        length = max(slot.length for row in (*sources, *targets) if (slot := self._slots[row]) is not None)
        if length and self._keys:
            there, here = (torch.tensor(rows, device=self._keys[0].device) for rows in (sources, targets))
            for tensor in (*self._keys, *self._values):
                moved = tensor[there, :, :length]
                tensor[there, :, :length] = tensor[here, :, :length]
                tensor[here, :, :length] = moved
        for source, target in zip(sources, targets, strict=True):
            pair = self._slots[target], self._slots[source]
            self._slots[source], self._slots[target] = pair
            for row in (source, target):
                if (slot := self._slots[row]) is not None:
                    slot.row = row

    def prepare(self, rows: list[int], positions: torch.Tensor, padding: torch.Tensor, length: int) -> None:
        """Describe the coming forward pass.

        ``rows`` [batch] and ``positions`` [batch, new tokens] say where the new tokens belong, ``padding`` (same shape,
        boolean) which are none, ``length`` how far attention has to see. Grows the tensors if necessary.
        """
        self._grow(length)
        self._rows = torch.tensor(rows, device=positions.device)[:, None]
        self._positions = torch.where(padding, self._capacity - 1, positions)
        self._length = length
        self._in_place = rows == list(range(len(rows)))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values [batch, heads, new tokens, size]; return those to attend to."""
        if layer_idx == len(self._keys):
            self._keys.append(self._empty_like(key_states))
            self._values.append(self._empty_like(value_states))
        stored = []
        for tensor, new in ((self._keys[layer_idx], key_states), (self._values[layer_idx], value_states)):
            tensor[self._rows, :, self._positions] = new.transpose(1, 2)
            seen = tensor[:, :, : self._length]
            stored.append(seen[: len(self._rows)] if self._in_place else seen[self._rows[:, 0]])
        return stored[0], stored[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest row of the current pass."""
        return self._length

    def _empty_like(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, not empty: attention weights of zero would still carry a stray NaN into the output.
        return states.new_zeros((len(self._slots), states.shape[1], self._capacity, states.shape[3]))

    def _grow(self, length: int) -> None:
        """Make room for all slots and for ``length`` tokens and the padding position in each."""
        if length >= self._capacity:
            wanted = max(length + length // 2, _CAPACITY_STEP)
            self._capacity = min(-(-wanted // _CAPACITY_STEP) * _CAPACITY_STEP, max(self.max_length, length)) + 1
        for tensors in (self._keys, self._values):
            for i, old in enumerate(tensors):
                slots, _, capacity, _ = old.shape
                if slots < len(self._slots) or capacity < self._capacity:
                    tensors[i] = self._empty_like(old)
                    tensors[i][:slots, :, :capacity] = old


def check_cacheable(model: PreTrainedModel, max_context: int) -> None:
    """Raise ConfigError if the model's attention is not ordinary enough for a :class:`SlotCache`."""
    config: PreTrainedConfig = model.config
    remedy = "use kv_cache=False (slow: every token recomputes its history) or another model"
    name = f"{config.model_type} model {config.name_or_path!r}".replace(" ''", "")
    if config._attn_implementation != "sdpa":
        raise ConfigError(
            f"the cached rollout needs attn_implementation='sdpa', the {name} was loaded with "
            f"{config._attn_implementation!r}"
        )
    window = getattr(config, "sliding_window", None)
    layer_types = set(getattr(config, "layer_types", None) or ())
    if not layer_types <= {"full_attention", "sliding_attention"} or getattr(model, "_is_stateful", False):
        raise ConfigError(f"the {name} has layers that keep no keys and values per token; {remedy}")
    if (window is not None or "sliding_attention" in layer_types) and (window is None or window < max_context):
        raise ConfigError(
            f"the {name} attends through a sliding window of {window} tokens, less than max_context={max_context}; "
            f"lower max_context, or {remedy}"
        )
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope_type in ("dynamic", "longrope"):
        raise ConfigError(f"the {name} rescales its positions with the context length ({rope_type}); {remedy}")
    if "position_ids" not in inspect.signature(_base_model(model).forward).parameters:
        raise ConfigError(f"the {name} takes no position_ids; {remedy}")


def cache_argument(model: PreTrainedModel) -> str:
    """Name of the forward argument that takes a cache: ``past_key_values``, or ``cache`` in newer transformers."""
    return "cache" if "cache" in inspect.signature(_base_model(model).forward).parameters else "past_key_values"


def _base_model(model: PreTrainedModel) -> PreTrainedModel:
    """The model under an adapter wrapper, whose forward signature says nothing."""
    get_base_model = getattr(model, "get_base_model", None)
    return model if get_base_model is None else get_base_model()
