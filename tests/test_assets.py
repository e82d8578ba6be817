"""Imported data: what comes in is what was given, whole and checked; what is broken stays out and says why."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import agentgym_tlm  # noqa: F401
from agentgym_tlm.assets import MANIFEST, asset_path, import_asset, read_manifest, verify_part
from agentgym_tlm.envs.alfworld.sources import EmbeddedSource, open_source
from agentgym_tlm.envs.hotpotqa.offline import build_wiki
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.errors import ConfigError, DataError
from tests.envs.alfworld.test_sources import records, write_pack, write_tree

QUESTION = {
    "_id": "q1",
    "question": "Which river flows through the town of the author?",
    "answer": "the Ell",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Town", 0]],
    "context": [["Town", ["The Ell flows through it."]]],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no data elsewhere."""
    monkeypatch.setenv("AGENTGYM_TLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.delenv("HOTPOTQA_DATA", raising=False)
    return tmp_path / "cache"


def write_questions(path: Path, questions: list[Any]) -> Path:
    """An official file in the form that its name says."""
    lines = [json.dumps(question) for question in questions]
    text = "\n".join(lines) if ".jsonl" in path.name else f"[{', '.join(lines)}]"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def imported(name: str, path: Path, **options: Any) -> dict[str, str]:
    """Import, and say what each part holds."""
    return {part: record.holds for part, record in import_asset(name, path, **options)}


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("layout", ["pack", "tree", "tree/json_2.1.1", "tree/json_2.1.1/train", "pack/train.jsonl.xz"])
def test_imported_games_are_played_without_being_asked_for(layout: str, link: bool, tmp_path: Path) -> None:
    """Whatever folder of it is named, the same games are found by the environment, and their source is said."""
    games = records("train", 3)
    write_pack(tmp_path / "pack", "train", games)
    write_tree(tmp_path / "tree", games)
    assert imported("alfworld", tmp_path / layout, link=link) == {"train": "3 games of 3,553 published"}
    env = gym.make("ALFWorld-v0").unwrapped
    manifest = env.get_wrapper_attr("manifest")
    assert manifest.task_ids == tuple(sorted(game["id"] for game in games))
    env.reset(seed=0)
    if not link:
        assert str(asset_path("alfworld")) in manifest.source
        shutil.rmtree(tmp_path / "pack")
        shutil.rmtree(tmp_path / "tree")
    assert verify_part("alfworld", "train") is None


def test_variable_and_option_come_before_imported_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for wins; the generator can be asked for, too."""
    imported("alfworld", write_pack(tmp_path / "imported", "train", records("train", 3)))
    write_pack(tmp_path / "variable", "train", records("train", 2))
    write_pack(tmp_path / "option", "train", records("train", 1))
    assert len(open_source("train").task_ids) == 3
    assert isinstance(open_source("train", "embedded"), EmbeddedSource)
    assert len(open_source("train", num_games=7).task_ids) == 7
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "variable"))
    assert len(open_source("train").task_ids) == 2
    assert len(open_source("train", tmp_path / "option").task_ids) == 1
    assert isinstance(open_source("train", "embedded"), EmbeddedSource)


def test_split_that_was_not_imported_is_no_generated_split(tmp_path: Path) -> None:
    """Training on generated games and evaluating on official ones must not happen unnoticed."""
    imported("alfworld", write_pack(tmp_path, "valid_unseen", records("valid_unseen", 2)))
    with pytest.raises(DataError, match=r"imported data=.*only the splits valid_unseen, not 'train'.*embedded"):
        open_source("train")


def test_splits_come_one_by_one_and_are_replaced(tmp_path: Path, cache: Path) -> None:
    """A second import adds to the first; the same split in another layout takes the place of the old one."""
    imported("alfworld", write_pack(tmp_path / "a", "valid_seen", records("valid_seen", 2)))
    write_tree(tmp_path / "b", records("train", 2))
    imported("alfworld", tmp_path / "b")
    assert read_manifest("alfworld").keys() == {"train", "valid_seen"}
    imported("alfworld", write_pack(tmp_path / "c", "train", records("train", 4)))
    assert len(open_source("train").task_ids) == 4
    assert {path.name for path in (cache / "alfworld").iterdir()} == {
        MANIFEST,
        "json_2.1.1",
        "train.jsonl.xz",
        "valid_seen.jsonl.xz",
    }


@pytest.mark.parametrize("damage", ["truncated", "no game", "empty", "text"])
def test_garbage_stays_out_and_what_was_there_stays(damage: str, tmp_path: Path, cache: Path) -> None:
    """An interrupted download must not replace good data, nor leave anything behind."""
    imported("alfworld", write_pack(tmp_path / "good", "train", records("train", 2)))
    before = sorted(path.relative_to(cache) for path in cache.rglob("*"))
    bad = write_pack(tmp_path / "bad", "train", records("train", 3))
    if damage == "no game":
        games = records("train", 2)
        games[1]["pddl_problem"] = "(define (problem nothing))"
        write_pack(tmp_path / "bad", "train", games)
    else:
        bad.write_bytes({"truncated": bad.read_bytes()[:-40], "empty": lzma.compress(b""), "text": b"<html>"}[damage])
    with pytest.raises(DataError):
        imported("alfworld", tmp_path / "bad")
    assert sorted(path.relative_to(cache) for path in cache.rglob("*")) == before
    assert len(open_source("train").task_ids) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [("alfworld", r"alfworld-download.*json_2\.1\.1"), ("hotpotqa", r"hotpot_train_v1\.1\.json")],
)
def test_folder_without_such_data_says_what_was_expected(name: str, message: str, tmp_path: Path) -> None:
    """Pointing one level too high is the usual mistake."""
    with pytest.raises(DataError, match=message):
        imported(name, tmp_path)
    with pytest.raises(DataError, match="nothing at"):
        imported(name, tmp_path / "nowhere")
    assert asset_path(name) is None
    with pytest.raises(ConfigError, match="there are alfworld, hotpotqa"):
        imported("scienceworld", tmp_path)


@pytest.mark.parametrize("name", ["hotpot_train_v1.1.json", "train.jsonl", "train_distractor.jsonl.gz"])
def test_questions_are_imported_in_every_form(name: str, tmp_path: Path) -> None:
    """The official files, and their line by line or compressed copies."""
    path = write_questions(tmp_path / name, [QUESTION, {**QUESTION, "_id": "q2"}])
    assert imported("hotpotqa", path) == {"train": "2 questions of 90,447 published"}
    folder = asset_path("hotpotqa")
    assert folder is not None
    assert (folder / name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "dev.json is empty"),
        ([QUESTION, QUESTION], "record 2 has the _id of an earlier one"),
        (
            [QUESTION, {**QUESTION, "_id": "q2", "answer": None}],
            "record 2 is no HotpotQA question with an answer: .*answer is None",
        ),
        ([{**QUESTION, "supporting_facts": [["Town"]]}], "record 1 is no HotpotQA question"),
        ([{**QUESTION, "supporting_facts": [["Town", "0"]]}], "record 1 .*not a title and a number"),
        (["What?"], "record 1 is no JSON object"),
    ],
)
def test_questions_that_are_none_are_named(questions: list[Any], message: str, tmp_path: Path) -> None:
    """A file of the wrong kind is told from a damaged one, with the place."""
    with pytest.raises(DataError, match=message):
        imported("hotpotqa", write_questions(tmp_path / "dev.json", questions))
    assert asset_path("hotpotqa") is None


def test_import_refuses_no_question_that_can_be_played(tmp_path: Path) -> None:
    """How hard a question is, and its paragraphs, are told of some only."""
    question = {key: value for key, value in QUESTION.items() if key not in ("level", "context")}
    imported("hotpotqa", write_questions(tmp_path / "train.json", [question]))
    folder = asset_path("hotpotqa")
    assert folder is not None
    build_wiki([Page("Town", ("The Ell flows through it.",))], folder / "wiki.sqlite")
    env = gym.make("HotpotQA-v0")
    assert QUESTION["question"] in env.reset()[0]


def test_encyclopedia_is_imported_with_the_questions(tmp_path: Path) -> None:
    """A folder that can be played stays one that can be played; a damaged encyclopedia stays out."""
    write_questions(tmp_path / "train.json", [QUESTION])
    wiki = tmp_path / "wiki.sqlite"
    build_wiki([Page("Town", ("The Ell flows through it.",))], wiki)
    assert imported("hotpotqa", tmp_path)["wiki"].startswith("offline encyclopedia of 1 pages")
    assert verify_part("hotpotqa", "wiki") is None
    env = gym.make("HotpotQA-v0", max_episode_steps=2)
    env.reset(seed=0)
    assert env.step("Search[Town]")[0] == "The Ell flows through it."
    with closing(sqlite3.connect(wiki)) as database, database:
        database.execute("UPDATE page SET sentences = '[7]'")
    with pytest.raises(DataError, match="is damaged at page 1"):
        imported("hotpotqa", wiki)


@pytest.mark.parametrize("name", ["dev.json", "dev.jsonl", "dev.jsonl.gz"])
def test_damaged_questions_are_named(name: str, tmp_path: Path) -> None:
    """Half a download."""
    path = write_questions(tmp_path / name, [{**QUESTION, "_id": f"q{i}"} for i in range(50)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=f"{path.name} cannot be read after record"):
        imported("hotpotqa", path)


@pytest.mark.parametrize("layout", ["pack", "tree"])
def test_verify_notices_what_has_changed(layout: str, tmp_path: Path, cache: Path) -> None:
    """A disk error, a truncated copy, an edit, a deleted link."""
    write_pack(tmp_path / "pack", "train", records("train", 2))
    write_tree(tmp_path / "tree", records("train", 2))
    imported("alfworld", tmp_path / layout)
    assert verify_part("alfworld", "train") is None
    file = next(path for path in (cache / "alfworld").rglob("*") if path.is_file() and path.name != MANIFEST)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b" ")
    assert "size or checksum differs" in str(verify_part("alfworld", "train"))
    file.write_bytes(content)
    assert verify_part("alfworld", "train") is None
    shutil.move(cache / "alfworld" / read_manifest("alfworld")["train"].path, tmp_path / "elsewhere")
    assert "is gone" in str(verify_part("alfworld", "train"))


def test_broken_manifest_says_what_to_do(tmp_path: Path, cache: Path) -> None:
    """Not a traceback from the JSON parser."""
    imported("alfworld", write_pack(tmp_path, "train", records("train", 1)))
    (cache / "alfworld" / MANIFEST).write_text('{"parts": {"train": {}}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"delete .*alfworld, then import alfworld again"):
        read_manifest("alfworld")


def test_imported_data_is_not_imported_again(tmp_path: Path) -> None:
    """Moving the cache onto itself would lose it."""
    imported("alfworld", write_pack(tmp_path, "train", records("train", 1)))
    folder = asset_path("alfworld")
    assert folder is not None
    with pytest.raises(DataError, match="nothing to import"):
        imported("alfworld", folder)
    assert verify_part("alfworld", "train") is None


def test_official_games_are_complete(alfworld_data: Path) -> None:
    """The published counts that a complete import shows."""
    assert imported("alfworld", alfworld_data / "valid_unseen.jsonl.xz") == {
        "valid_unseen": "134 games of 134 published"
    }


def test_official_questions_are_imported(data_root: Path) -> None:
    """Real records have every field that is asked for."""
    assert imported("hotpotqa", data_root / "hotpotqa" / "dev_distractor.jsonl.gz") == {
        "dev": "866 questions of 7,405 published"
    }
