"""Whole episodes for other tools: ATIF documents and Parquet tables. Nothing that a turn log knows is left out.

ATIF (Agent Trajectory Interchange Format, version 1.8, as the package ``atif`` checks it) is one JSON document per
episode. The first observation is a user's message, and every turn a step of the agent:

======================== =====================================================================================
``message``              the response, as it was written
``tool_calls``           the action that was read from it, as ``act(action=...)``; none where none could be read
``observation``          what the environment answered
``metrics``              token ids of prompt and response, and the log-probs that they were sampled with; reference
                         log-probs and confidence in ``extra``. Every prompt is whole, as the format has it, so that
                         documents of long episodes are large
``is_copied_context``    set where nobody may imitate the turn, be it another episode's or an injected mistake:
                         what reads ATIF must then leave it out of training data
``extra``                reward, validity, finish reason, policy version, and the admissible commands if shown
======================== =====================================================================================

All else about the episode is in the ``extra`` of the document. A Parquet table has one row per episode with the fields
of :class:`~agentgym_tlm.trajectory.Trajectory`, turns as a list of structures; ``env`` and ``metadata`` are JSON.
Half a surrogate pair, which a model can write and neither format can hold, becomes a question mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentgym_tlm
from agentgym_tlm.errors import DependencyError, SchemaError
from agentgym_tlm.files import replaced_file
from agentgym_tlm.trajectory import SCHEMA_VERSION, Trajectory, Turn

if TYPE_CHECKING:
    import pyarrow

ATIF_VERSION = "ATIF-v1.8"
_ROWS_PER_GROUP = 256
_VERSION_KEY = b"agentgym_tlm.schema_version"
_JSON_COLUMNS = ("env", "metadata")
_OF_TURN = ("reward", "action_valid", "well_formed", "finish_reason", "trainable", "policy_version")
_OF_EPISODE = (
    "env_id",
    "task_id",
    "task_type",
    "split",
    "instruction",
    "seed",
    "sample",
    "stop_reason",
    "won",
    "score",
    "error",
    "prompt_format",
    "env",
    "metadata",
)


def to_atif(trajectory: Trajectory) -> dict[str, Any]:
    """The episode as an ATIF document, checked. Raises DependencyError without the package ``atif``."""
    try:
        import atif
    except ImportError as error:
        raise DependencyError(
            'ATIF needs the package atif, which needs Python 3.11 or newer: pip install "agentgym-tlm[atif]"'
        ) from error
    group = trajectory.group_id or f"{trajectory.env_id}/{trajectory.task_id}"
    document = {
        "schema_version": ATIF_VERSION,
        "session_id": group,
        "trajectory_id": f"{group}/{trajectory.sample}",
        "agent": {
            "name": "agentgym-tlm",
            "version": agentgym_tlm.__version__,
            "model_name": trajectory.policy or None,
        },
        "steps": list(_steps(trajectory)),
        "final_metrics": _final_metrics(trajectory),
        "extra": {name: _plain(getattr(trajectory, name)) for name in _OF_EPISODE},
    }
    checked: dict[str, Any] = atif.Trajectory.model_validate(_clean(document)).to_json_dict()
    return checked


def write_parquet(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write a table, replacing ``path`` when it is complete; how many rows it has.

    Raises DependencyError without pyarrow.
    """
    parquet = _parquet()
    import pyarrow

    schema = _schema()
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (_row(trajectory) for trajectory in trajectories)
    count = 0
    with replaced_file(path) as partial, parquet.ParquetWriter(partial, schema, compression="zstd") as writer:
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def read_parquet(path: Path) -> Iterator[Trajectory]:
    """The episodes of a table that :func:`write_parquet` wrote. Raises SchemaError for another, and DependencyError."""
    with _parquet().ParquetFile(path) as file:
        version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
        if version is None:
            raise SchemaError(f"{path} is no table of episodes: it was not written by this package")
        for group in file.iter_batches(_ROWS_PER_GROUP):
            for row in group.to_pylist():
                record = {**row, **{name: json.loads(row[name]) for name in _JSON_COLUMNS}}
                yield Trajectory.from_dict({**record, "schema_version": int(version)})


def _steps(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    observations = [*(turn.observation for turn in trajectory.turns), trajectory.final_observation]
    yield {"step_id": 1, "source": "user", "message": observations[0]}
    for i, turn in enumerate(trajectory.turns):
        call = None if turn.action is None else f"action-{i + 1}"
        step: dict[str, Any] = {
            "step_id": i + 2,
            "source": "agent",
            "message": turn.response,
            "observation": {"results": [{"source_call_id": call, "content": observations[i + 1]}]},
            "extra": {name: _plain(getattr(turn, name)) for name in _OF_TURN},
        }
        if call is not None:
            arguments = {"action": turn.action}
            step["tool_calls"] = [{"tool_call_id": call, "function_name": "act", "arguments": arguments}]
        if turn.admissible_commands is not None:
            step["extra"]["admissible_commands"] = turn.admissible_commands
        if not turn.trainable:
            step["is_copied_context"] = True
        if turn.span is not None:
            step["metrics"] = _metrics(trajectory, turn)
        yield step


def _metrics(trajectory: Trajectory, turn: Turn) -> dict[str, Any]:
    assert turn.span is not None
    prompt, response = trajectory.sequences[turn.sequence][: turn.span[0]], trajectory.response_ids(turn)
    extra = {"ref_logprobs": turn.ref_logprobs, "confidence": turn.confidence}
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(response),
        "prompt_token_ids": prompt,
        "completion_token_ids": response,
        "logprobs": turn.logprobs,
        "extra": {name: value for name, value in extra.items() if value is not None} or None,
    }


def _final_metrics(trajectory: Trajectory) -> dict[str, Any]:
    spans = [turn.span for turn in trajectory.turns if turn.span is not None]
    counts = {
        "total_prompt_tokens": sum(start for start, _ in spans),
        "total_completion_tokens": sum(end - start for start, end in spans),
    }
    extra = {"episode_return": trajectory.episode_return, "invalid_actions": trajectory.invalid_actions}
    return {**(counts if spans else {}), "total_steps": len(trajectory.turns) + 1, "extra": extra}


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DependencyError('Parquet needs pyarrow: pip install "agentgym-tlm[parquet]"') from error
    return pyarrow.parquet


def _schema() -> pyarrow.Schema:
    """Columns of the fields of a trajectory, by their annotations."""
    import pyarrow as pa

    types: dict[str, Any] = {
        "str": pa.string(),
        "str | None": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "float | None": pa.float64(),
        "list[str] | None": pa.list_(pa.string()),
        "list[float] | None": pa.list_(pa.float64()),
        "tuple[int, int] | None": pa.list_(pa.int64()),
        "list[list[int]]": pa.list_(pa.list_(pa.int32())),
        "dict[str, Any]": pa.string(),
        "StopReason": pa.string(),
        "FinishReason": pa.string(),
    }
    types["list[Turn]"] = pa.list_(pa.struct([(field.name, types[str(field.type)]) for field in fields(Turn)]))
    columns = [(field.name, types[str(field.type)]) for field in fields(Trajectory)]
    return pa.schema(columns, metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()})


def _row(trajectory: Trajectory) -> dict[str, Any]:
    row = {field.name: _plain(getattr(trajectory, field.name)) for field in fields(Trajectory)}
    row |= {name: json.dumps(row[name]) for name in _JSON_COLUMNS}
    row["turns"] = [{field.name: _plain(getattr(turn, field.name)) for field in fields(Turn)} for turn in row["turns"]]
    cleaned: dict[str, Any] = _clean(row)
    return cleaned


def _plain(value: Any) -> Any:
    """The words of enumerations, everything else as it is."""
    return str(value) if isinstance(value, str) else value


def _clean(value: Any) -> Any:
    """Copy in which all text can be written as UTF-8."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        return [_clean(item) for item in value]
    return value
