"""The figures of the tlm-DRE paper (arXiv 2609.16760) and learning curves, from whatever runs there are.

A figure is drawn by matplotlib and becomes SVG for the inside of a page: its text and lines take the page's colours,
light or dark, by the custom properties ``--ink``, ``--rule`` and ``--series-1`` to ``--series-8``. It comes with a
caption that says what it shows and from which runs, and with its numbers as a table.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agentgym_tlm.errors import DependencyError
from agentgym_tlm.report.runs import Log, Run, variants
from agentgym_tlm.trajectory import Turn

INK, RULE = "#0a0b0c", "#0a0b0d"
SERIES = tuple(f"#0a0c{i:02x}" for i in range(1, 9))
_VARIABLES = {INK: "--ink", RULE: "--rule", **{color: f"--series-{i}" for i, color in enumerate(SERIES, start=1)}}
_DASHES = ("-", "--", ":", "-.")
MIN_TURNS = 5
"""A turn that fewer trajectories reach is not in the figure of confidence per turn."""
_BINS = 40
_SHORT_LEGEND, _SHORT_LABEL = 4, 18
_CROWD = 100  # points that are too many to be marked
_ROWS = 12  # of a curve in the table of its numbers


@dataclass(frozen=True)
class Figure:
    """A finished figure; ``table`` holds its numbers, the head first."""

    name: str
    title: str
    caption: str
    svg: str
    table: tuple[tuple[str, ...], ...]


def draw(runs: Sequence[Run]) -> list[Figure]:
    """Every figure for which the runs have data. Raises DependencyError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise DependencyError('figures need matplotlib: pip install "agentgym-tlm[report]"') from error
    with matplotlib.rc_context(_LOOK):
        return [*_of_pairs(runs), *_of_all(runs)]


def _of_pairs(runs: Sequence[Run]) -> Iterator[Figure]:
    """What the reference policies thought of the turns of both sides; a policy's pairs count once per iteration."""
    found: dict[tuple[str, int], dict[Path, Log]] = {}
    for run in sorted(runs, key=lambda run: "omega_lower" not in run.method):
        for log in run.pairs():
            found.setdefault((run.env, log.iteration or 0), {}).setdefault(run.sft_policy.resolve(), log)
    for (env, iteration), logs in found.items():
        sides: dict[str, list[list[Turn]]] = {"chosen": [], "rejected": []}
        for log in logs.values():
            for pair in log.read(None):
                for turns, episode in zip(sides.values(), pair, strict=True):
                    turns.append([t for t in episode.turns if t.trainable and t.confidence is not None])
        if any(turns for side in sides.values() for turns in side):
            count, names = sum(log.size for log in logs.values()), _listed(log.run.name for log in logs.values())
            rounds = "" if len({i for e, i in found if e == env}) == 1 else f" in iteration {iteration}"
            source = f"{count} pairs of {env}{rounds}: {names}"
            pivots = {log.run.pivot(iteration) for log in logs.values()} - {None}
            yield _confidence_per_turn(sides, source)
            yield _confidences(sides, source, sorted(pivot for pivot in pivots if pivot is not None))


def _of_all(runs: Sequence[Run]) -> Iterator[Figure]:
    """What compares runs."""
    names = variants(runs)
    drawn = (_margins(runs, names), _omega_search(runs), _losses(runs, names), _success(runs, names))
    yield from (figure for figure in drawn if figure is not None)


def _confidence_per_turn(sides: dict[str, list[list[Turn]]], source: str) -> Figure:
    """Fig. 2: median and quartiles of p_i by turn."""
    figure, (axes,) = _canvas()
    rows: list[tuple[str, ...]] = [("side", "turn", "trajectories", "lower quartile", "median", "upper quartile")]
    for side, color, dash in zip(sides, SERIES, _DASHES, strict=False):
        columns = _by_turn(sides[side])
        quartiles = np.asarray([np.quantile(values, (0.25, 0.5, 0.75)) for values in columns]).reshape(-1, 3)
        turns = np.arange(1, len(columns) + 1)
        axes.fill_between(turns, quartiles[:, 0], quartiles[:, 2], color=color, alpha=0.15, linewidth=0)
        axes.plot(turns, quartiles[:, 1], dash, color=color, marker="o", markersize=3, label=side)
        rows += [
            (side, str(turn), str(len(values)), *(f"{q:.3f}" for q in three))
            for turn, values, three in zip(turns, columns, quartiles, strict=True)
        ]
    axes.set(xlabel="turn", ylabel="confidence pᵢ")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    caption = (
        f"Median confidence of the reference policy in the turns of both sides, with quartiles, while at least "
        f"{MIN_TURNS} trajectories last (the paper's Fig. 2). From {source}."
    )
    return _finished(figure, f"confidence-per-turn of {source}", "Confidence per turn", caption, rows)


def _by_turn(trajectories: Sequence[Sequence[Turn]]) -> list[list[float]]:
    longest = max(map(len, trajectories), default=0)
    columns = [[float(t[i].confidence or 0) for t in trajectories if len(t) > i] for i in range(longest)]
    return [column for column in columns if len(column) >= min(MIN_TURNS, len(trajectories))]


def _confidences(sides: dict[str, list[list[Turn]]], source: str, pivots: Sequence[float]) -> Figure:
    """Fig. 5: distribution of p_i, with the pivot."""
    figure, (axes,) = _canvas()
    p = {side: np.asarray([t.confidence for turns in sides[side] for t in turns], dtype=float) for side in sides}
    edges = np.linspace(0, 1, _BINS + 1)
    rows: list[tuple[str, ...]] = [("side", "turns", "median pᵢ", *(f"share above {pivot:.3g}" for pivot in pivots))]
    for (side, values), color, dash in zip(p.items(), SERIES, _DASHES, strict=False):
        share = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.stairs(share, edges, fill=True, color=color, alpha=0.18)
        axes.stairs(share, edges, color=color, linestyle=dash, linewidth=1.5, label=side)
        if len(values):
            above = (f"{(values > pivot).mean():.3f}" for pivot in pivots)
            rows.append((side, str(len(values)), f"{np.median(values):.3f}", *above))
    for pivot in pivots:
        axes.axvline(pivot, color=INK, linestyle="--", linewidth=1)
    if len(pivots) == 1:
        axes.annotate(f"pivot {pivots[0]:.3g} ", (pivots[0], 0.93), xycoords=("data", "axes fraction"), ha="right")
    low = min((values.min() for values in p.values() if len(values)), default=0.0)
    axes.set(xlabel="confidence pᵢ", ylabel="share of turns", xlim=(np.floor(low * 10) / 10, 1))
    axes.legend(loc="center left")
    rule = " Turns to the right of the pivot get the lower weight." if pivots else ""
    caption = f"Distribution of the reference policy's confidence over turns (the paper's Fig. 5).{rule} From {source}."
    return _finished(figure, f"confidence of {source}", "Distribution of confidence", caption, rows)


def _margins(runs: Sequence[Run], names: dict[Path, str]) -> Figure | None:
    """Fig. 3: reward margin during training."""
    curves = [(run, _points(run.metrics(run.trainer), "margin")) for run in runs]
    note = (
        "Margin between the chosen and the rejected side during training (the paper's Fig. 3), each method in the "
        "units of its own loss: log-ratios for tlm-DRE and DIL, implicit rewards times β for DPO and its kin."
    )
    return _curves(curves, names, "Reward margin", "margin", "update", note)


def _losses(runs: Sequence[Run], names: dict[Path, str]) -> Figure | None:
    """One panel per trainer, whose losses have nothing in common."""
    curves = [(run, _points(run.metrics(run.trainer), "loss")) for run in runs]
    note = "Training loss, a panel for each trainer."
    return _curves(curves, names, "Training loss", "loss", "update", note, by_trainer=True)


def _success(runs: Sequence[Run], names: dict[Path, str]) -> Figure | None:
    curves = [(run, _points(run.metrics(run.trainer), "success", by="iteration", scale=100)) for run in runs]
    note = "Success of the sampled training episodes, by iteration."
    return _curves(curves, names, "Success while learning", "success %", "iteration", note)


def _points(
    metrics: Iterable[dict[str, Any]], name: str, *, by: str = "step", scale: float = 1
) -> list[tuple[float, float]]:
    return [(m[by], scale * m[name]) for m in metrics if m.get(name) is not None]


def _curves(
    curves: Sequence[tuple[Run, list[tuple[float, float]]]],
    names: dict[Path, str],
    title: str,
    ylabel: str,
    xlabel: str,
    note: str,
    *,
    by_trainer: bool = False,
) -> Figure | None:
    """One line per run, one colour per method, and on request a panel per trainer; None without any point."""
    curves = [(run, points) for run, points in curves if points]
    if not curves:
        return None
    trainers = list(dict.fromkeys(run.trainer if by_trainer else "" for run, _ in curves))
    labels = list(dict.fromkeys(names[run.folder] for run, _ in curves))
    figure, panels = _canvas(len(trainers))
    rows: list[tuple[str, ...]] = [("run", "method", xlabel, ylabel)]
    crowded = sum(len(points) for _, points in curves) > _CROWD
    drawn: dict[str, Any] = {}
    for run, points in curves:
        axes, label = panels[trainers.index(run.trainer if by_trainer else "")], names[run.folder]
        color, dash = _style(labels.index(label))
        style = {"color": color, "linewidth": 1 if crowded else 1.5, "alpha": 0.8, "marker": "" if crowded else "o"}
        drawn[label] = axes.plot(*zip(*points, strict=True), dash, markersize=3, **style)[0]
    for trainer, axes in zip(trainers, panels, strict=True):
        axes.set(xlabel=xlabel, ylabel=ylabel, title=trainer)
        axes.xaxis.get_major_locator().set_params(integer=True)
    if not by_trainer or labels != trainers:
        _legend(figure, panels[0], list(drawn.values()), labels)
    for run, points in curves:
        shown = points if len(points) <= _ROWS else [points[i * (len(points) - 1) // (_ROWS - 1)] for i in range(_ROWS)]
        rows += [(run.name, names[run.folder], f"{x:g}", f"{y:.4g}") for x, y in shown]
    return _finished(figure, title, title, f"{note} From {_listed(run.name for run, _ in curves)}.", rows)


def _omega_search(runs: Sequence[Run]) -> Figure | None:
    """Fig. 6: success by ω_L, mean over runs and the runs themselves, for options that were tried with several."""
    found: list[tuple[str, str, float, float, str]] = []  # setting, split, ω_L, success, run
    searched = [run for run in runs if "omega_lower" in run.method]
    others = [{k: v for k, v in run.method.items() if k not in ("omega_lower", "seed")} for run in searched]
    differing = sorted({name for one in others for name in one if any(o.get(name) != one[name] for o in others)})
    for run, options in zip(searched, others, strict=True):
        setting = ", ".join([run.env, *(f"{name} {options.get(name)}" for name in differing)])
        found += [
            (setting, r.split, float(run.method["omega_lower"]), 100 * r.success.value, run.name)
            for r in run.results
            if r.label == run.trainer and r.success.n
        ]
    series = [
        ((setting, split), sorted(group, key=lambda point: point[2]))
        for (setting, split), group in groupby(sorted(found), key=lambda point: point[:2])
    ]
    series = [(key, points) for key, points in series if len({point[2] for point in points}) > 1]
    if not series:
        return None
    figure, (axes,) = _canvas()
    rows = [("setting", "split", "ω_L", "runs", "mean success %")]
    for i, ((setting, split), points) in enumerate(series):
        color, dash = _style(i)
        means = [(w, [p[3] for p in group]) for w, group in groupby(points, key=lambda point: point[2])]
        means = [(w, list(values)) for w, values in means]
        label = f"{split}, {setting}" if len({key[0] for key, _ in series}) > 1 else split
        axes.plot([w for w, _ in means], [fmean(v) for _, v in means], dash, color=color, marker="o", label=label)
        axes.plot([p[2] for p in points], [p[3] for p in points], ".", color=color, alpha=0.5, markersize=4)
        rows += [(setting, split, f"{w:g}", str(len(v)), f"{fmean(v):.1f}") for w, v in means]
    axes.set(xlabel="ω of confident turns (ω_L)", ylabel="success %")
    _legend(figure, axes, *axes.get_legend_handles_labels())
    used = _listed(dict.fromkeys(point[4] for _, points in series for point in points))
    caption = (
        "Success by the weight of confident turns (the paper's Fig. 6): lines are means over runs, dots the runs. "
        f"From {used}."
    )
    return _finished(figure, "omega", "Search for the lower weight", caption, rows)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found) if len(found) <= 6 else f"{', '.join(found[:5])} and {len(found) - 5} more runs"


def _style(i: int) -> tuple[str, str]:
    return SERIES[i % len(SERIES)], _DASHES[(i // len(SERIES) + i) % len(_DASHES)]


def _legend(figure: Any, axes: Any, lines: Sequence[Any], labels: Sequence[str]) -> None:
    """Inside the axes if it is short, else below, where it hides no line."""
    if len(labels) <= _SHORT_LEGEND and len(figure.axes) == 1:
        axes.legend(lines, labels)
        return
    columns = 2 if max(map(len, labels)) > _SHORT_LABEL else 4
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(labels) // columns))
    figure.legend(lines, labels, loc="outside lower center", ncols=columns)


def _canvas(panels: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its axes."""
    from matplotlib.figure import Figure as Canvas

    columns = min(panels, 2)
    lines = -(-panels // columns)
    figure = Canvas(figsize=(6.4, 3.2 if lines == 1 else 2.2 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axes in grid[panels:]:
        axes.set_axis_off()
    return figure, grid[:panels]


def _finished(figure: Any, name: str, title: str, caption: str, table: Sequence[tuple[str, ...]]) -> Figure:
    """The drawing as SVG for the inside of a page: no declarations, no fonts of its own, the page's colours."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # ids that no other figure of the page has
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<style.*?</style>| font-family: [^;\"]*;?", "", svg, flags=re.DOTALL)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return Figure(name, title, caption, svg, tuple(table))


_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "grid.alpha": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.titlesize": 9.5,
}
