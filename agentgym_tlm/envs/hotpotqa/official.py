"""What the official HotpotQA files look like, to play and to import them: see :class:`agentgym_tlm.assets.Format`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym_tlm.assets import Part
from agentgym_tlm.envs.hotpotqa.actions import encodable
from agentgym_tlm.envs.hotpotqa.corpus import HUGGING_FACE, read_records
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia
from agentgym_tlm.envs.hotpotqa.question import Question
from agentgym_tlm.errors import DataError, EnvironmentFailureError

FILES = "*.json*"
STEMS = {
    "train": ("hotpot_train_v1.1", "train_distractor", "train"),
    "dev": ("hotpot_dev_distractor_v1", "dev_distractor", "hotpot_dev_fullwiki_v1", "dev_fullwiki", "dev"),
}
"""File names of each split, without their suffix, the preferred one first."""
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
PUBLISHED = {"train": 90447, "dev": 7405}
"""Questions of each split."""
WIKI, WIKI_FILE = "wiki", "wiki.sqlite"
"""The encyclopedia, a part beside the splits, and its file."""


def find_parts(path: Path) -> list[Part]:
    """Splits and encyclopedia in a folder of official files, or the one that is such a file."""
    parts = []
    for split in STEMS:
        file = path if path.name in _names(split) and path.is_file() else question_file(path, split)
        if file is not None:
            parts.append(Part(split, file.name, file))
    wiki = path if path.name == WIKI_FILE else path / WIKI_FILE
    if wiki.is_file():
        parts.append(Part(WIKI, WIKI_FILE, wiki))
    if not parts:
        raise DataError(
            f"{path} holds no HotpotQA questions: expected hotpot_train_v1.1.json or hotpot_dev_distractor_v1.json "
            f"(or {', '.join(stem for stems in STEMS.values() for stem in stems[1:])}), as {', '.join(SUFFIXES)}; or "
            f"an encyclopedia, {WIKI_FILE}"
        )
    return parts


def check_part(name: str, path: Path) -> str:
    """Read every question of a split as the environment does, or every page of the encyclopedia."""
    if name == WIKI:
        wiki = OfflineWikipedia(path)
        try:
            wiki.check()
        except EnvironmentFailureError as error:
            raise DataError(str(error)) from error
        return wiki.description
    return f"{len(read_questions(path)):,} questions of {PUBLISHED[name]:,} published"


def missing_parts(folder: Path) -> dict[str, str]:
    """The encyclopedia, where there is none: questions alone cannot be played."""
    return {} if (folder / WIKI_FILE).is_file() else {WIKI: f"build it: {wiki_command(folder)}"}


def wiki_command(folder: Path) -> str:
    """The command that makes the encyclopedia of a folder from the folder's questions."""
    files = [str(file) for split in STEMS if (file := question_file(folder, split)) is not None]
    return shlex.join(["agentgym-tlm", "data", "build-wiki", *files, "--output", str(folder / WIKI_FILE)])


def question_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a folder of official files, if there is one."""
    return next((folder / name for name in _names(split) if (folder / name).is_file()), None)


def read_questions(path: Path) -> dict[str, Question]:
    """All questions of an official file by id, in its order. Raises DataError for the first that is none."""
    questions: dict[str, Question] = {}
    for number, record in enumerate(read_records(path), start=1):
        try:
            question = _question(record)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: record {number} is no HotpotQA question with an answer: {type(error).__name__} {error}"
            ) from error
        if question.id in questions:
            raise DataError(f"{path}: record {number} has the _id of an earlier one, {question.id!r}")
        questions[question.id] = question
    return questions


def _names(split: str) -> list[str]:
    return [stem + suffix for stem in STEMS[split] for suffix in SUFFIXES]


def _question(record: Mapping[str, Any]) -> Question:
    if isinstance(record.get("supporting_facts"), dict):
        raise ValueError(HUGGING_FACE)
    record = {"level": "", **record}
    for name in ("_id", "question", "answer", "type", "level"):
        if not isinstance(record[name], str):
            raise TypeError(f"{name} is {record[name]!r}, not a string")
    facts = tuple((title, sentence) for title, sentence in record["supporting_facts"])
    for title, sentence in facts:
        if not (isinstance(title, str) and isinstance(sentence, int)):
            raise TypeError(f"supporting_facts has {[title, sentence]!r}, not a title and a number")
    return Question(
        id=encodable(record["_id"]),
        question=encodable(record["question"]),
        answer=encodable(record["answer"]),
        type=record["type"],
        level=record["level"],
        supporting_facts=facts,
    )
