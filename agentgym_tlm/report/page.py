"""The report as one HTML file: no server, no network, nothing outside it.

The text of runs reaches the page in two ways only: escaped, in tables and captions; and in the compressed data of the
viewer, whose script puts it into text nodes. A content security policy lets no script but the viewer's own run, and
nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev

from agentgym_tlm.errors import DependencyError
from agentgym_tlm.files import replaced_file
from agentgym_tlm.report.canvas import Figure
from agentgym_tlm.report.episodes import COLUMNS, EPISODES_PER_CHUNK, EpisodeData, collect, packed
from agentgym_tlm.report.figures import draw
from agentgym_tlm.report.runs import Run, read_runs, variants

DEFAULT_LIMIT = 200
"""Episodes, or pairs, of every log that a report shows."""


def write_report(
    runs: Sequence[Path],
    path: Path,
    *,
    title: str,
    sections: Sequence[tuple[str, str]] = (),
    limit: int | None = DEFAULT_LIMIT,
) -> list[Figure]:
    """Write a report on run folders to ``path``, atomically, and return the figures of these runs.

    ``sections`` are headings and the HTML under them, which come first; scripts in them do not run. ``limit`` bounds
    the episodes of every log (None: all). Without matplotlib the report has no figures, and says so, with a warning.
    Raises DataError for a folder that is not a run's.
    """
    found = read_runs(runs)
    parts = [_section(heading, body) for heading, body in sections]
    if any(run.results for run in found):
        parts.append(_section("Success", _success_table(found)))
    figures, shown = _figures(found)
    parts.append(_section("Figures", shown))
    data = collect(found, limit)
    parts.append(_section("Sources", _sources(data)))
    script = _asset("viewer.js")
    index = packed({"columns": COLUMNS, "perChunk": EPISODES_PER_CHUNK, "rows": data.rows})
    chunks = [_data("index", index), *(_data(f"chunk-{i}", chunk) for i, chunk in enumerate(data.chunks))]
    values = {
        "TITLE": escape(title),
        "STYLE": _asset("viewer.css"),
        "SCRIPT": script,
        "SCRIPT_HASH": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "CONTENTS": "\n".join(parts),
        "DATA": "\n".join(chunks),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _asset("viewer.html"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as partial:
        partial.write_bytes(page.encode("utf-8", errors="replace"))  # a lone surrogate has no bytes
    return figures


def table(rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """Rows as an HTML table, the head first, everything escaped; all but the first columns hold numbers."""
    head, *body = rows

    def cells(row: Sequence[str], name: str) -> str:
        shown = (
            f"<{name}{' class=number' if i >= text_columns else ''}>{escape(cell)}</{name}>"
            for i, cell in enumerate(row)
        )
        return f"<tr>{''.join(shown)}</tr>"

    lines = [f"<thead>{cells(head, 'th')}</thead>", "<tbody>", *(cells(row, "td") for row in body), "</tbody>"]
    return f'<div class="scroll" tabindex="0"><table>{"".join(lines)}</table></div>'


def _success_table(runs: Sequence[Run]) -> str:
    """The layout of the paper's Table 1: a row per policy, a column per environment and split."""
    names = variants(runs)
    trainers = ["sft", *(run.trainer for run in runs)]
    order: dict[str, int] = {}
    rates: dict[str, dict[str, dict[Path, tuple[float, str]]]] = {}
    for run in runs:
        for result in run.results:
            is_sft = result.label == "sft"
            name = "sft" if is_sft else names[run.folder]
            order.setdefault(name, 0 if is_sft else trainers.index(run.trainer))
            source = run.sft_policy.resolve() if is_sft else run.folder  # an SFT policy that runs share counts once
            column = " ".join(filter(None, (result.env_id.removesuffix("-v0"), result.split, result.protocol)))
            cell = rates.setdefault(name, {}).setdefault(column, {})
            if result.success.n:
                cell.setdefault(source, (100 * result.success.value, str(result.success)))
    columns = list(dict.fromkeys(column for cells in rates.values() for column in cells))
    rows = [("policy", *columns, "runs")]
    for name in sorted(rates, key=lambda name: (order[name], name)):
        cells = [_cell(list(rates[name].get(column, {}).values())) for column in columns]
        rows.append((name, *cells, str(max(len(found) for found in rates[name].values()))))
    note = (
        "Success in per cent of the tasks of a split, in the layout of the tlm-DRE paper's Table 1: the mean over runs "
        "± their standard deviation, or for a single run the 95% Wilson interval over its tasks. An SFT policy from "
        "which several runs went on counts once."
    )
    return table(rows) + f'<p class="note">{note}</p>'


def _cell(found: Sequence[tuple[float, str]]) -> str:
    if len(found) < 2:
        return found[0][1] if found else "-"
    values = [value for value, _ in found]
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def _figures(runs: Sequence[Run]) -> tuple[list[Figure], str]:
    """All figures, and the HTML that shows them or says why there are none."""
    try:
        figures = draw(runs)
    except DependencyError as error:
        warnings.warn(f"the report has no figures: {error}", stacklevel=3)
        return [], f'<p class="note">{escape(str(error))}</p>'
    if not figures:
        return [], '<p class="note">These runs have no metrics or pairs to draw.</p>'
    return figures, figures_html(figures)


def figures_html(figures: Iterable[Figure]) -> str:
    """Figures with their captions and numbers."""
    return f'<div class="figures">{"".join(map(_figure, figures))}</div>'


def _figure(figure: Figure) -> str:
    label = escape(f"{figure.title}. {figure.caption}", quote=True)
    text_columns = next((i for i, cell in enumerate(figure.table[-1]) if _is_number(cell)), 1)
    return (
        f"<figure><h3>{escape(figure.title)}</h3>"
        f'<div role="img" aria-label="{label}">{figure.inline_svg()}</div>'
        f"<figcaption>{escape(figure.caption)}</figcaption>"
        f"<details><summary>The numbers</summary>{table(figure.table, text_columns=text_columns)}</details></figure>"
    )


def _sources(data: EpisodeData) -> str:
    rows = [("run", "log", "policy", "shown", "of")]
    rows += [(log.run.name, log.name, log.label, str(count), str(log.size)) for log, count in data.shown]
    lacking = "".join(
        f'<p class="note">{escape(f"{log.run.name}, {log.name}: the tokenizer of its policy is not there")}, '
        "so that its tokens are not shown.</p>"
        for log in data.without_tokens
    )
    logs = f"{len(data.rows)} episodes of {len(data.shown)} turn logs"
    return f"<details><summary>{logs}</summary>{table(rows, text_columns=3)}</details>{lacking}"


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>\n{body}</section>"


def _data(name: str, packed: str) -> str:
    return f'<script type="text/plain" id="{name}">{packed}</script>'


def _asset(name: str) -> str:
    return (files("agentgym_tlm.report") / name).read_text(encoding="utf-8")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
