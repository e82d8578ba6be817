"""``agentgym-tlm data build-wiki``."""

import gzip
import json
from pathlib import Path

import pytest

from agentgym_tlm.cli import main
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia
from agentgym_tlm.envs.hotpotqa.question import Page

PASSAGE = {"title": "Tarnwick", "sentences": ["Tarnwick is a town."], "aliases": ["Old Tarnwick"]}


def test_wiki_is_built_from_corpora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several files, by default into the place where the environment looks for it."""
    corpus, questions = tmp_path / "corpus.jsonl.gz", tmp_path / "dev.json"
    corpus.write_bytes(gzip.compress(json.dumps(PASSAGE).encode()))
    questions.write_text(json.dumps([{"context": [["Vellmar", ["Vellmar is a port."]]]}]))
    assert main(["data", "build-wiki", str(corpus), str(questions)]) == 0
    assert f"{tmp_path / 'wiki.sqlite'} holds 2 pages." in capsys.readouterr().out
    wiki = OfflineWikipedia(tmp_path / "wiki.sqlite")
    assert wiki.search("old tarnwick") == Page("Tarnwick", ("Tarnwick is a town.",))
    assert wiki.search("Vellmar") == Page("Vellmar", ("Vellmar is a port.",))


def test_output_can_be_named(tmp_path: Path) -> None:
    """Data folders are often read-only."""
    corpus, output = tmp_path / "corpus.jsonl", tmp_path / "new" / "pages.sqlite"
    corpus.write_text(json.dumps(PASSAGE))
    assert main(["data", "build-wiki", str(corpus), "--output", str(output)]) == 0
    assert isinstance(OfflineWikipedia(output).search("Tarnwick"), Page)


def test_no_file_is_overwritten_but_an_encyclopedia(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in --output must not cost the corpus, or anything else."""
    corpus, other = tmp_path / "corpus.jsonl", tmp_path / "notes.txt"
    corpus.write_text(json.dumps(PASSAGE))
    other.write_text("precious")
    (tmp_path / "link").symlink_to(corpus)
    for output, message in ((corpus, "file of the corpus"), (tmp_path / "link", "file of the"), (other, "is there al")):
        assert main(["data", "build-wiki", str(corpus), "--output", str(output)]) == 2
        assert message in capsys.readouterr().err
    assert (corpus.read_text(), other.read_text()) == (json.dumps(PASSAGE), "precious")
    for _ in range(2):
        assert main(["data", "build-wiki", str(corpus)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build-wiki"], "needs a corpus"),
        (["build-wiki", "/nowhere/corpus.jsonl"], "/nowhere/corpus.jsonl cannot be read"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a remedy, no traceback."""
    assert main(["data", *arguments]) == 2
    assert message in capsys.readouterr().err
