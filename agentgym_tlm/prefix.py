"""Episodes that begin where another one was: its first turns are given, and somebody else goes on from there.

A :class:`Prefix` stands in the place of a task id in a rollout. Its turns are part of the new trajectory, as context:
their token ids stay what they were, and ``trainable`` is False. The environment plays them once, whatever the number of
episodes that begin there, and is put back to that point by its ``restore``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from agentgym_tlm.envs.base import Info, TextEnv
from agentgym_tlm.errors import TrajectoryError
from agentgym_tlm.trajectory import Trajectory, Turn


@dataclass(frozen=True, eq=False)
class Prefix:
    """The first ``turns`` turns of ``trajectory``, which has more of them.

    ``max_turns`` bounds the turns that are played behind them; None: the environment's own limit, which counts all. A
    policy takes the token ids of the turns as its own; turns without ids are encoded by it. Raises TrajectoryError when
    nothing of the trajectory is left to be played.
    """

    trajectory: Trajectory
    turns: int
    max_turns: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.turns < len(self.trajectory.turns):
            raise TrajectoryError(
                f"a prefix of {self.turns} turns needs an episode with more; that of {self.trajectory.task_id!r} has "
                f"{len(self.trajectory.turns)}"
            )

    @property
    def task_id(self) -> str:
        """The task that is played."""
        return self.trajectory.task_id

    @property
    def name(self) -> str:
        """Hash of what is given: prefixes of one name are the same beginning."""
        given = [self.task_id, self.state_seed, self.max_turns, *(turn.response for turn in self._given)]
        return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]

    @property
    def state_seed(self) -> int:
        """The seed from which the initial state of the episode, and of those that it was itself begun from, came."""
        return int(self.trajectory.metadata.get("state_seed", self.trajectory.seed))

    @property
    def record(self) -> dict[str, Any]:
        """What the metadata of a trajectory that begins here say of it."""
        return {"prefix": self.name, "prefix_turns": self.turns, "state_seed": self.state_seed}

    def context(self) -> list[Turn]:
        """Copies of the given turns, without what a trainer could learn from."""
        return [replace(turn, trainable=False, ref_logprobs=None, confidence=None) for turn in self._given]

    def tokens(self) -> tuple[list[list[int]], list[tuple[int, int, int]]]:
        """``sequences`` and ``spans`` of a conversation in which the turns were played; empty if they are text only."""
        if not all(turn.span is not None for turn in self._given):
            return [], []
        spans = [(turn.sequence, *turn.span) for turn in self._given if turn.span is not None]
        ends = {sequence: end for sequence, _, end in spans}
        return [self.trajectory.sequences[sequence][:end] for sequence, end in ends.items()], spans

    def replay(self, env: TextEnv, seed: int) -> tuple[str, Info]:
        """Play the turns in ``env``; observation and info behind them.

        Raises TrajectoryError when the environment answers otherwise than it did in the trajectory, or when the episode
        ends within the prefix, and EnvironmentFailureError.
        """
        turns = self.trajectory.turns
        observation, info = env.reset(seed=seed, options={"task_id": self.task_id})
        for i, turn in enumerate(self._given):
            if observation == turn.observation and info["stop_reason"] is None:
                observation, _, _, _, info = env.step(turn.action or "")
                continue
            raise self._mismatch(i, observation)
        if observation != turns[self.turns].observation or info["stop_reason"] is not None:
            raise self._mismatch(self.turns, observation)
        return observation, info

    @property
    def _given(self) -> list[Turn]:
        return self.trajectory.turns[: self.turns]

    def _mismatch(self, turn: int, observation: str) -> TrajectoryError:
        return TrajectoryError(
            f"the environment does not repeat the episode of {self.task_id!r}: before turn {turn + 1} it says "
            f"{observation[:80]!r}, then it said {self.trajectory.turns[turn].observation[:80]!r}. Make it with the "
            "options and the data that the episode was played with"
        )


class Beginnings:
    """Snapshots at the ends of prefixes, taken when first needed and kept while episodes are still to begin there.

    ``names`` has the name of a prefix once for every episode that is going to begin with it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._left = Counter(names)
        self._snapshots: dict[str, Any] = {}

    def begin(self, prefix: Prefix, env: TextEnv, seed: int) -> tuple[str, Info]:
        """Bring ``env`` behind the prefix; observation and info there. Raises what :meth:`Prefix.replay` does."""
        name = prefix.name
        self._left[name] -= 1
        kept = self._snapshots.get(name) if self._left[name] > 0 else self._snapshots.pop(name, None)
        if kept is not None:
            return env.restore(kept)
        observation, info = prefix.replay(env, seed)
        if self._left[name] > 0:
            self._snapshots[name] = env.snapshot()
        return observation, info
