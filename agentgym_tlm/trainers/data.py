"""The order in which a trainer sees its data: a pure function of the seed, the epoch and the number of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from agentgym_tlm.errors import ConfigError


@dataclass(frozen=True)
class BatchPlan:
    """Which examples each process sees in each forward pass.

    An update takes the next ``batch_size`` examples of the epoch's random order, across all processes. Only inside the
    update are they sorted by length and cut into micro-batches of at most ``micro_batch_size``, so that padding is
    small and yet the set an update learns from depends neither on lengths nor on the number of processes.
    """

    lengths: Sequence[int]
    seed: int
    micro_batch_size: int
    gradient_accumulation_steps: int = 1
    num_processes: int = 1
    process_index: int = 0

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ConfigError("there is nothing to train on: no example was collected or all were left out")
        if self.micro_batch_size < 1 or self.gradient_accumulation_steps < 1:
            raise ConfigError("per_device_train_batch_size and gradient_accumulation_steps must be at least 1")

    @property
    def batch_size(self) -> int:
        """Examples per update, over all processes."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.num_processes

    @property
    def updates_per_epoch(self) -> int:
        """The last update of an epoch may be smaller."""
        return -(-len(self.lengths) // self.batch_size)

    def update(self, step: int) -> tuple[list[int], list[list[int]]]:
        """Examples of update ``step`` (counted over epochs), and this process's micro-batches of them.

        Every process gets the same number of micro-batches; where there are fewer examples than processes some are
        empty.
        """
        epoch, index = divmod(step, self.updates_per_epoch)
        order = _epoch_order(len(self.lengths), self.seed, epoch)
        members = order[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        members.sort(key=lambda i: (-self.lengths[i], i))
        count = -(-len(members) // (self.micro_batch_size * self.num_processes)) * self.num_processes
        parts = np.array_split(np.asarray(members), count)
        return members, [part.tolist() for part in parts[self.process_index :: self.num_processes]]


@lru_cache(maxsize=2)
def _epoch_order(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(size)
