"""``agentgym-tlm data build-wiki``: the offline encyclopedia of HotpotQA."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from agentgym_tlm.envs.hotpotqa.corpus import read_pages
from agentgym_tlm.envs.hotpotqa.official import WIKI_FILE
from agentgym_tlm.envs.hotpotqa.offline import build_wiki
from agentgym_tlm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BuildWiki:
    """Build HotpotQA's offline encyclopedia: agentgym-tlm data build-wiki CORPUS --output FILE.

    A corpus has one JSON object per page with its title, its sentences (joined without anything between them, they are
    its text) and, optionally, aliases. Official question files will do as well: their contexts are the pages.
    """

    summary: ClassVar[str] = "build HotpotQA's offline encyclopedia from a corpus or from question files"

    corpus: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(help_behavior_hint="(required)")] = (
        tyro.MISSING
    )
    """Files, .json or .jsonl, with or without .gz; of pages with the same title the first one counts."""
    output: Path | None = None
    """Where it is written; None: wiki.sqlite beside the first file, which is where the environment looks for it."""

    def run(self) -> int:
        """Build it, complete or not at all."""
        if not self.corpus:
            raise ConfigError("build-wiki needs a corpus: agentgym-tlm data build-wiki CORPUS")
        paths = [path.expanduser() for path in self.corpus]
        output = self.output.expanduser() if self.output else paths[0].with_name(WIKI_FILE)
        if any(output.exists() and path.exists() and output.samefile(path) for path in paths):
            raise ConfigError(f"--output {output} is a file of the corpus, which it would replace: name another file")
        count = build_wiki(read_pages(paths), output)
        print(f"{output} holds {count:,} pages.")
        return 0
