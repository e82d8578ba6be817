"""Before and after of the main job, over the seeds of one experiment, as a Markdown table.

    python scripts/benchmark/seeds.py runs/embedded/seed*

Each run folder is one seed. The difference is taken seed by seed, on the same tasks; its interval is Student's t over
the seeds. Needs scipy (extra ``dev``).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

from scipy import stats

from agentgym_tlm.evaluate import EvalResult, read_results


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:]]
    if not folders:
        sys.exit(__doc__)
    results: defaultdict[str, dict[str, list[EvalResult]]] = defaultdict(lambda: defaultdict(list))
    for folder in folders:
        for result in read_results(folder / "results.json"):
            results[result.split][result.label].append(result)
    print("| split | policy | success % [95% CI] per seed | mean | mean turns | invalid actions % | difference |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for split, by_label in results.items():
        before = next(iter(by_label.values()))
        for label, found in by_label.items():
            cells = [
                split,
                label,
                ", ".join(str(result.success) for result in found),
                f"{100 * fmean(result.success.value for result in found):.1f}",
                f"{fmean(result.mean_turns for result in found):.1f}",
                f"{100 * fmean(result.invalid_action_rate for result in found):.1f}",
                "" if found is before else difference(before, found),
            ]
            print("|", " | ".join(cells), "|")


def difference(before: list[EvalResult], after: list[EvalResult]) -> str:
    """Mean gain in percentage points over the seeds, with its 95% t interval when there are at least two."""
    gains = [100 * (b.success.value - a.success.value) for a, b in zip(before, after, strict=True)]
    if len(gains) < 2:
        return f"{gains[0]:+.1f}"
    half = float(stats.t.ppf(0.975, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    return f"{fmean(gains):+.1f} ± {half:.1f}"


if __name__ == "__main__":
    main()
