"""Evaluation protocols of ALFWorld by name: what has to be the same for two numbers to be comparable.

================ ========= ====================================== ================================================
``eto``          40 steps  greedy, valid_seen and valid_unseen    ``react``: ETO (arXiv 2403.02502), DMPO, tlm-DRE
``gigpo``        50 steps  T = 0.4, valid_seen                    ``tags``, the last 2 turns, admissible commands:
                                                                  GiGPO (arXiv 2505.10978), verl-agent
``gigpo-128``    50 steps  T = 0.4, 128 draws from valid_seen     the same
================ ========= ====================================== ================================================

Success is the simulator's ``won`` in all of them, and no reward is used. ``eto`` and ``gigpo`` play every task of a
split once. verl-agent evaluates on 128 environments, each with a game that its own seed draws, so that some occur twice
and others never; ``gigpo-128`` draws as many, with replacement, but from our order of the games: which ones they are in
verl-agent depends on the machine. The length of a response, 512 tokens in the sources, is the policy's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.prompt import PromptFormat, ReactFormat, TagsFormat, format_to_dict

ProtocolName = Literal["gigpo", "gigpo-128", "eto"]
ENV_ID = "ALFWorld-v0"
_DRAW_SEED = 1000  # the first of verl-agent's seeds for evaluation


@dataclass(frozen=True)
class Protocol:
    """See the module docstring. ``num_draws`` None plays every task once."""

    max_episode_steps: int
    temperature: float
    splits: tuple[str, ...]
    format: PromptFormat
    num_draws: int | None = None

    def check_format(self, format: PromptFormat) -> None:
        """Raise ConfigError for a policy that is prompted in another way; how the instructions read is its own."""
        wanted, found = _shape(self.format), _shape(format)
        if wanted != found:
            differences = ", ".join(
                f"{name} {found.get(name)!r} instead of {wanted.get(name)!r}"
                for name in wanted | found
                if wanted.get(name) != found.get(name)
            )
            raise ConfigError(
                f"the policy's prompt format is not the protocol's ({differences}): evaluate it without --protocol, or "
                f"train a policy with --prompt-format {self.format.name}"
            )

    def draws(self, tasks: Sequence[str]) -> list[tuple[list[str], int]]:
        """Groups of tasks, and how often those of a group are played."""
        if self.num_draws is None:
            return [(list(tasks), 1)]
        drawn = np.random.default_rng(_DRAW_SEED).integers(len(tasks), size=self.num_draws)
        groups: defaultdict[int, list[str]] = defaultdict(list)
        for at, times in sorted(Counter(drawn.tolist()).items()):
            groups[times].append(tasks[at])
        return [(groups[times], times) for times in sorted(groups)]


PROTOCOLS: dict[ProtocolName, Protocol] = {
    "gigpo": Protocol(50, 0.4, ("valid_seen",), TagsFormat()),
    "gigpo-128": Protocol(50, 0.4, ("valid_seen",), TagsFormat(), num_draws=128),
    "eto": Protocol(40, 0.0, ("valid_seen", "valid_unseen"), ReactFormat()),
}


def _shape(format: PromptFormat) -> dict[str, Any]:
    texts = ("instructions", "prefix", "suffix")
    return {name: value for name, value in format_to_dict(format).items() if name not in texts}
