"""What a report says of a comparison: its tables, and every trainer's difference from the baseline as a picture."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

from agentgym_tlm.cells import finished_cells
from agentgym_tlm.errors import DependencyError
from agentgym_tlm.report.canvas import Figure, drawing, ink, panels, style
from agentgym_tlm.report.page import figures_html
from agentgym_tlm.standings import COMPARISON_FILE, Standings

_LONG_LABEL = 20


def read_standings(folder: Path) -> Standings | None:
    """Of the finished cells of a comparison's folder, as it was last compared; None where it has none."""
    cells = [cell for _, cell in finished_cells(folder)]
    if not cells:
        return None
    file = folder / COMPARISON_FILE
    last = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return Standings.of(
        cells, baseline=last.get("baseline"), metric=last.get("metric", "success"), order=last.get("trainers", ())
    )


def comparison_section(standings: Standings, failures: Mapping[str, str] | None = None) -> str:
    """HTML of the picture, verdicts and tables; without matplotlib there is no picture, with a warning."""
    try:
        figure = draw_differences(standings)
    except DependencyError as error:
        warnings.warn(f"the report has no figures: {error}", stacklevel=2)
        figure = None
    return ("" if figure is None else figures_html([figure])) + standings.html(failures or {})


def draw_differences(standings: Standings) -> Figure | None:
    """A panel for every suite; None where nothing is compared. Raises DependencyError without matplotlib."""
    against = [pair for pair in standings.pairs if pair.p_holm is not None]
    if not against:
        return None
    suites = [suite for suite in standings.suites if any(pair.suite == suite for pair in against)]
    trainers = [name for name in standings.trainers if any(pair.trainer == name for pair in against)]
    rows = [("suite", "trainer", "difference in points", "low", "high")]
    with drawing():
        columns = 1 if max(map(len, trainers)) > _LONG_LABEL else 2
        height = 0.9 + 0.24 * len(trainers)
        figure, grid = panels(len(suites), columns=columns, height=height, sharex=True, sharey=True)
        for suite, axes in zip(suites, grid, strict=True):
            axes.axvline(0, color=ink(), linewidth=1)
            for pair in (pair for pair in against if pair.suite == suite):
                value, low, high = (100 * number for number in pair.difference)
                line = trainers.index(pair.trainer)
                color = style(0)[0]
                axes.plot([low, high], [line, line], color=color, linewidth=2, solid_capstyle="butt")
                axes.plot(value, line, "o", color=color, markersize=5)
                rows.append((suite, pair.trainer, f"{value:+.1f}", f"{low:+.1f}", f"{high:+.1f}"))
            axes.set(title=suite, xlabel=f"points more than {standings.baseline}")
            axes.set_yticks(range(len(trainers)), trainers)
            axes.set_ylim(len(trainers) - 0.5, -0.5)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
    what = "Success" if standings.metric == "success" else "Score"
    caption = (
        f"{what} of every trainer minus that of {standings.baseline} on the same seeds and tasks, in points, with 95% "
        "intervals. One that crosses 0 does not tell the two apart."
    )
    return Figure("differences", f"Differences from {standings.baseline}", caption, tuple(rows), figure)
