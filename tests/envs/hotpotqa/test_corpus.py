"""Files of passages and questions."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentgym_tlm.envs.hotpotqa.corpus import read_pages, read_records
from agentgym_tlm.envs.hotpotqa.offline import build_wiki
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.errors import DataError
from tests.envs.hotpotqa.library import QUESTIONS, record, write_lines

PASSAGES = [
    {"id": 1, "title": "Salt &amp; Tar", "sentences": ["One.", " Two."], "aliases": ["S&amp;T"], "in": ["x"]},
    {"title": "B_C", "sentences": []},
]


def test_passages_become_pages(tmp_path: Path) -> None:
    """The documented fields are read, others ignored, and titles are as people write them."""
    path = write_lines(tmp_path / "corpus.jsonl.gz", PASSAGES)
    assert list(read_pages([path])) == [Page("Salt & Tar", ("One.", " Two."), ("S&T",)), Page("B C", ())]


def test_question_files_are_corpora_too(tmp_path: Path) -> None:
    """Whoever has only the official questions can search the paragraphs that come with them."""
    path = tmp_path / "dev.json"
    path.write_text(json.dumps([record(question) for question in QUESTIONS[:2]]))
    assert [page.title for page in read_pages([path])] == ["Orla Brandt", "Piet Brandt", "Tarnwick", "Vellmar"] * 2


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("size", [3, 40_000])
def test_arrays_and_lines_are_read_piece_by_piece(tmp_path: Path, indent: int | None, size: int) -> None:
    """Records that lie across the pieces in which a file is read arrive whole, in order."""
    records = [{"number": i, "text": '[]{},\\"* ' * 5} for i in range(size)]
    path = tmp_path / "records.json"
    path.write_text(json.dumps(records, indent=indent))
    assert list(read_records(path)) == records
    assert list(read_records(write_lines(tmp_path / "records.jsonl", records))) == records


def test_a_record_longer_than_a_piece_arrives(tmp_path: Path) -> None:
    """A page may be longer than what is read at once."""
    records = [{"text": "x" * 3_000_000}, {"text": "y"}]
    assert list(read_records(write_lines(tmp_path / "long.jsonl", records))) == records


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"[]", "is empty"),
        (b'{"title": "A", "sentences": ["x"]}\n{"title": ', "after record 1"),
        (b"<html>403 Forbidden</html>", "after record 0"),
        (b'{"title": "A", "sentences": ["x"]}\n7', "record 2 is no JSON object"),
        (b'{"title": "A"}', "record 1 is neither a passage .* 'sentences'"),
        (b'{"title": "A", "sentences": "x"}', "record 1 .*'x' where a list of strings should be"),
        (b'{"title": " ", "sentences": []}', "record 1 .*the title is ' '"),
        (b"\xff\xfe", "after record 0"),
        (b'[{"title": "A", "sentences": ["x"]}', "after record 1: ValueError the array is not closed"),
        (b'[{"title": "A", "sentences": ["x"]},', "after record 1: ValueError the array is not closed"),
        (b'{"title": "A", "sentences": ["x"]}]', "after record 1"),
        (b'[{"title": "A", "sentences": ["x"]}]]', "after record 1"),
        (b'[{"title": "A", "sentences": ["x"]} {"title": "B", "sentences": []}]', "after record 1"),
        (b'{"context": {"title": ["A"], "sentences": [["x"]]}}', "record 1 .*layout of the Hugging Face data set"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A download that failed half-way says so, with file and record, instead of playing what is left."""
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_pages([path]))
    assert str(path) in str(caught.value)


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    """So does a compressed file that was cut off."""
    whole: list[dict[str, Any]] = [{"title": str(i), "sentences": [str(i * i)]} for i in range(1000)]
    path = write_lines(tmp_path / "corpus.jsonl.gz", whole)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz cannot be read after record"):
        list(read_pages([path]))
    whole_file = bytearray(write_lines(path, whole).read_bytes())
    whole_file[500:600] = bytes(100)
    path.write_bytes(whole_file)
    with pytest.raises(DataError, match="cannot be read after record"):
        list(read_pages([path]))
    path.write_bytes(gzip.compress(b"x")[:5])
    with pytest.raises(DataError, match="after record 0"):
        list(read_pages([path]))


def test_lone_surrogates_become_question_marks(tmp_path: Path) -> None:
    """Half a character, which no database can store, as web texts hold it."""
    path = tmp_path / "corpus.jsonl"
    path.write_text(r'{"title": "A\ud800", "sentences": ["One \ud83d.", " \ud83d\ude00"]}')
    [page] = read_pages([path])
    assert page == Page("A", ("One ?.", " \U0001f600"))
    build_wiki([page], tmp_path / "wiki.sqlite")
