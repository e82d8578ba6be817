"""How figures look, inside a page and as files.

matplotlib draws in the colours of ``viewer.css``. In a page, text and lines take them from its custom properties
``--ink``, ``--rule`` and ``--series-1`` to ``--series-8``, light or dark; a file has the light ones on white.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from agentgym_tlm.errors import DependencyError
from agentgym_tlm.files import replaced_file, write_text

FigureFormat = Literal["svg", "pdf", "png"]
SERIES = 8
_VARIABLES = ("--ink", "--rule", *(f"--series-{i}" for i in range(1, SERIES + 1)))
_DASHES = ("-", "--", ":", "-.")
_SHORT_LEGEND, _SHORT_LABEL, _HALF_A_LINE = 4, 18, 42
_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


@dataclass(frozen=True)
class Figure:
    """A finished figure; ``name`` is that of its files, ``table`` holds its numbers, the head first."""

    name: str
    title: str
    caption: str
    table: tuple[tuple[str, ...], ...]
    canvas: Any

    def inline_svg(self) -> str:
        """SVG for the inside of a page: no declarations, no fonts of its own, the page's colours."""
        svg = self._saved("svg", transparent=True).decode()
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
        svg = re.sub(r"<style.*?</style>| font-family: [^;\"]*;?", "", svg, flags=re.DOTALL)
        for name, color in _light().items():
            svg = svg.replace(color, f"var({name})")
        return svg

    def save(self, folder: Path, format: FigureFormat) -> None:
        """Write ``<name>.<format>``, and its numbers as ``<name>.csv``."""
        folder.mkdir(parents=True, exist_ok=True)
        with replaced_file(folder / f"{self.name}.{format}") as partial:
            partial.write_bytes(self._saved(format))
        numbers = io.StringIO()
        csv.writer(numbers, lineterminator="\n").writerows(self.table)
        write_text(folder / f"{self.name}.csv", numbers.getvalue())

    def _saved(self, format: FigureFormat, **options: Any) -> bytes:
        import matplotlib

        file = io.BytesIO()
        # text stays text: it can be searched and read aloud; ids that no other figure of a page has
        fonts: dict[Any, Any] = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": self.name}
        with matplotlib.rc_context(fonts):
            self.canvas.savefig(file, format=format, dpi=200, metadata=_DATES[format], **options)
        return file.getvalue()


@contextmanager
def drawing() -> Iterator[None]:
    """Figures that are drawn inside have our looks. Raises DependencyError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise DependencyError('figures need matplotlib: pip install "agentgym-tlm[report]"') from error
    ink, rule, *series = _light().values()
    from cycler import cycler

    colors: dict[Any, Any] = {
        "axes.prop_cycle": cycler(color=series),
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), rule),
    }
    with matplotlib.rc_context({**_LOOK, **colors}):
        yield


def ink() -> str:
    """The colour of text."""
    import matplotlib

    return str(matplotlib.rcParams["text.color"])


def style(i: int) -> tuple[str, str]:
    """Colour and dashes of the i-th series."""
    import matplotlib

    colors = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    return colors[i % SERIES], _DASHES[(i // SERIES + i) % len(_DASHES)]


def panels(count: int = 1, *, columns: int = 2, height: float | None = None, **options: Any) -> tuple[Any, list[Any]]:
    """A figure and its axes in ``columns``; ``height`` of a line of axes in inches, ``options`` of subplots."""
    from matplotlib.figure import Figure as Canvas

    columns = min(count, columns)
    lines = -(-count // columns)
    height = height or (3.2 if lines == 1 else 2.2)
    canvas = Canvas(figsize=(6.4, height * lines), layout="constrained")
    grid = canvas.subplots(lines, columns, squeeze=False, **options).flatten().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    return canvas, grid[:count]


def add_legend(canvas: Any, axes: Any, lines: Sequence[Any], labels: Sequence[str]) -> None:
    """Inside the axes if it is short, else below, where it hides no line."""
    longest = max(map(len, labels))
    if len(labels) <= _SHORT_LEGEND and longest <= _HALF_A_LINE and len(canvas.axes) == 1:
        axes.legend(lines, labels)
        return
    columns = 4 if longest <= _SHORT_LABEL else 2 if longest <= _HALF_A_LINE else 1
    canvas.set_figheight(canvas.get_figheight() + 0.2 * -(-len(labels) // columns))
    canvas.legend(lines, labels, loc="outside lower center", ncols=columns)


@cache
def _light() -> dict[str, str]:
    style = (files("agentgym_tlm.report") / "viewer.css").read_text(encoding="utf-8")
    found = dict(re.findall(r"(--[\w-]+): light-dark\((#\w+),", style))
    return {name: found[name] for name in _VARIABLES}


_LOOK: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "grid.alpha": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.titlesize": 9.5,
}
