"""The offline encyclopedia."""

import multiprocessing
import pickle
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.hotpotqa.corpus import read_pages
from agentgym_tlm.envs.hotpotqa.offline import OfflineWikipedia, build_wiki
from agentgym_tlm.envs.hotpotqa.question import Page
from agentgym_tlm.envs.hotpotqa.wiki import Suggestions, title_key
from agentgym_tlm.errors import DataError, EnvironmentFailureError
from tests.envs.hotpotqa.library import PAGES


@pytest.mark.parametrize(
    ("entity", "title"),
    [
        ("Orla Brandt", "Orla Brandt"),
        ("orla  BRANDT ", "Orla Brandt"),
        ("O. Brandt", "Orla Brandt"),
        ("Orla_Brandt", "Orla Brandt"),
        ("heron (river)", "Heron (river)"),
        ("Café Zoë", "Café Zoë"),
        ("cafe zoe", "Café Zoë"),
        ("Cafe\u0301 Zoe\u0308", "Café Zoë"),
        ("AT&amp;T & Sons", "AT&T & Sons"),
        ("ICE", "ICE"),
        ("Ice", "Ice"),
        ("Empty Page", "Empty Page"),
    ],
)
def test_titles_and_aliases_open_pages(wiki: OfflineWikipedia, entity: str, title: str) -> None:
    """Case, accents, underscores, entities and ways to compose a letter do not hide a page; the exact title wins."""
    found = wiki.search(entity)
    assert isinstance(found, Page)
    assert found.title == title
    assert found.sentences == next(page.sentences for page in PAGES if page.title == title)


@pytest.mark.parametrize(
    ("entity", "best", "ambiguous"),
    [
        ("Brandt", ["Orla Brandt", "Piet Brandt"], True),
        ("ice", ["ICE", "Ice"], True),
        ("Heron", ["Heron (bird)", "Heron (river)"], False),
        ("Orla Brant", ["Orla Brandt"], False),
        ("the lighthouse keeper's novel", ["The Glass Orchard"], False),
    ],
)
def test_other_names_suggest_pages(wiki: OfflineWikipedia, entity: str, best: list[str], ambiguous: bool) -> None:
    """Names with several meanings, titles without explanation, misspelt ones and mere words: offered, never opened."""
    found = wiki.search(entity)
    assert isinstance(found, Suggestions)
    assert (list(found.titles[: len(best)]), found.ambiguous) == (best, ambiguous)
    assert len(found.titles) <= 5
    assert len(set(found.titles)) == len(found.titles)


def test_passages_are_found_by_their_words(wiki: OfflineWikipedia) -> None:
    """Ranked by BM25 over stems; common words do not count, and no words find nothing."""
    assert [page.title for page in wiki.retrieve("Which writers kept bees?", 1)] == ["Orla Brandt"]
    assert [page.title for page in wiki.retrieve("mayors", 3)] == ["Tarnwick"]
    assert wiki.retrieve("?!", 3) == ()
    assert len(wiki.retrieve("a town on the river in the region by a sailor", 3)) == 3


def test_names_in_a_text_are_recognised(wiki: OfflineWikipedia) -> None:
    """What `play` and the random policy may search for: titles and aliases, the longest, once, in order."""
    text = "The Glass Orchard of O. Brandt (Heron (river), ice) in Vellmar. The Glass Orchard again, and Brandt."
    assert wiki.mentions(text) == ("The Glass Orchard", "Orla Brandt", "Heron (river)", "Vellmar")
    assert wiki.mentions("") == ()


HOSTILE = [
    "",
    " ",
    "x" * 100_000,
    '"',
    "'",
    "don't",
    "foo-bar",
    "NEAR(a b)",
    "C++",
    "title:x",
    "a AND",
    "OR",
    "NOT x",
    "*",
    "^a",
    "{a b}: c",
    "%",
    "_",
    "'; DROP TABLE page; --",
    "../../etc/passwd",
    "\0",
    "\ud800",
    "\u202e",
    "東京",
    "🫖" * 500,
    "(",
    "a\nb",
    "[]",
    "AT&T",
    "''''",
    '""',
    "a" * 2 + '"' + "b" * 2,
    "\u00aa\u00b2\u2160",
    "1e999",
    "NULL",
    "x'41'",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_query_syntax_is_text(wiki: OfflineWikipedia, text: str) -> None:
    """Operators, quotes and control characters of SQL and FTS5 are never read as such."""
    found = wiki.search(text)
    assert isinstance(found, Page | Suggestions)
    wiki.retrieve(text, 3)
    wiki.mentions(text)
    assert wiki.search("Vellmar") == wiki.search("vellmar")


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_is_answered(wiki: OfflineWikipedia, text: str) -> None:
    """No string that a model can write makes a search fail, nor opens a page with another name."""
    found = wiki.search(text)
    if isinstance(found, Page):
        assert title_key(text) in {title_key(name) for page in PAGES for name in (page.title, *page.aliases)}
    wiki.retrieve(text, 3)
    wiki.mentions(text)


def test_apostrophes_are_forgiven(tmp_path: Path) -> None:
    """Titles have curly ones, keyboards straight ones, or the other way round."""
    build_wiki([Page("Orla\u2019s Bees", ("one",)), Page("Piet's Boat", ("two",))], tmp_path / "wiki")
    wiki = OfflineWikipedia(tmp_path / "wiki")
    for entity in ("Orla's Bees", "Orla\u2019s bees", "Piet\u2019s Boat"):
        assert isinstance(wiki.search(entity), Page)


def test_first_of_equal_titles_counts(tmp_path: Path) -> None:
    """Corpora hold some titles twice; which text is played must not depend on chance."""
    build_wiki([Page("A", ("one",)), Page("B", ("two",)), Page("A", ("three",))], tmp_path / "wiki")
    wiki = OfflineWikipedia(tmp_path / "wiki")
    assert wiki.search("a") == Page("A", ("one",))
    assert wiki.description.startswith("offline encyclopedia of 2 pages, sha256 ")


def test_description_tells_texts_apart(tmp_path: Path) -> None:
    """Logs of two corpora with the same titles are not mixed unnoticed; the same corpus is the same anywhere."""
    descriptions = []
    for name, text in [("a", "one"), ("b", "two"), ("c", "one")]:
        build_wiki([Page("A", (text,))], tmp_path / name)
        descriptions.append(OfflineWikipedia(tmp_path / name).description)
    assert descriptions[0] == descriptions[2] != descriptions[1]


def test_building_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """A build that fails half-way destroys nothing and leaves nothing behind."""
    path = tmp_path / "wiki.sqlite"
    build_wiki([Page("A", ("one",))], path)
    broken = tmp_path / "corpus.jsonl"
    broken.write_text('{"title": "B", "sentences": []}\n{"title": ')
    with pytest.raises(DataError, match="after record 1"):
        build_wiki(read_pages([broken]), path)
    with pytest.raises(DataError, match="no page"):
        build_wiki([], path)
    assert isinstance(OfflineWikipedia(path).search("A"), Page)
    assert sorted(tmp_path.iterdir()) == [broken, path]
    with pytest.raises(DataError, match="cannot be written"):
        build_wiki([Page("A", ())], broken / "wiki.sqlite")


def test_files_that_are_no_encyclopedia_are_refused(tmp_path: Path) -> None:
    """Each message says how to make one."""
    with pytest.raises(DataError, match=r"no encyclopedia at .*build-wiki"):
        OfflineWikipedia(tmp_path / "nowhere")
    text = tmp_path / "text"
    text.write_text("not a database, and long enough to be taken for one" * 50)
    with pytest.raises(DataError, match=r"is no encyclopedia \(file is not a database\).*build-wiki"):
        OfflineWikipedia(text)
    other = tmp_path / "other"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE page (id)")
    with pytest.raises(DataError, match="no encyclopedia of format 1"):
        OfflineWikipedia(other)


def test_damage_is_a_failure_and_no_answer(tmp_path: Path) -> None:
    """A disk that loses the file's contents must not look like a page that does not exist."""
    path = tmp_path / "wiki.sqlite"
    build_wiki([Page(f"Page {i}", ("word " * 200,)) for i in range(100)], path)
    wiki = OfflineWikipedia(path)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(EnvironmentFailureError, match=r"wiki.sqlite cannot be read"):
        wiki.search("Page 7")


@pytest.mark.parametrize("cell", ["", "{", "7", "[7]", '"text"', "[" * 100_000])
def test_damaged_page_is_a_failure(tmp_path: Path, cell: str) -> None:
    """Half-written sentences end the episode as env_error, not the run with a traceback."""
    path = tmp_path / "wiki.sqlite"
    build_wiki([Page("A", ("one",))], path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE page SET sentences = ?", [cell])
    with pytest.raises(EnvironmentFailureError, match="is damaged at page 1"):
        OfflineWikipedia(path).search("A")


def test_the_file_is_never_written_to(library: Path, wiki: OfflineWikipedia) -> None:
    """Many processes share one file, on a disk that may be read-only."""
    before = (library / "wiki.sqlite").read_bytes()
    wiki.search("Orla")
    wiki.retrieve("a river", 3)
    assert (library / "wiki.sqlite").read_bytes() == before
    assert {path.name for path in library.iterdir()} == {
        "wiki.sqlite",
        "train_distractor.jsonl.gz",
        "hotpot_dev_distractor_v1.json",
    }


def _titles(wiki: OfflineWikipedia) -> list[str]:
    found = wiki.search("Orla Brant")
    assert isinstance(found, Suggestions)
    return [*found.titles, *(page.title for page in wiki.retrieve("a port on a river", 3))]


def _answer(wiki: OfflineWikipedia, pipe: Connection) -> None:
    pipe.send(_titles(wiki))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_the_file(wiki: OfflineWikipedia, method: str) -> None:
    """Workers of vector environments, forked or spawned, after the parent has already read."""
    expected = _titles(wiki)
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_answer, args=(wiki, there))  # type: ignore[attr-defined]
    process.start()
    assert here.recv() == expected
    process.join()
    assert process.exitcode == 0
    assert _titles(wiki) == expected


def test_threads_share_the_file(wiki: OfflineWikipedia) -> None:
    """Each thread reads what a single one reads."""
    barrier = threading.Barrier(8)

    def read(_: int) -> list[list[str]]:
        barrier.wait()
        return [_titles(wiki) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        answers = [titles for result in pool.map(read, range(8)) for titles in result]
    assert answers == [_titles(wiki)] * 160


def test_pickle_keeps_the_encyclopedia(wiki: OfflineWikipedia) -> None:
    """As an argument of an environment it travels to workers."""
    assert _titles(pickle.loads(pickle.dumps(wiki))) == _titles(wiki)


def test_official_titles_are_found(hotpotqa_data: Path, official_wiki: Path) -> None:
    """On 25,874 passages: every title opens its page, and nearly every misspelt one is offered among five."""
    wiki = OfflineWikipedia(official_wiki)
    titles = [page.title for page in read_pages([hotpotqa_data / "corpus.jsonl.gz"])]
    rng = Random(0)
    chosen = rng.sample([title for title in titles if len(title) >= 8], 200)
    offered = 0
    for title in chosen:
        found = wiki.search(title)
        assert isinstance(found, Page)
        assert found.title == title
        at = rng.randrange(1, len(title) - 1)
        found = wiki.search(title[:at] + title[at + 1 :])
        offered += title in (found.titles if isinstance(found, Suggestions) else (found.title,))
    assert offered >= 190
