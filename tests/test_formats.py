"""Public trajectory files: read as what they are, refused where they are not, and nothing is lost without a word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.batch import Example
from agentgym_tlm.envs.base import TaskManifest
from agentgym_tlm.errors import DataError
from agentgym_tlm.formats import (
    dpo_row,
    match_tasks,
    messages_row,
    read_conversations,
    read_expert,
    sft_rows,
    summary,
)
from agentgym_tlm.pairs import Pair
from agentgym_tlm.prompt import ReactFormat
from agentgym_tlm.trajectory import StopReason, write_trajectories
from tests.toy_env import expert_trajectories, tiny_policy

HOW_TO = "You live in a house. Answer with a thought and an action."
TASK = "You are in the hall. You see a lamp.\nYour task is to: bring the lamp to the study."
TURNS = [
    TASK,
    "Thought: The lamp is here.\nAction: take lamp",
    "Observation: You take the lamp.",
    "Action: go to study",
    "Observation: You arrive.",
]
MANIFEST = TaskManifest("Toy-v0", "train", "toy", ("train/lamp/trial_1", "train/lamp/trial_2"))


def conversation(*texts: str, first: str = "human") -> list[dict[str, Any]]:
    roles = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": roles[i % 2], "value": text} for i, text in enumerate(texts)]


def eto(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"id": "trial_1", "conversations": conversation(HOW_TO, "OK", *texts), **fields}


def write(path: Path, records: list[Any], *, lines: bool = False, indent: int | None = None) -> Path:
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=indent)
    path.write_text(text)
    return path


def read_one(tmp_path: Path, record: Any, **options: Any) -> Any:
    (trajectory,), broken = read_conversations(write(tmp_path / "file.json", [record]), "Toy-v0", **options)
    assert not broken
    return trajectory


@pytest.mark.parametrize("lines", [False, True])
def test_eto(tmp_path: Path, lines: bool) -> None:
    """Instruction and OK are left out, observations lose their prefix, responses stay as they are."""
    path = write(tmp_path / "eto.json", [eto(*TURNS)] * 2, lines=lines)
    trajectories, broken = read_conversations(path, "Toy-v0")
    assert (len(trajectories), broken) == (2, [])
    trajectory = trajectories[0]
    assert [(turn.observation, turn.response, turn.action) for turn in trajectory.turns] == [
        (TASK, TURNS[1], "take lamp"),
        ("You take the lamp.", TURNS[3], "go to study"),
    ]
    assert trajectory.final_observation == "You arrive."
    assert trajectory.instruction == "bring the lamp to the study."
    assert (trajectory.task_id, trajectory.score, trajectory.won) == ("trial_1", 1.0, True)
    assert trajectory.metadata == {"file": "eto.json", "record": 1}
    assert ReactFormat("Play.").first_message(trajectory.instruction, TASK) == f"Play.\n\n{TASK}"  # the task said once


def test_agenttraj(tmp_path: Path) -> None:
    """Only what has a loss begins the episode; a response without one in it is context."""
    messages = conversation(HOW_TO, "OK. I'll follow your instructions.", "An example.", "Action: look", *TURNS[:4])
    for message, loss in zip(messages, (None, False, None, False, None, True, None, False), strict=True):
        message["loss"] = loss
    trajectory = read_one(tmp_path, {"conversations": messages, "item_id": "alfworld_7"})
    assert trajectory.task_id == "alfworld_7"
    assert [turn.observation for turn in trajectory.turns] == [TASK, "You take the lamp."]
    assert [turn.trainable for turn in trajectory.turns] == [True, False]


def test_openai_messages(tmp_path: Path) -> None:
    """With a system message, and content in parts."""
    messages = [
        {"role": "system", "content": HOW_TO},
        {"role": "user", "content": [{"type": "text", "text": TASK}]},
        {"role": "assistant", "content": TURNS[1]},
    ]
    trajectory = read_one(tmp_path, {"messages": messages, "reward": 0.5})
    assert (trajectory.turns[0].observation, trajectory.turns[0].action) == (TASK, "take lamp")
    assert (trajectory.score, trajectory.won, trajectory.stop_reason) == (0.5, False, StopReason.LOST)


def test_worked_example_has_to_be_named(tmp_path: Path) -> None:
    """Imitating two tasks as one episode would teach to begin anew in the middle."""
    record = eto("An example. Your task is to: sit.", "Action: sit", *TURNS)
    path = write(tmp_path / "file.json", [record, eto(*TURNS)])
    trajectories, broken = read_conversations(path, "Toy-v0")
    assert len(trajectories) == 1
    assert "second task" in broken[0].reason
    assert "skip_messages" in broken[0].reason
    assert read_one(tmp_path, record, skip_messages=4).turns[0].observation == TASK


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "?"}, 'no list of "conversations" or "messages"'),
        ([1], 'no list of "conversations" or "messages"'),
        (eto(), "no response"),
        (eto(TASK), "no response"),
        (eto(TASK, "Let me think.\nAbout it."), "no action that can be read"),
        ({"conversations": conversation(*TURNS[1:3], first="gpt")}, "do not take turns"),
        ({"conversations": [{"from": "human", "value": "Hello."}] * 2}, "do not take turns"),
        ({"conversations": [{"from": "narrator", "value": TASK}]}, "from 'narrator'"),
        ({"conversations": [{"from": "human", "value": None}]}, "not text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
        ({"messages": ["hello"]}, "not an object"),
        (eto(*TURNS, score=17), "not a number in"),
        (eto(*TURNS, trainable=[True]), "one boolean for each response"),
    ],
    ids=str,
)
def test_broken_records_are_counted_with_their_lines(tmp_path: Path, record: Any, reason: str) -> None:
    good = eto(*TURNS)
    for lines in (True, False):
        path = write(tmp_path / "file.json", [good, record, good], lines=lines)
        trajectories, (broken,) = read_conversations(path, "Toy-v0")
        assert [trajectory.metadata["record"] for trajectory in trajectories] == [1, 3]
        assert (broken.line, broken.record) == (2 if lines else 1, 2)
        assert reason in broken.reason


def test_unusual_values_are_refused_or_read(tmp_path: Path) -> None:
    """One odd record must not hide the others behind a traceback."""
    odd = [
        {"conversations": [{"from": ["human"], "value": "hi"}, {"from": "gpt", "value": "Action: look"}]},
        eto(*TURNS, trainable=["no"] * 9),
        eto(*TURNS, score=None, reward=0.5),
        eto(*(text + "\ud800" for text in TURNS)),
    ]
    trajectories, broken = read_conversations(write(tmp_path / "file.json", odd, lines=True), "Toy-v0")
    assert [record.line for record in broken] == [1, 2]
    assert [trajectory.score for trajectory in trajectories] == [0.5, 1.0]
    assert "?" in trajectories[1].turns[0].observation


def test_lines_of_an_indented_array_and_of_torn_jsonl(tmp_path: Path) -> None:
    """The line to look at, in files that people have opened in an editor."""
    path = write(tmp_path / "file.json", [{"a": 1}, eto(*TURNS), {"b": 2}], indent=1)
    _, broken = read_conversations(path, "Toy-v0")
    text = path.read_text().splitlines()
    assert [text[record.line - 1].strip() for record in broken] == ["{", "{"]
    assert [text[record.line].strip()[1] for record in broken] == ["a", "b"]
    torn = tmp_path / "torn.jsonl"
    torn.write_text(f"{json.dumps(eto(*TURNS))}\n\n{json.dumps(eto(*TURNS))[:50]}\n")
    _, (record,) = read_conversations(torn, "Toy-v0")
    assert (record.line, record.record) == (3, 2)
    assert "not JSON" in record.reason
    assert summary([record] * 7) == f"{record.reason} (7: line 3, 3, 3, 3, 3, ...)"


def test_files_of_no_use_are_errors(tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps([eto(*TURNS)] * 2, indent=1)[:-200])
    with pytest.raises(DataError, match=r"cut\.json:\d+: the JSON array is broken"):
        read_conversations(cut, "Toy-v0")
    tools = [{"messages": [{"role": "tool", "content": "42"}]}]
    with pytest.raises(DataError, match=r"tools\.json:1: messages with tool calls are not text episodes"):
        read_conversations(write(tmp_path / "tools.json", tools), "Toy-v0")
    with pytest.raises(DataError, match="holds no episode that can be read: it is empty"):
        read_conversations(write(tmp_path / "empty.json", []), "Toy-v0")
    with pytest.raises(DataError, match=r"line 1 \(record 1\): no list of"):
        read_conversations(write(tmp_path / "other.json", [{}]), "Toy-v0")
    with pytest.raises(DataError, match="there is no file"):
        read_expert(tmp_path / "nowhere", MANIFEST)


@pytest.mark.parametrize(
    ("given", "task"),
    [
        ("train/lamp/trial_1", "train/lamp/trial_1"),
        ("json_2.1.1/train/lamp/trial_2/game.tw-pddl", "train/lamp/trial_2"),
        ("trial_2", "train/lamp/trial_2"),
        ("lamp", ""),  # which of the two?
        ("trial_3", ""),
        ("", ""),
    ],
)
def test_task_ids_of_other_projects(given: str, task: str) -> None:
    """Their paths are longer or shorter than ours; what is ambiguous stays unmatched."""
    (trajectory,) = match_tasks([replace(expert_trajectories()[0], task_id=given)], MANIFEST)
    assert trajectory.task_id == task


def test_a_record_number_is_no_task() -> None:
    numbered = TaskManifest("Toy-v0", "train", "toy", ("boil/12",))
    (trajectory,) = match_tasks([replace(expert_trajectories()[0], task_id="12")], numbered)
    assert trajectory.task_id == ""


def test_turn_logs_of_another_model_are_read_as_text(tmp_path: Path) -> None:
    """Its token ids mean nothing to the policy that imitates it."""
    encoded = [tiny_policy().renderer.encode_trajectory(t) for t in expert_trajectories()[:3]]
    write_trajectories(tmp_path / "log.jsonl", encoded)
    manifest = TaskManifest("Toy-v0", "train", "toy", tuple({t.task_id for t in encoded}))
    trajectories, broken = read_expert(tmp_path / "log.jsonl", manifest)
    assert broken == []
    assert [replace(t, prompt_format="react") for t in trajectories] == list(expert_trajectories()[:3])
    with pytest.raises(DataError, match="holds episodes of Toy-v0, not of ALFWorld-v0"):
        read_expert(tmp_path / "log.jsonl", replace(manifest, env_id="ALFWorld-v0"))


def test_what_is_exported_as_messages_comes_back(tmp_path: Path) -> None:
    """Turn for turn, injected mistakes included as context only."""
    original = [trajectory for trajectory in expert_trajectories() if trajectory.won][:8]
    assert any(not turn.trainable for trajectory in original for turn in trajectory.turns)
    rows = [messages_row(trajectory, ReactFormat(instructions="")) for trajectory in original]
    trajectories, broken = read_conversations(write(tmp_path / "m.jsonl", rows, lines=True), "Toy-v0")
    assert broken == []
    for before, after in zip(original, trajectories, strict=True):
        assert after.task_id == before.task_id
        assert [(t.observation, t.response, t.action, t.trainable) for t in after.turns] == [
            (t.observation, t.response, t.action, t.trainable) for t in before.turns
        ]


def test_sft_rows_are_the_tokens_of_the_loss() -> None:
    encoded = tiny_policy().renderer.encode_trajectory(expert_trajectories()[0])
    (row,) = sft_rows(encoded)
    (expected,) = Example.from_trajectory(encoded).rows
    assert row == {"input_ids": expected.input_ids.tolist(), "assistant_masks": [int(x) for x in expected.loss_mask]}


def test_dpo_row_splits_after_the_first_message() -> None:
    first, second = expert_trajectories()[:2]
    row = dpo_row(Pair(first, second), ReactFormat("Play."))
    assert [message["role"] for message in row["prompt"]] == ["user"]
    assert row["prompt"][0]["content"].startswith("Play.")
    for side, trajectory in (("chosen", first), ("rejected", second)):
        assert [m["content"] for m in row[side][::2]] == [turn.response for turn in trajectory.turns]
        assert [m["role"] for m in row[side]] == (["assistant", "user"] * len(trajectory.turns))[:-1]
    assert row["task_id"] == first.task_id


def test_dpo_row_has_given_turns_in_its_prompt() -> None:
    """TRL would otherwise train on the turns that both sides of a step pair begin with."""
    whole = next(each for each in expert_trajectories() if len(each.turns) > 1)
    given = replace(whole, turns=[replace(whole.turns[0], trainable=False), *whole.turns[1:]])
    other = replace(
        given, turns=[given.turns[0], *(replace(turn, response="Action: wait") for turn in given.turns[1:])]
    )
    row = dpo_row(Pair(given, other), ReactFormat(""))
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"]
    assert row["prompt"][1]["content"] == whole.turns[0].response
    assert row["chosen"][0]["content"] == whole.turns[1].response
    assert row["rejected"][0]["content"] == "Action: wait"


def test_trl_learns_the_same_tokens(tmp_path: Path) -> None:
    """TRL's SFTTrainer, given the exported rows, has a loss on our tokens and no others."""
    trl: Any = pytest.importorskip("trl", reason="trl is not installed: pip install trl")
    datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    policy = tiny_policy()
    encoded = [policy.renderer.encode_trajectory(trajectory) for trajectory in expert_trajectories()[:3]]
    rows = [row for trajectory in encoded for row in sft_rows(trajectory)]
    trainer = trl.SFTTrainer(
        policy.model,
        args=trl.SFTConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, max_length=None, bf16=False),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=policy.tokenizer,
    )
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(3)])
    for labels, row in zip(batch["labels"].tolist(), rows, strict=True):
        expected = [i if mask else -100 for i, mask in zip(row["input_ids"], row["assistant_masks"], strict=True)]
        assert labels[: len(expected)] == expected
        assert set(labels[len(expected) :]) <= {-100}
