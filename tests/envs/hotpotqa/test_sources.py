"""Where questions and pages come from."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.envs.hotpotqa.question import Question
from agentgym_tlm.envs.hotpotqa.sources import DEV_SIZE, dev500_indices, open_pages, open_questions
from agentgym_tlm.errors import ConfigError, DataError
from tests.envs.hotpotqa.library import DEV, QUESTIONS, TRAIN, record, write_lines


def test_official_questions_are_read(library: Path) -> None:
    """All fields, from an array or from lines, compressed or not; in the order of their ids."""
    for split, questions in [("train", TRAIN), ("dev", DEV)]:
        source = open_questions(split, library)
        assert list(source.questions.values()) == list(questions)
        assert source.description == f"official data in {library}"


def test_variable_names_the_folder(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$HOTPOTQA_DATA stands in for data_dir, and is an error when it leads nowhere."""
    monkeypatch.setenv("HOTPOTQA_DATA", str(library))
    assert list(open_questions("dev").questions) == [question.id for question in DEV]
    monkeypatch.setenv("HOTPOTQA_DATA", str(library / "nowhere"))
    with pytest.raises(DataError, match=r"\$HOTPOTQA_DATA=.*nowhere is no folder: fetch"):
        open_questions("dev")


def _needing(key: str, *titles: str) -> Question:
    return Question(key, f"{key}?", "yes", "comparison", "hard", tuple((title, 0) for title in titles))


def test_seen_and_unseen_are_told_by_the_pages(tmp_path: Path) -> None:
    """valid_seen needs only pages that train needs, valid_unseen none of them; what needs both is in neither."""
    train = [_needing("t", "A", "B"), _needing("u", "C", "D")]
    dev = [_needing("seen", "A", "D"), _needing("mixed", "A", "X"), _needing("unseen", "X", "Y")]
    write_lines(tmp_path / "train.jsonl", [record(question) for question in train])
    write_lines(tmp_path / "dev.jsonl", [record(question) for question in dev])
    assert list(open_questions("valid_seen", tmp_path).questions) == ["seen"]
    assert list(open_questions("valid_unseen", tmp_path).questions) == ["unseen"]
    write_lines(tmp_path / "dev.jsonl", [record(question) for question in dev[1:]])
    with pytest.raises(DataError, match="needs only such pages as a question of train needs: play the split dev"):
        open_questions("valid_seen", tmp_path)


def test_dev500_is_reacts_choice(hotpotqa_data: Path) -> None:
    """The 500 questions that published numbers are about."""
    assert dev500_indices() == json.loads((hotpotqa_data / "react_dev500_indices.json").read_text())


def test_dev500_takes_rows_of_the_whole_development_set(tmp_path: Path) -> None:
    """By position in the official file, not by id."""
    rows = [{**record(DEV[0]), "_id": f"{(i * 7919) % DEV_SIZE:05}", "question": str(i)} for i in range(DEV_SIZE)]
    for row in rows:
        row["context"] = []
    write_lines(tmp_path / "dev.jsonl", rows)
    source = open_questions("dev500", tmp_path)
    assert {int(question.question) for question in source.questions.values()} == set(dev500_indices())
    assert list(source.questions) == sorted(source.questions)


def test_dev500_needs_the_whole_development_set(library: Path) -> None:
    """Rows of a part are other questions."""
    with pytest.raises(DataError, match=r"among the 7,405 questions .*hotpot_dev_distractor_v1\.json has 3: fetch"):
        open_questions("dev500", library)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "record 2 is no HotpotQA question with an answer"),
        ({"supporting_facts": {"title": ["A"], "sent_id": [0]}}, "record 2"),
        ({"supporting_facts": [["A", "0"]]}, "record 2"),
        ({"_id": 7}, "record 2"),
        ({"_id": DEV[0].id}, "record 2 has the _id of an earlier one"),
        ({"supporting_facts": {"title": ["A"], "sent_id": [0]}}, "layout of the Hugging Face data set"),
    ],
)
def test_broken_questions_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """A file in another shape is refused with the place, instead of failing within an episode."""
    write_lines(tmp_path / "dev.jsonl", [record(DEV[0]), {**record(DEV[1]), **change}])
    with pytest.raises(DataError, match=message) as caught:
        open_questions("dev", tmp_path)
    assert str(tmp_path / "dev.jsonl") in str(caught.value)


def test_questions_without_answers_are_refused(tmp_path: Path) -> None:
    """The official test set has none."""
    question = record(DEV[0])
    del question["answer"]
    write_lines(tmp_path / "dev.jsonl", [question])
    with pytest.raises(DataError, match="no HotpotQA question with an answer: KeyError 'answer'"):
        open_questions("dev", tmp_path)


def test_missing_and_cut_off_files_are_named(tmp_path: Path) -> None:
    """The data host has been known to be down, and to send empty or half files."""
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(DataError, match=r"has no hotpot_train_v1\.1\.json .*but readme\.txt: fetch"):
        open_questions("train", tmp_path)
    whole = gzip.compress("".join(json.dumps(record(question)) for question in QUESTIONS).encode())
    (tmp_path / "train.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"train\.jsonl\.gz cannot be read after record"):
        open_questions("train", tmp_path)
    with pytest.raises(DataError, match="is no folder"):
        open_questions("train", tmp_path / "train.jsonl.gz")


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    """A notebook that mends its data does not have to be restarted."""
    path = tmp_path / "dev.jsonl"
    write_lines(path, [record(DEV[0])])
    assert len(open_questions("dev", tmp_path).questions) == 1
    write_lines(path, [record(question) for question in DEV])
    assert len(open_questions("dev", tmp_path).questions) == 3


def test_unknown_splits_are_refused() -> None:
    """A misspelt split is named with those that there are."""
    with pytest.raises(ConfigError, match="must be one of train, valid_seen"):
        open_questions("test")
    with pytest.raises(DataError, match="embedded world has the splits train, valid_seen, valid_unseen, not 'dev500'"):
        open_questions("dev500")


def test_pages_are_needed(tmp_path: Path, library: Path) -> None:
    """Questions without pages cannot be played; the message says how to make them."""
    write_lines(tmp_path / "dev.jsonl", [record(DEV[0])])
    source = open_questions("dev", tmp_path)
    with pytest.raises(DataError, match=r"has no wiki\.sqlite.*`agentgym-tlm data build-wiki .*dev\.jsonl --"):
        open_pages(source)
    with pytest.raises(DataError, match="no encyclopedia at"):
        open_pages(source, tmp_path / "other.sqlite")
    assert open_pages(source, library / "wiki.sqlite").path == library / "wiki.sqlite"
    assert open_pages(open_questions("dev", library)).path == library / "wiki.sqlite"
