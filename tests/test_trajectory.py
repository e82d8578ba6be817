"""The record on disk: nothing lost, nothing invented, a torn line survived."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tlm.errors import SchemaError
from agentgym_tlm.trajectory import (
    FinishReason,
    StopReason,
    Trajectory,
    TrajectoryWriter,
    Turn,
    read_trajectories,
    write_trajectories,
)

# A lone surrogate, which byte-level tokenizers can be made to produce, has no UTF-8 bytes.
text = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\ud800"), max_size=20)
number = st.floats(allow_nan=False)
numbers = st.none() | st.lists(number, max_size=3)
span = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
turns = st.builds(
    Turn,
    observation=text,
    response=text,
    action=st.none() | text,
    action_valid=st.booleans(),
    reward=number,
    finish_reason=st.sampled_from(FinishReason),
    sequence=st.integers(0, 3),
    span=span,
    logprobs=numbers,
    ref_logprobs=numbers,
    confidence=st.none() | number,
    policy_version=text,
    trainable=st.booleans(),
)
trajectories = st.builds(
    Trajectory,
    env_id=text,
    task_id=text,
    task_type=text,
    split=text,
    instruction=text,
    seed=st.integers(0, 2**63),
    turns=st.lists(turns, max_size=3),
    final_observation=text,
    score=number,
    won=st.booleans(),
    stop_reason=st.sampled_from(StopReason),
    error=st.none() | text,
    policy=text,
    group_id=text,
    sample=st.integers(0, 9),
    sequences=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=2),
    env=st.dictionaries(text, text, max_size=2),
    metadata=st.dictionaries(text, st.none() | number | text, max_size=2),
)


def _episode(task_id: str = "a") -> Trajectory:
    turn = Turn("You see a lamp.", "Action: look", "look", True, 0.5, span=(1, 3), logprobs=[-0.1, -2.0])
    return Trajectory("Toy-v0", task_id, "t", "train", "find it", 0, [turn], won=True, sequences=[[1, 2, 3]])


@given(records=st.lists(trajectories, max_size=3))
def test_round_trip_loses_nothing(tmp_path_factory: pytest.TempPathFactory, records: list[Trajectory]) -> None:
    """Line separators, null bytes and emoji in an observation included."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write_trajectories(path, records)
    assert list(read_trajectories(path)) == records


def test_appends_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.jsonl"
    for task_id in ("a", "b"):
        with TrajectoryWriter(path) as writer:
            writer.write(_episode(task_id))
    assert [t.task_id for t in read_trajectories(path)] == ["a", "b"]


def test_is_on_disk_before_the_writer_is_closed(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path / "log.jsonl")
    writer.write(_episode())
    assert list(read_trajectories(writer.path)) == [_episode()]
    writer.close()
    writer.close()


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_torn_last_line_is_reported_and_skipped(tmp_path: Path, cut: int) -> None:
    """What a kill in the middle of a write leaves behind costs that episode and no other."""
    path = tmp_path / "log.jsonl"
    write_trajectories(path, [_episode("a"), _episode("b")])
    path.write_bytes(path.read_bytes()[: -cut - 1])
    with pytest.warns(UserWarning, match=r"log.jsonl:2: skipped a corrupt last line"):
        assert [t.task_id for t in read_trajectories(path)] == ["a"]


def test_a_line_torn_inside_a_character_is_skipped_too(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_trajectories(path, [_episode("a"), _episode("é")])
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind("é".encode()) + 1])
    with pytest.warns(UserWarning, match="corrupt last line"):
        assert [t.task_id for t in read_trajectories(path)] == ["a"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\xff\n"])
def test_appending_after_a_torn_line_starts_a_new_one(tmp_path: Path, end: bytes) -> None:
    """Otherwise the next record would be glued to the torn one, and both lost."""
    path = tmp_path / "log.jsonl"
    write_trajectories(path, [_episode("a"), _episode("b")])
    path.write_bytes(path.read_bytes()[:-10] + end)
    with pytest.warns(UserWarning, match="cut off a corrupt last line"), TrajectoryWriter(path) as writer:
        writer.write(_episode("c"))
    assert [t.task_id for t in read_trajectories(path)] == ["a", "c"]


def test_a_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    """The reader counts its episode as finished: cutting it off would lose it for good."""
    path = tmp_path / "log.jsonl"
    write_trajectories(path, [_episode("a"), _episode("b")])
    path.write_bytes(path.read_bytes()[:-1])
    with TrajectoryWriter(path) as writer:
        writer.write(_episode("c"))
    assert [t.task_id for t in read_trajectories(path)] == ["a", "b", "c"]


def test_a_corrupt_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """It is not what a kill leaves behind: skipping it would silently change a data set."""
    path = tmp_path / "log.jsonl"
    write_trajectories(path, [_episode("a"), _episode("b")])
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second[:20]}\n{second}\n")
    with pytest.raises(SchemaError, match=r"log.jsonl:2: corrupt line"):
        list(read_trajectories(path))


def _change(record: dict[str, Any], change: str) -> Any:
    if change == "version":
        record["schema_version"] = 99
    elif change == "no version":
        del record["schema_version"]
    elif change == "unknown field":
        record["colour"] = "red"
    elif change == "missing field":
        del record["task_id"]
    elif change == "unknown turn field":
        record["turns"][0]["colour"] = "red"
    elif change == "stop reason":
        record["stop_reason"] = "bored"
    else:
        name, _, value = change.partition("=")
        (record["turns"][0] if name in record["turns"][0] else record)[name] = json.loads(value)
    return record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("version", "schema version 99, this release reads 1"),
        ("no version", "schema version None"),
        ("unknown field", "unknown fields .'colour'."),
        ("missing field", "task_id"),
        ("unknown turn field", "colour"),
        ("stop reason", "bored"),
        ("turns=[1]", "turns is '.1.', not list"),
        ('turns="abc"', "turns is 'abc', not list"),
        ("span=[1]", "span is '.1.', not tuple"),
        ("span=[1.5, 2]", "span is"),
        ('won="no"', "won is 'no', not bool"),
        ("score=true", "score is 'True', not float"),
        ('sequences="abc"', "sequences is 'abc'"),
        ("action=3", "action is '3', not str"),
        ('logprobs=["a"]', "logprobs is"),
        ("env=[]", "env is"),
    ],
)
def test_other_schemas_are_refused(tmp_path: Path, change: str, message: str) -> None:
    """Even on the last line: this is no torn write, and the reader has to say which line and why."""
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(_change(_episode().to_dict(), change)) + "\n")
    with pytest.raises(SchemaError, match=rf"log.jsonl:1: .*{message}"):
        list(read_trajectories(path))


def test_a_trajectory_survives_its_own_dictionary() -> None:
    assert Trajectory.from_dict(_episode().to_dict()) == _episode()


def test_writing_a_file_replaces_it_atomically(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_trajectories(path, [_episode("a"), _episode("b")])
    write_trajectories(path, [_episode("c")])
    assert [t.task_id for t in read_trajectories(path)] == ["c"]
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]


def test_sums_and_token_views() -> None:
    episode = _episode()
    invalid = Turn("", "", None, False, -1.0)
    assert (episode.episode_return, episode.invalid_actions, episode.has_tokens) == (0.5, 0, True)
    assert episode.response_ids(episode.turns[0]) == [2, 3]
    episode.turns.append(invalid)
    assert (episode.episode_return, episode.invalid_actions, episode.has_tokens) == (-0.5, 1, False)
    with pytest.raises(ValueError, match="has no tokens"):
        episode.response_ids(invalid)
