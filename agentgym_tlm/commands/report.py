"""``agentgym-tlm report``: tables, figures and episodes of runs as one HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from agentgym_tlm.ranges import COUNT, check_ranges


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML file on runs: agentgym-tlm report RUN... --output report.html.

    It holds tables, figures and the episodes, and needs no server and no network.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")] = ()
    """Run folders, such as train and eval write; or one of several, such as compare and eval --suites write."""
    output: Path = Path("report.html")
    """The file to write; one that is there is replaced."""
    title: str = "Agents and their episodes"
    """Heading of the page."""
    limit: int = 200
    """Most episodes, or pairs, of every turn log, evenly spaced."""

    def __post_init__(self) -> None:
        check_ranges(self, limit=COUNT)

    def run(self) -> int:
        """Write the file."""
        from agentgym_tlm.progress import plain_warnings
        from agentgym_tlm.report import write_report

        with plain_warnings():
            write_report(self.runs, self.output, title=self.title, limit=self.limit)
        size = self.output.stat().st_size / 1e6
        print(f"{self.output}: {size:.1f} MB, to be opened in a browser")
        return 0
