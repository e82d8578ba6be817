"""``agentgym-tlm report``: tables, figures and episodes of runs as one HTML file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

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
    figures: Path | None = None
    """A folder for the figures as files of their own, each with its numbers as CSV; None: in the page only."""
    figure_format: Literal["svg", "pdf", "png"] = "svg"
    """Of these files."""

    def __post_init__(self) -> None:
        check_ranges(self, limit=COUNT)

    def run(self) -> int:
        """Write the files."""
        from agentgym_tlm.benchmark import LOCK_FILE
        from agentgym_tlm.progress import plain_warnings
        from agentgym_tlm.report import write_report
        from agentgym_tlm.report.canvas import drawing
        from agentgym_tlm.report.comparison import comparison_section, draw_differences, read_standings

        if self.figures is not None:
            with drawing():  # without matplotlib nothing is written
                pass
        found = [(folder, read_standings(folder)) for folder in self.runs if (folder / LOCK_FILE).is_file()]
        compared = {folder: standings for folder, standings in found if standings is not None}
        with plain_warnings():
            sections = [
                ("Comparison" if len(compared) == 1 else f"Comparison: {folder}", comparison_section(standings))
                for folder, standings in compared.items()
            ]
            drawn = write_report(self.runs, self.output, title=self.title, sections=sections, limit=self.limit)
        size = self.output.stat().st_size / 1e6
        print(f"{self.output}: {size:.1f} MB, to be opened in a browser")
        if self.figures is not None:
            for folder, standings in compared.items():
                if (figure := draw_differences(standings)) is not None:
                    drawn.append(figure if len(compared) == 1 else replace(figure, name=f"{figure.name}-{folder.name}"))
            for figure in drawn:
                figure.save(self.figures, self.figure_format)
            print(f"{self.figures}: {' '.join(figure.name for figure in drawn) or 'no figures'}")
        return 0
