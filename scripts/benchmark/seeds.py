"""Before and after of the main job, over the seeds of one experiment, as a Markdown table.

    python scripts/benchmark/seeds.py runs/embedded/seed*

Each run folder is one seed. The difference is that of success, taken seed by seed, on the same tasks; its interval is
Student's t over the seeds. Where an environment's score is more than its success, the table has its mean, too. Needs
scipy (extra ``dev``).
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
    everything = [result for by_label in results.values() for found in by_label.values() for result in found]
    scored = any(not math.isclose(result.mean_score, result.success.value) for result in everything)
    header = ["split", "policy", "success % [95% CI] per seed", "mean", "mean turns", "invalid actions %", "difference"]
    if scored:
        header.insert(4, "mean score")
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
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
            if scored:
                cells.insert(4, f"{100 * fmean(result.mean_score for result in found):.1f}")
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
