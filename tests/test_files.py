"""Files that a kill must not leave half written."""

from pathlib import Path

import pytest

from agentgym_tlm.files import to_json, write_text


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Results or options that are cut off would be read as something else."""
    path = tmp_path / "results.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.glob("*.partial")) == []


def test_numbers_that_are_not_finite_are_null() -> None:
    """NaN is not JSON: other readers refuse the whole file."""
    assert to_json({"a": [float("nan"), 1.5, (float("inf"),)], "b": None}) == '{"a": [null, 1.5, [null]], "b": null}'
