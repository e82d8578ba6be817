"""What happened in an episode, once: turns, trajectories, and their JSONL files.

A :class:`Trajectory` holds text and tokens side by side. The token ids that the model saw and produced are stored, and
they are the ids that are trained on; nothing is re-tokenised. ``sequences`` are the token sequences that the model saw:
one for an append-only prompt format, one per turn for a windowed one. A turn's ``span`` is the half-open range, in
``sequences[turn.sequence]``, of the tokens that the policy produced in it, end-of-turn token included.
"""

from __future__ import annotations

import json
import mmap
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import IO, Any

from agentgym_tlm.errors import SchemaError
from agentgym_tlm.files import replaced_file

SCHEMA_VERSION = 1


class StopReason(str, Enum):
    """Why an episode ended, and with it what it may teach. Only ``won`` is success.

    ``won``, ``lost``, ``max_steps`` and ``token_budget`` are outcomes of the policy's play: the episode counts with the
    rewards that it got, and its turns are in the loss. In ``token_budget`` the prompt of the next turn, with room for a
    response, would have been longer than the policy's context: nothing was sampled for it, so that no turn stands for
    it. ``env_error`` and ``policy_error`` are nobody's failure: no reward of 0, no member of a group, and never in a
    loss. ``aborted`` says nothing about how the episode would have ended, and is left out in the same way.
    """

    WON = "won"  # the simulator's own word
    LOST = "lost"  # terminated by the simulator without success
    MAX_STEPS = "max_steps"  # the environment's step limit
    TOKEN_BUDGET = "token_budget"  # the context would have overflowed; checked before sampling
    ENV_ERROR = "env_error"  # the environment's machinery failed
    POLICY_ERROR = "policy_error"  # the policy's machinery failed, such as a server that does not answer
    ABORTED = "aborted"  # a person or the caller ended the episode early

    __str__ = str.__str__

    @property
    def is_breakdown(self) -> bool:
        """True when machinery failed: the episode says nothing about the agent, and is to be played again."""
        return self in (StopReason.ENV_ERROR, StopReason.POLICY_ERROR)


class FinishReason(str, Enum):
    """Why a response ended.

    One that ran into ``length`` is played as far as it can be read: ``react`` may find an action in it, ``tags`` finds
    none without ``</action>``, and what has none is an invalid action. Its tokens are in the loss as they were sampled,
    none of them an end of turn: nobody is taught to stop there.
    """

    STOP = "stop"  # end-of-turn token, or a text-only policy's complete answer
    LENGTH = "length"  # max_new_tokens reached

    __str__ = str.__str__


@dataclass(slots=True)
class Turn:
    """One observation, the policy's response to it, and what came of it.

    ``action`` is None when the response could not be parsed (the environment then answered an empty action).
    ``action_valid`` is False for it, for a response that is not ``well_formed`` in the prompt format, and where the
    environment refused the action. ``admissible_commands`` are those that the policy was shown, if it was.
    ``logprobs`` are those of the sampled tokens, at the sampling temperature (at 1 for greedy decoding), one per token
    of ``span``; ``ref_logprobs`` those of the frozen reference; ``confidence`` is exp of their mean (tlm-DRE Eq. 9).
    ``trainable`` is False for responses no trainer may imitate or reinforce, such as injected mistakes.
    """

    observation: str
    response: str
    action: str | None
    action_valid: bool
    reward: float
    finish_reason: FinishReason = FinishReason.STOP
    sequence: int = 0
    span: tuple[int, int] | None = None
    logprobs: list[float] | None = None
    ref_logprobs: list[float] | None = None
    confidence: float | None = None
    policy_version: str = ""
    trainable: bool = True
    well_formed: bool = True
    admissible_commands: list[str] | None = None


@dataclass(slots=True)
class Trajectory:
    """One episode, from ``reset`` to ``stop_reason``.

    ``group_id`` names the episodes that are comparable (same task, same initial state, same policy version); ``sample``
    counts within it. ``score`` is in [0, 1]; ``won`` is the simulator's own word. ``env`` records what the episode ran
    on (environment version, engine, data source), so that logs of different worlds are never mixed unnoticed.
    """

    env_id: str
    task_id: str
    task_type: str
    split: str
    instruction: str
    seed: int
    turns: list[Turn] = field(default_factory=list)
    final_observation: str = ""
    score: float = 0.0
    won: bool = False
    stop_reason: StopReason = StopReason.ABORTED
    error: str | None = None
    policy: str = ""
    prompt_format: str = ""
    group_id: str = ""
    sample: int = 0
    sequences: list[list[int]] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def episode_return(self) -> float:
        """Undiscounted sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def invalid_actions(self) -> int:
        """How many turns the environment refused."""
        return sum(not turn.action_valid for turn in self.turns)

    @property
    def has_tokens(self) -> bool:
        """True when every turn carries the ids that the model produced."""
        return bool(self.turns) and all(turn.span is not None for turn in self.turns)

    def response_ids(self, turn: Turn) -> list[int]:
        """Token ids that the policy produced in ``turn``. Raises ValueError for a text-only turn."""
        if turn.span is None:
            raise ValueError(f"turn of {self.task_id} has no tokens: encode the trajectory with a Renderer first")
        start, end = turn.span
        return self.sequences[turn.sequence][start:end]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready dictionary, ``schema_version`` included; what few turns have is left out of the others."""
        record = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        for turn in record["turns"]:
            for name, usual in _RARE.items():
                if turn[name] == usual:
                    del turn[name]
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Trajectory:
        """Inverse of :meth:`to_dict`.

        Raises SchemaError for another schema version, for missing or unknown fields, and for values of another type.
        """
        record = dict(record)
        version = record.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            raise SchemaError(f"trajectory has schema version {version!r}, this release reads {SCHEMA_VERSION}")
        unknown = record.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise SchemaError(f"trajectory has unknown fields {sorted(unknown)}")
        try:
            turns = [Turn(**_checked(Turn, turn)) for turn in _checked(cls, record)["turns"]]
            for turn in turns:
                turn.finish_reason = FinishReason(turn.finish_reason)
                turn.span = None if turn.span is None else (turn.span[0], turn.span[1])
            return cls(**{**record, "turns": turns, "stop_reason": StopReason(record["stop_reason"])})
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"trajectory record is malformed: {error}") from error


_RARE: Mapping[str, Any] = {"well_formed": True, "admissible_commands": None}
"""Fields of a turn that are not written where they have this value."""


def _list_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(type(item) in types for item in value)


_IS_LIST_OF_INTS, _IS_LIST_OF_NUMBERS, _IS_LIST_OF_TEXTS = _list_of(int), _list_of(int, float), _list_of(str)
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "str | None": lambda value: value is None or isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int,
    "float": lambda value: type(value) in (int, float),
    "float | None": lambda value: value is None or type(value) in (int, float),
    "list[str] | None": lambda value: value is None or _IS_LIST_OF_TEXTS(value),
    "list[float] | None": lambda value: value is None or _IS_LIST_OF_NUMBERS(value),
    "tuple[int, int] | None": lambda value: value is None or (_IS_LIST_OF_INTS(value) and len(value) == 2),
    "list[list[int]]": lambda value: isinstance(value, list) and all(map(_IS_LIST_OF_INTS, value)),
    "list[Turn]": _list_of(dict),
    "dict[str, Any]": lambda value: isinstance(value, dict),
    "StopReason": lambda value: isinstance(value, str),
    "FinishReason": lambda value: isinstance(value, str),
}
"""Whether a value read from JSON can stand in a field, by the field's annotation."""


def _checked(kind: type[Turn | Trajectory], record: dict[str, Any]) -> dict[str, Any]:
    """The record, if its values are of the types of ``kind``'s fields. Raises TypeError otherwise."""
    for each in fields(kind):
        annotation = str(each.type)
        if each.name in record and not _CHECKS[annotation](record[each.name]):
            raise TypeError(f"{each.name} is {str(record[each.name])[:60]!r}, not {annotation}")
    return record


class TrajectoryWriter:
    """Appends trajectories to a JSONL file, each flushed to disk as its episode ends.

    A killed run loses at most the episode in flight: on opening, a last line that an earlier kill left torn is cut off,
    and one that lacks nothing but its end is ended. Use as a context manager.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend_last_line(self.path)
        # A lone surrogate, which UTF-8 has no bytes for, becomes the escape by which JSON names it.
        self._file: IO[str] = self.path.open("a", encoding="utf-8", errors="backslashreplace")

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory and flush it to the operating system."""
        self._file.write(json.dumps(trajectory.to_dict(), ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Flush to the disk and close; safe to call twice."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def write_trajectories(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> None:
    """Write a complete JSONL file atomically, replacing ``path``."""
    with replaced_file(Path(path)) as partial, TrajectoryWriter(partial) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)


def read_trajectories(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Yield the trajectories of a JSONL file, in order.

    A corrupt *last* line is what a kill leaves behind: it is reported as a warning and skipped. A corrupt line anywhere
    else raises SchemaError with its number.
    """
    with Path(path).open("rb") as file:
        previous: tuple[int, SchemaError] | None = None
        for number, line in enumerate(file, start=1):
            if previous is not None:
                raise SchemaError(f"{path}:{previous[0]}: {previous[1]}")
            try:
                record = _parse_line(line)
            except SchemaError as error:
                previous = (number, error)
                continue
            try:
                yield Trajectory.from_dict(record)
            except SchemaError as error:
                raise SchemaError(f"{path}:{number}: {error}") from error
    if previous is not None:
        warnings.warn(f"{path}:{previous[0]}: skipped a corrupt last line ({previous[1]})", stacklevel=2)


def _parse_line(line: bytes) -> dict[str, Any]:
    """The record of a line. Raises SchemaError when there is none, as in one that a kill has torn."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"corrupt line: {error}") from error
    if not isinstance(record, dict):
        raise SchemaError("corrupt line: not a JSON object")
    return record


def _mend_last_line(path: Path) -> None:
    """Cut off a last line that cannot be read, and end one that can, so that the next record starts its own line."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size = len(data)
            start = data.rfind(b"\n", 0, size - 1) + 1
            line = data[start:]
        try:
            _parse_line(line)
        except SchemaError:
            warnings.warn(f"{path}: cut off a corrupt last line of {len(line)} bytes", stacklevel=3)
            file.truncate(start)
        else:
            if not line.endswith(b"\n"):
                file.seek(size)
                file.write(b"\n")
