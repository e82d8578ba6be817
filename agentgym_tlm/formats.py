"""Trajectory files of other projects: read as expert data, and written for other trainers.

Read are a JSON array, or JSONL, of records in one of these forms:

============== ==================================================================================================
ETO            ``{"id", "conversations": [{"from": "human" | "gpt", "value"}, ...]}``
AgentTraj      the same with ``item_id``, and ``loss`` in messages that the policy produced (AgentGym)
messages       ``{"messages": [{"role": "system" | "user" | "assistant", "content"}, ...]}``
============== ==================================================================================================

What becomes of a record:

1. The episode begins with the message that the first response of the episode answers. What comes before is left out,
   for a policy is told how to play by its own prompt format: system messages, an instruction that is answered with an
   acknowledgement ("OK"), and, where the first response has ``loss: false``, all up to one that has not. Instead of
   that, ``skip_messages`` says how many messages to leave out, such as those of a worked example; without it, a record
   that names a second task later on is refused.
2. User messages are observations, without a leading "Observation:". Assistant messages are responses, as they are; each
   must have an action that the ``react`` format can read.
3. Messages with ``loss: false``, and responses that ``trainable`` (a list of one boolean each) says no to, are never
   trained on.
4. ``reward`` or ``score`` is the score; where the record has none, it is taken for what its file is published as, an
   expert's success. Only a score of 1 counts as won.
5. ``task_id``, ``item_id`` or ``id`` is the task, if it is one of the environment's training tasks; parts of a path
   that the environment's ids do not have are ignored.

Records that cannot be read this way are left out and listed with their lines.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agentgym_tlm.batch import Example
from agentgym_tlm.envs.base import TaskManifest
from agentgym_tlm.errors import ConfigError, DataError
from agentgym_tlm.pairs import Pair
from agentgym_tlm.prompt import PromptFormat, ReactFormat, Situation
from agentgym_tlm.trajectory import StopReason, Trajectory, Turn, read_trajectories

_USER, _ASSISTANT, _SYSTEM = "user", "assistant", "system"
_ROLES = {"human": _USER, "user": _USER, "gpt": _ASSISTANT, "assistant": _ASSISTANT, "system": _SYSTEM}
_TOOL_ROLES = ("tool", "function")
_OBSERVATION = re.compile(r"\s*Observation(?:\s\d{1,4})?:[ \t]*", re.IGNORECASE)
_ACKNOWLEDGEMENT = re.compile(
    r"\W*(?:ok|okay|sure|understood|got it|i understand|certainly|of course|yes)\b", re.IGNORECASE
)
_ACTION_TAG = re.compile(r"\baction\b\s*:|<action>", re.IGNORECASE)
_TASK = re.compile(r"\byour task is to:?\s*(.+)|^question:\s*(.+)", re.IGNORECASE | re.MULTILINE)
_FORMAT = ReactFormat(instructions="")


class BrokenRecord(NamedTuple):
    """A record that was left out: its place in the file (both counted from 1), and why."""

    line: int
    record: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line} (record {self.record}): {self.reason}"


class Message(NamedTuple):
    """One message of a record."""

    role: str
    text: str
    trainable: bool | None  # None where the record does not say


class _BrokenError(Exception):
    """Why a record cannot be read."""


def read_conversations(
    path: Path, env_id: str, *, skip_messages: int | None = None
) -> tuple[list[Trajectory], list[BrokenRecord]]:
    """The episodes of a public trajectory file as text-only trajectories of ``env_id``, and the records left out.

    ``skip_messages`` are the first messages of every record that are no part of the episode; None: see the module
    docstring. Raises DataError for a file that holds no such records at all, that is not JSON, or that has tool calls.
    """
    trajectories: list[Trajectory] = []
    broken: list[BrokenRecord] = []
    for number, (line, record) in enumerate(_records(path), start=1):
        try:
            if isinstance(record, _BrokenError):
                raise record
            trajectory = _trajectory(record, env_id, skip_messages)
        except _BrokenError as error:
            broken.append(BrokenRecord(line, number, str(error)))
            continue
        except DataError as error:
            raise DataError(f"{path}:{line}: {error}") from None
        trajectory.metadata = {"file": path.name, "record": number}
        trajectories.append(trajectory)
    if not trajectories:
        found = "; ".join(map(str, broken[:3])) or "it is empty"
        raise DataError(f"{path} holds no episode that can be read: {found}")
    return trajectories, broken


def read_expert(
    path: Path, manifest: TaskManifest, *, skip_messages: int | None = None
) -> tuple[list[Trajectory], list[BrokenRecord]]:
    """Text-only episodes of a turn log of this package, or of a public file, with their ids among ``manifest``'s.

    Raises DataError as :func:`read_conversations` does, and for episodes of another environment.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path} to read trajectories from")
    broken: list[BrokenRecord] = []
    if _is_turn_log(path):
        episodes = [_without_tokens(trajectory) for trajectory in read_trajectories(path)]
        other = {trajectory.env_id for trajectory in episodes} - {manifest.env_id}
        if other:
            raise DataError(f"{path} holds episodes of {', '.join(sorted(other))}, not of {manifest.env_id}")
    else:
        episodes, broken = read_conversations(path, manifest.env_id, skip_messages=skip_messages)
    return match_tasks(episodes, manifest), broken


def match_tasks(trajectories: Iterable[Trajectory], manifest: TaskManifest) -> list[Trajectory]:
    """Copies with the manifest's form of their task id; "" where it names none of its tasks.

    Ids are paths: ``json_2.1.1/train/KIND/TRIAL/game.tw-pddl`` is the task ``train/KIND/TRIAL``, and so is ``TRIAL``.
    """
    by_end: dict[str, set[str]] = {}
    for task in manifest:
        parts = task.split("/")
        for start in range(len(parts)):
            by_end.setdefault("/".join(parts[start:]), set()).add(task)
    return [replace(trajectory, task_id=_matched(trajectory.task_id, manifest, by_end)) for trajectory in trajectories]


def _matched(given: str, manifest: TaskManifest, by_end: dict[str, set[str]]) -> str:
    if given in manifest:
        return given
    parts = given.split("/")
    for end in (len(parts), len(parts) - 1):
        for start in range(end):
            tasks = by_end.get(name := "/".join(parts[start:end]), set())
            if len(tasks) == 1 and not name.isdigit():  # a bare number is a record's, not a task's
                return next(iter(tasks))
    return ""


def to_messages(trajectory: Trajectory, format: PromptFormat) -> list[dict[str, str]]:
    """The episode as a policy with ``format`` would see it, up to its last response.

    Raises ConfigError for a windowed format, in which an episode is no one conversation.
    """
    if format.windowed:
        raise ConfigError(
            f"in the prompt format {format.name} every turn is a conversation of its own, which messages of a whole "
            "episode cannot say: use trl-sft, which writes the token ids of every turn, or a policy with react"
        )
    messages = []
    observations = [turn.observation for turn in trajectory.turns]
    for i, turn in enumerate(trajectory.turns):
        text = format.message(Situation(trajectory.instruction, observations[: i + 1]))
        messages += [{"role": _USER, "content": text}, {"role": _ASSISTANT, "content": turn.response}]
    return messages


def messages_row(trajectory: Trajectory, format: PromptFormat) -> dict[str, Any]:
    """A line of a messages JSONL file, which :func:`read_conversations` reads; TRL's ``messages`` column."""
    return {
        "messages": to_messages(trajectory, format),
        "trainable": [turn.trainable for turn in trajectory.turns],
        "task_id": trajectory.task_id,
        "score": trajectory.score,
    }


def sft_rows(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Rows for TRL's SFTTrainer, one per sequence: the very ids, and which of them the loss is on.

    Raises TrajectoryError for a trajectory that cannot be trained on.
    """
    return [
        {"input_ids": row.input_ids.tolist(), "assistant_masks": row.loss_mask.astype(int).tolist()}
        for row in Example.from_trajectory(trajectory).rows
    ]


def dpo_row(pair: Pair, format: PromptFormat) -> dict[str, Any]:
    """A row for TRL's DPOTrainer. Beware: its loss is on all of ``chosen`` and ``rejected``, observations included.

    Turns that both sides were given, as those of IPR and StepAgent are, belong to the prompt.
    """
    chosen, rejected = to_messages(pair.chosen, format), to_messages(pair.rejected, format)
    both = zip(pair.chosen.turns, pair.rejected.turns, strict=False)
    given = [a.response == b.response and not (a.trainable or b.trainable) for a, b in both]
    start = 1 + 2 * (given.index(False) if False in given else len(given))
    return {
        "prompt": chosen[:start],
        "chosen": chosen[start:],
        "rejected": rejected[start:],
        "task_id": pair.chosen.task_id,
    }


def summary(broken: Sequence[BrokenRecord], shown: int = 5) -> str:
    """How many records were left out and why, with the first lines of each reason."""
    reasons = Counter(record.reason for record in broken)
    parts = []
    for reason, count in reasons.most_common():
        lines = [str(record.line) for record in broken if record.reason == reason]
        more = ", ..." if count > shown else ""
        parts.append(f"{reason} ({count}: line {', '.join(lines[:shown])}{more})")
    return "; ".join(parts)


def _is_turn_log(path: Path) -> bool:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    try:
        record = json.loads(first) if first.lstrip().startswith("{") else None
    except ValueError:
        return False
    return isinstance(record, dict) and "schema_version" in record


def _without_tokens(trajectory: Trajectory) -> Trajectory:
    """The text of an episode, to be encoded for another policy."""
    turns = [
        replace(turn, sequence=0, span=None, logprobs=None, ref_logprobs=None, confidence=None)
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=turns, sequences=[])


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, record) of a JSON array or of JSONL; a line of JSONL that is no JSON is a _BrokenError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    if text.lstrip().startswith("["):
        yield from _array(path, text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, _BrokenError(f"not JSON ({str(error).partition(':')[0]})")


def _array(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Elements of a JSON array with the line each begins in. Raises DataError where the array is broken off."""
    decoder = json.JSONDecoder()
    at, line, counted = text.index("[") + 1, 1, 0
    closed = False
    while not closed:
        at = _skip(text, at, " \t\r\n,")
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]":
            closed = True
            continue
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}:{line}: the JSON array is broken in the record that begins here ({error}): nothing behind it "
                "can be read. Download the file again"
            ) from error
        yield line, record


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _trajectory(record: Any, env_id: str, skip: int | None) -> Trajectory:
    """The episode of a record. Raises _BrokenError when there is none, DataError for tool calls."""
    messages = _messages(record)
    episode = _episode(messages, skip)
    flags = record.get("trainable")
    turns: list[Turn] = []
    final = ""
    for i, message in enumerate(episode):
        if message.role != (_USER, _ASSISTANT)[i % 2]:
            raise _BrokenError("messages of user and assistant do not take turns")
        if message.role == _USER:
            final = _OBSERVATION.sub("", message.text, count=1) if _OBSERVATION.match(message.text) else message.text
            continue
        action = _FORMAT.parse(message.text).action
        if action is None:
            raise _BrokenError("a response has no action that can be read")
        trainable = message.trainable is not False
        turns.append(Turn(final, message.text, action, action_valid=True, reward=0.0, trainable=trainable))
        final = ""
    if not turns:
        raise _BrokenError("there is no response to an observation")
    if flags is not None:
        if not isinstance(flags, list) or len(flags) != len(turns) or not all(isinstance(f, bool) for f in flags):
            raise _BrokenError("trainable is not a list with one boolean for each response")
        turns = [replace(turn, trainable=flag) for turn, flag in zip(turns, flags, strict=True)]
    score = next((record[key] for key in ("score", "reward") if record.get(key) is not None), 1.0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise _BrokenError("score or reward is not a number in [0, 1]")
    task = next((record[key] for key in ("task_id", "item_id", "id") if record.get(key) is not None), "")
    turns[-1].reward = float(score)
    return Trajectory(
        env_id=env_id,
        task_id=str(task),
        task_type="",
        split="train",
        instruction=_instruction(turns[0].observation),
        seed=0,
        turns=turns,
        final_observation=final,
        score=float(score),
        won=score == 1,
        stop_reason=StopReason.WON if score == 1 else StopReason.LOST,
        policy="imported",
    )


def _messages(record: Any) -> list[Message]:
    """The messages of a record of either kind."""
    kind: Literal["conversations", "messages"] = "messages"
    if isinstance(record, dict) and "conversations" in record:
        kind = "conversations"
    if not isinstance(record, dict) or not isinstance(record.get(kind), list):
        raise _BrokenError('no list of "conversations" or "messages"')
    role_key, text_key = ("from", "value") if kind == "conversations" else ("role", "content")
    messages = []
    for message in record[kind]:
        if not isinstance(message, dict):
            raise _BrokenError("a message is not an object")
        role = message.get(role_key)
        if (isinstance(role, str) and role in _TOOL_ROLES) or message.get("tool_calls") or message.get("function_call"):
            raise DataError(
                "messages with tool calls are not text episodes: write each call as the assistant's text (Thought: ... "
                "Action: ...) and each result as a user message"
            )
        if not isinstance(role, str) or role not in _ROLES:
            raise _BrokenError(f"a message is from {role!r}")
        loss = message.get("loss")
        messages.append(Message(_ROLES[role], _text(message.get(text_key)), loss if isinstance(loss, bool) else None))
    return messages


def _text(content: Any) -> str:
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise _BrokenError("the content of a message is not text")
    return content.encode("utf-8", "replace").decode()  # a lone surrogate has no bytes


def _episode(messages: list[Message], skip: int | None) -> list[Message]:
    """The messages from the first observation on."""
    if skip is not None:
        return messages[skip:]
    while messages and messages[0].role == _SYSTEM:
        messages = messages[1:]
    responses = [i for i, message in enumerate(messages) if message.role == _ASSISTANT]
    learnt = [i for i in responses if messages[i].trainable]
    if learnt and messages[responses[0]].trainable is False:
        messages = messages[max(0, learnt[0] - 1) :]
    elif responses[:1] == [1] and _is_acknowledgement(messages[1].text):
        messages = messages[2:]
    if any(message.role == _USER and _TASK.search(message.text) for message in messages[1:]):
        raise _BrokenError("it names a second task: if the first is a worked example, say so with skip_messages")
    return messages


def _is_acknowledgement(text: str) -> bool:
    return _ACKNOWLEDGEMENT.match(text) is not None and _ACTION_TAG.search(text) is None


def _instruction(observation: str) -> str:
    found = _TASK.search(observation)
    return (found[1] or found[2]).strip() if found else observation.strip()
