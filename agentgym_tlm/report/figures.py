"""The figures of the tlm-DRE paper (arXiv 2609.16760) and learning curves, from whatever runs there are.

A figure comes with a caption that says what it shows and from which runs, and with its numbers as a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agentgym_tlm.evaluate import EvalResult
from agentgym_tlm.report.canvas import Figure, add_legend, drawing, ink, panels, style
from agentgym_tlm.report.runs import Log, Run, differing_options, variants
from agentgym_tlm.trainers.tlm_dre import default_reduction
from agentgym_tlm.trajectory import Turn

MIN_TURNS = 5
"""A turn that fewer trajectories reach is not in the figure of confidence per turn."""
_BINS = 40
_CROWD = 100  # points that are too many to be marked
_ROWS = 12  # of a curve in the table of its numbers


def draw(runs: Sequence[Run]) -> list[Figure]:
    """Every figure for which the runs have data. Raises DependencyError without matplotlib."""
    with drawing():
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
            suffix = "" if len(found) == 1 else f"-{env.lower()}-iteration-{iteration}"
            yield _confidence_per_turn(sides, source, suffix)
            yield _confidences(sides, source, suffix, sorted(pivot for pivot in pivots if pivot is not None))


def _of_all(runs: Sequence[Run]) -> Iterator[Figure]:
    """What compares runs."""
    names = variants(runs)
    drawn = (_margins(runs, names), _omega_search(runs), _losses(runs, names), _success(runs, names))
    yield from (figure for figure in drawn if figure is not None)


def _confidence_per_turn(sides: dict[str, list[list[Turn]]], source: str, suffix: str) -> Figure:
    """Fig. 2: median and quartiles of p_i by turn."""
    figure, (axes,) = panels()
    rows: list[tuple[str, ...]] = [("side", "turn", "trajectories", "lower quartile", "median", "upper quartile")]
    for i, side in enumerate(sides):
        color, dash = style(i)
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
    return Figure("confidence-per-turn" + suffix, "Confidence per turn", caption, tuple(rows), figure)


def _by_turn(trajectories: Sequence[Sequence[Turn]]) -> list[list[float]]:
    longest = max(map(len, trajectories), default=0)
    columns = [[float(t[i].confidence or 0) for t in trajectories if len(t) > i] for i in range(longest)]
    return [column for column in columns if len(column) >= min(MIN_TURNS, len(trajectories))]


def _confidences(sides: dict[str, list[list[Turn]]], source: str, suffix: str, pivots: Sequence[float]) -> Figure:
    """Fig. 5: distribution of p_i, with the pivot."""
    figure, (axes,) = panels()
    p = {side: np.asarray([t.confidence for turns in sides[side] for t in turns], dtype=float) for side in sides}
    edges = np.linspace(0, 1, _BINS + 1)
    rows: list[tuple[str, ...]] = [("side", "turns", "median pᵢ", *(f"share above {pivot:.3g}" for pivot in pivots))]
    for i, (side, values) in enumerate(p.items()):
        color, dash = style(i)
        share = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.stairs(share, edges, fill=True, color=color, alpha=0.18)
        axes.stairs(share, edges, color=color, linestyle=dash, linewidth=1.5, label=side)
        if len(values):
            above = (f"{(values > pivot).mean():.3f}" for pivot in pivots)
            rows.append((side, str(len(values)), f"{np.median(values):.3f}", *above))
    for pivot in pivots:
        axes.axvline(pivot, color=ink(), linestyle="--", linewidth=1)
    if len(pivots) == 1:
        axes.annotate(f"pivot {pivots[0]:.3g} ", (pivots[0], 0.93), xycoords=("data", "axes fraction"), ha="right")
    low = min((values.min() for values in p.values() if len(values)), default=0.0)
    axes.set(xlabel="confidence pᵢ", ylabel="share of turns", xlim=(np.floor(low * 10) / 10, 1))
    axes.legend(loc="center left")
    rule = " Turns to the right of the pivot get the lower weight." if pivots else ""
    caption = f"Distribution of the reference policy's confidence over turns (the paper's Fig. 5).{rule} From {source}."
    return Figure("confidence" + suffix, "Distribution of confidence", caption, tuple(rows), figure)


def _margins(runs: Sequence[Run], names: dict[Path, str]) -> Figure | None:
    """Fig. 3: reward margin during training."""
    curves = [(run, _points(run.metrics(run.trainer), "margin")) for run in runs]
    note = (
        "Margin between the chosen and the rejected side during training (the paper's Fig. 3), each method in the "
        "units of its own loss: log-ratios for tlm-DRE and DIL, implicit rewards times β for DPO and its kin."
    )
    return _curves(curves, names, "Reward margin", "margin", "update", note, panel=_unit)


def _unit(run: Run) -> str:
    """What a margin is measured in."""
    of_ratios = run.trainer in ("dil", "tlm-dre") and run.method.get("loss_type") != "dpo"
    return "log-ratio" if of_ratios else "implicit reward"


def _losses(runs: Sequence[Run], names: dict[Path, str]) -> Figure | None:
    """One panel per trainer, whose losses have nothing in common."""
    curves = [(run, _points(run.metrics(run.trainer), "loss")) for run in runs]
    note = "Training loss, a panel for each trainer."
    return _curves(curves, names, "Training loss", "loss", "update", note, panel=lambda run: run.trainer)


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
    panel: Callable[[Run], str] = lambda run: "",
) -> Figure | None:
    """One line per run, one colour per method, and the runs of one ``panel`` together; None without any point."""
    curves = [(run, points) for run, points in curves if points]
    if not curves:
        return None
    panel_titles = list(dict.fromkeys(panel(run) for run, _ in curves))
    labels = list(dict.fromkeys(names[run.folder] for run, _ in curves))
    figure, grid = panels(len(panel_titles))
    rows: list[tuple[str, ...]] = [("run", "method", xlabel, ylabel)]
    crowded = sum(len(points) for _, points in curves) > _CROWD
    drawn: dict[str, Any] = {}
    for i, label in enumerate(labels):
        of_label = [(run, points) for run, points in curves if names[run.folder] == label]
        axes = grid[panel_titles.index(panel(of_label[0][0]))]
        color, dash = style(i)
        marker = "" if crowded else "o"
        mean = _mean_curve([points for _, points in of_label])
        for _, points in of_label:
            thin = {"linewidth": 0.6, "alpha": 0.3} if mean else {"linewidth": 1.5, "marker": marker}
            drawn[label] = axes.plot(*zip(*points, strict=True), dash, color=color, markersize=3, **thin)[0]
        if mean:
            drawn[label] = axes.plot(*zip(*mean, strict=True), dash, color=color, markersize=3, marker=marker)[0]
    for panel_title, axes in zip(panel_titles, grid, strict=True):
        axes.set(xlabel=xlabel, ylabel=ylabel, title=panel_title)
        axes.xaxis.get_major_locator().set_params(integer=True)
    if labels != panel_titles:
        add_legend(figure, grid[0], list(drawn.values()), labels)
    for run, points in curves:
        shown = points if len(points) <= _ROWS else [points[i * (len(points) - 1) // (_ROWS - 1)] for i in range(_ROWS)]
        rows += [(run.name, names[run.folder], f"{x:g}", f"{y:.4g}") for x, y in shown]
    if len(curves) > len(labels):
        note += " Thick lines are means over the runs of a method, thin ones the runs."
    caption = f"{note} From {_listed(run.name for run, _ in curves)}."
    return Figure(title.lower().replace(" ", "-"), title, caption, tuple(rows), figure)


def _mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Means of several curves where all of them have a point; none of a single one, or of curves that hardly meet."""
    found = [dict(points) for points in curves]
    common = [x for x in found[0] if all(x in points for points in found)]
    if len(curves) == 1 or 2 * len(common) <= max(map(len, curves)):
        return []
    return [(x, fmean(points[x] for points in found)) for x in common]


def _omega_search(runs: Sequence[Run]) -> Figure | None:
    """Fig. 6: success by ω_L, a panel for each split, a line for each setting that was tried with several weights."""
    settings: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in runs:
        if "omega_lower" in run.method and any(_of_method(run)):
            options = {"env": run.env, **run.choices}
            options = {name: value for name, value in options.items() if name not in ("omega_lower", "seed")}
            options["reduction"] = options.get("reduction") or default_reduction(options.get("loss_type", "dre"))
            settings.setdefault(json.dumps(options, sort_keys=True), (options, []))[1].append(run)
    searched = [
        (options, found) for options, found in settings.values() if len({r.method["omega_lower"] for r in found}) > 1
    ]
    if not searched:
        return None
    differing = differing_options([options for options, _ in searched])
    splits = list(dict.fromkeys(result.split for _, found in searched for run in found for result in _of_method(run)))
    figure, grid = panels(len(splits), sharey=True)
    rows = [("setting", "split", "ω_L", "runs", "mean success %")]
    for i, (options, found) in enumerate(searched):
        color, dash = style(i)
        setting = ", ".join(str(options.get(name)) for name in differing or ["env"])
        for split, axes in zip(splits, grid, strict=True):
            points: dict[float, list[float]] = {}
            for run in sorted(found, key=lambda run: float(run.method["omega_lower"])):
                for result in (result for result in _of_method(run) if result.split == split):
                    points.setdefault(float(run.method["omega_lower"]), []).append(100 * result.success.value)
            means = [fmean(values) for values in points.values()]
            axes.plot(list(points), means, dash, color=color, marker="o", label=setting)
            for omega, values in points.items():
                axes.plot([omega] * len(values), values, ".", color=color, alpha=0.5, markersize=4)
                rows.append((setting, split, f"{omega:g}", str(len(values)), f"{fmean(values):.1f}"))
    for split, axes in zip(splits, grid, strict=True):
        axes.set(xlabel="ω of confident turns (ω_L)", ylabel="success %", title=split)
    if len(searched) > 1:
        add_legend(figure, grid[0], *grid[0].get_legend_handles_labels())
    by = f", a line for each {' and '.join(differing)}" if differing else ""
    caption = (
        f"Success by the weight of confident turns (the paper's Fig. 6){by}: lines are means over runs, dots the runs. "
        f"From {_listed(run.name for _, found in searched for run in found)}."
    )
    return Figure("omega-search", "Search for the lower weight", caption, tuple(rows), figure)


def _of_method(run: Run) -> Iterator[EvalResult]:
    """Results of the policy that the run trained."""
    return (result for result in run.results if result.label == run.trainer and result.success.n)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found) if len(found) <= 6 else f"{', '.join(found[:5])} and {len(found) - 5} more runs"
