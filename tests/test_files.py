"""Files that a kill must not leave half written."""

from pathlib import Path
from threading import Event, Thread

import pytest

from agentgym_tlm.files import sole_worker, to_json, write_text


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Results or options that are cut off would be read as something else."""
    path = tmp_path / "results.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.glob("*.partial")) == []
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.glob("*.partial")) == []


def test_numbers_that_are_not_finite_are_null() -> None:
    """NaN is not JSON: other readers refuse the whole file."""
    assert to_json({"a": [float("nan"), 1.5, (float("inf"),)], "b": None}) == '{"a": [null, 1.5, [null]], "b": null}'


def test_a_folder_has_one_worker_at_a_time(tmp_path: Path) -> None:
    """The same command given twice must not train one cell twice into the same files."""
    waits, works = Event(), Event()

    def other() -> None:
        with sole_worker(tmp_path, waits.set):
            works.set()

    thread = Thread(target=other)
    with sole_worker(tmp_path, lambda: None):
        thread.start()
        assert waits.wait(30)
        assert not works.is_set()
    thread.join(30)
    assert works.is_set()
