"""Where questions, and the pages that answer them, come from: official HotpotQA files or the embedded world.

:func:`open_questions` looks, in this order, at an explicit ``data_dir``, at ``$HOTPOTQA_DATA``, and at what
``agentgym-tlm data import hotpotqa`` has brought into the cache; the embedded world is used when there is none of them.
What is there but cannot be read is an error. ``data_dir="embedded"`` asks for the embedded world. Nothing is written to
a data folder. Questions are kept per process, so any number of environments share them.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from agentgym_tlm.assets import EMBEDDED, asset_path
from agentgym_tlm.envs.hotpotqa.official import (
    PUBLISHED,
    STEMS,
    WIKI_FILE,
    question_file,
    read_questions,
    wiki_command,
)
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia, temporary_wiki
from agentgym_tlm.envs.hotpotqa.question import Question
from agentgym_tlm.errors import ConfigError, DataError

SPLITS = ("train", "valid_seen", "valid_unseen", "dev", "dev500")
DATA_VARIABLE = "HOTPOTQA_DATA"
DEV_SIZE = PUBLISHED["dev"]

_EMBEDDED_SPLITS = ("train", "valid_seen", "valid_unseen")
_REMEDY = (
    "fetch hotpot_train_v1.1.json and hotpot_dev_distractor_v1.json from the HotpotQA project and point data_dir or "
    f"${DATA_VARIABLE} to their folder, or play the embedded world's questions with data_dir='embedded'"
)


@dataclass(frozen=True)
class QuestionSource:
    """The questions of one split by id, in sorted order."""

    description: str
    questions: Mapping[str, Question]
    folder: Path | None
    """Folder of the official data; None: the embedded world."""


def open_questions(split: str, data_dir: str | os.PathLike[str] | None = None) -> QuestionSource:
    """The questions of ``split``. Raises DataError when data that was asked for is missing or broken."""
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if data_dir is not None and not (isinstance(data_dir, str | os.PathLike) and os.fspath(data_dir)):
        raise ConfigError(f"data_dir must be a folder, 'embedded' or None, not {data_dir!r}")
    origin = "data_dir"
    if data_dir is None and os.environ.get(DATA_VARIABLE):
        data_dir, origin = os.environ[DATA_VARIABLE], f"${DATA_VARIABLE}"
    if data_dir is None:
        data_dir, origin = asset_path("hotpotqa"), "imported data"
    if data_dir is not None and data_dir != EMBEDDED:
        folder = Path(data_dir).expanduser().resolve()
        if not folder.is_dir():
            raise DataError(f"{origin}={data_dir} is no folder: {_REMEDY}")
        questions = _official(folder, split)
        return QuestionSource(f"official data in {folder}", dict(sorted(questions.items())), folder)
    if split not in _EMBEDDED_SPLITS:
        raise DataError(
            f"the embedded world has the splits {', '.join(_EMBEDDED_SPLITS)}, not {split!r}, which is official: "
            f"{_REMEDY}"
        )
    from agentgym_tlm.envs.hotpotqa.world import embedded_world

    questions = {question.id: question for question in embedded_world().questions(split)}
    return QuestionSource("embedded generated world", dict(sorted(questions.items())), None)


def open_pages(source: QuestionSource, wiki_file: str | os.PathLike[str] | None = None) -> OfflineWikipedia:
    """The offline pages for a source's questions: ``wiki_file``, else the one beside the official data, else the world.

    Raises DataError, naming the command that builds it, when the file is missing or is none.
    """
    if wiki_file is not None:
        return _open(Path(wiki_file).expanduser().resolve())
    if source.folder is None:
        return _embedded_wiki()
    if not (source.folder / WIKI_FILE).is_file():
        raise DataError(
            f"{source.folder} has no {WIKI_FILE}, and so no pages to search: build it from the questions' own pages "
            f"with `{wiki_command(source.folder)}`, or from a corpus instead of them; give it as wiki_file= if it lies "
            "elsewhere"
        )
    return _open(source.folder / WIKI_FILE)


def dev500_indices() -> list[int]:
    """Rows of the official development set that ReAct, and many after it, evaluate on."""
    rows = list(range(DEV_SIZE))
    Random(233).shuffle(rows)
    return rows[:500]


def _official(folder: Path, split: str) -> dict[str, Question]:
    if split == "train":
        return dict(_read_questions(*_find(folder, "train")))
    dev_file = _find(folder, "dev")
    dev = _read_questions(*dev_file)
    if split == "dev":
        return dict(dev)
    if split == "dev500":
        if len(dev) != DEV_SIZE:
            raise DataError(
                f"dev500 is a choice among the {DEV_SIZE:,} questions of the official development set, and "
                f"{dev_file[0]} has {len(dev):,}: fetch hotpot_dev_distractor_v1.json, or play the split dev"
            )
        rows = list(dev.items())
        return dict(rows[i] for i in dev500_indices())
    known = {title for question in _read_questions(*_find(folder, "train")).values() for title in _pages(question)}
    seen = split == "valid_seen"
    chosen = {
        key: question
        for key, question in dev.items()
        if (_pages(question) <= known if seen else not _pages(question) & known)
    }
    if not chosen:
        which = "only such pages as" if seen else "no page that"
        raise DataError(f"no question of {dev_file[0]} needs {which} a question of train needs: play the split dev")
    return chosen


def _pages(question: Question) -> set[str]:
    return {title for title, _ in question.supporting_facts}


def _find(folder: Path, split: str) -> tuple[Path, int]:
    """File of the official ``split``, and when it was modified."""
    if (path := question_file(folder, split)) is not None:
        return path, path.stat().st_mtime_ns
    first = STEMS[split][0]
    there = ", ".join(sorted(each.name for each in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"{folder} has no {first}.json (nor {STEMS[split][1]}.json, .jsonl, or .gz), but {there}: {_REMEDY}"
    )


@lru_cache(maxsize=4)
def _read_questions(path: Path, _modified: int) -> Mapping[str, Question]:
    try:
        return read_questions(path)
    except DataError as error:
        raise DataError(f"{error}; {_REMEDY}") from error


def _open(path: Path) -> OfflineWikipedia:
    return _open_wiki(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache
def _open_wiki(path: Path, _modified: int) -> OfflineWikipedia:
    return OfflineWikipedia(path)


@lru_cache
def _embedded_wiki() -> OfflineWikipedia:
    """The embedded world's pages, in a file that goes when the process that wrote it ends."""
    from agentgym_tlm.envs.hotpotqa.world import embedded_world

    stack, owner = ExitStack(), os.getpid()
    atexit.register(lambda: stack.close() if os.getpid() == owner else None)
    return stack.enter_context(temporary_wiki(embedded_world().pages))
