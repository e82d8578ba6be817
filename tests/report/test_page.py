"""The page: one file that loads nothing, with the tables before the figures, whatever is in the runs."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentgym_tlm.report import write_report
from tests.report.folders import pair, run_folder

CURVE = [{"step": s, "iteration": 0, "loss": 1 / s, "margin": s / 100} for s in (10, 20)]


class Markup(HTMLParser):
    """Collects every attribute of a page, and the text of its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._in_cell = tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])
        elif self._in_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def report(path: Path, *runs: Path, **options: object) -> str:
    write_report(runs, path, title="Lamps & rooms", **options)  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


def test_one_file_that_loads_nothing(tmp_path: Path) -> None:
    """It has to work from a USB stick, and must not tell anyone that it was opened."""
    page = report(tmp_path / "r.html", run_folder(tmp_path / "run", pairs=[pair()], metrics=CURVE))
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    loading = {"src", "srcset", "data", "action", "poster", "background"}
    for tag, name, value in Markup(page).attributes:
        assert name not in loading, (tag, name, value)
        assert not name.endswith("href") or value.startswith("#"), (tag, name, value)
        assert not name.startswith("on"), (tag, name, value)
    assert "default-src 'none'" in page
    assert "<title>Lamps &amp; rooms</title>" in page
    assert not list(tmp_path.glob("*.partial"))


def test_same_runs_same_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", pairs=[pair()], metrics=CURVE)
    assert report(tmp_path / "a.html", folder) == report(tmp_path / "b.html", folder)


def test_sections_come_first_and_the_title_is_text(tmp_path: Path) -> None:
    sections = [("Which <is> better", "<p>{{SCRIPT}} by 3 points</p>")]
    page = report(tmp_path / "r.html", run_folder(tmp_path / "run"), sections=sections)
    assert "<h2>Which &lt;is&gt; better</h2>\n<p>{{SCRIPT}} by 3 points</p>" in page
    assert page.index("by 3 points") < page.index("<h2>Success</h2>") < page.index("<h2>Figures</h2>")


def test_success_in_the_layout_of_table_1(tmp_path: Path) -> None:
    """Mean ± deviation over seeds, an interval for a single run; an SFT policy that runs share counts once."""
    first = run_folder(tmp_path / "a", won=(2, 3))
    rows = Markup(
        report(
            tmp_path / "r.html",
            first,
            run_folder(tmp_path / "b", won=(4, 4), seed=1),
            run_folder(tmp_path / "c", "dpo", won=(2, 1), sft_policy=first / "sft" / "policy"),
        )
    ).rows
    assert rows[:4] == [
        ["policy", "Toy valid_seen", "runs"],
        ["sft", "75.0 ± 35.4", "2"],
        ["tlm-dre", "87.5 ± 17.7", "2"],
        ["dpo", "25.0 [4.6, 69.9]", "1"],
    ]


def test_figures_have_a_text_alternative(tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", run_folder(tmp_path / "run", metrics=CURVE))
    labels = [value for tag, name, value in Markup(page).attributes if (tag, name) == ("div", "aria-label")]
    assert any(label.startswith("Reward margin. Margin between the chosen") for label in labels)
    assert ["run", "tlm-dre", "20", "0.2"] in Markup(page).rows


def test_without_matplotlib_the_page_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = run_folder(tmp_path / "run", metrics=CURVE)
    with pytest.warns(UserWarning, match="no figures"):
        page = report(tmp_path / "r.html", folder)
    assert "pip install &quot;agentgym-tlm[report]&quot;" in page
    assert "<h2>Success</h2>" in page


def test_the_script_is_run_by_no_other_means_than_its_own_tag() -> None:
    """Its text stands inside a script element, which these would end."""
    folder = Path(__file__).resolve().parents[2] / "agentgym_tlm" / "report"
    script = (folder / "viewer.js").read_text()
    assert not re.search(r"</script|<!--", script, re.IGNORECASE)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch\(", script)
