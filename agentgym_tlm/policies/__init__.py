"""Policies: anything that turns conversations into responses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from agentgym_tlm.policies.base import Policy


def load_policy(name: str | os.PathLike[str], **options: Any) -> Policy:
    """A policy by name: ``expert``, ``random``, ``human``, ``smollm2``, or a model's hub id or folder.

    ``options`` are those of the policy's constructor (of :meth:`LanguageModelPolicy.load` for models). A ``tiny`` model
    has to be trained before it can do anything: it is built with :func:`agentgym_tlm.policies.tiny.build_tiny` and
    loaded by the folder that it was saved to.
    """
    from agentgym_tlm.policies.expert import ExpertPolicy
    from agentgym_tlm.policies.human import HumanPolicy
    from agentgym_tlm.policies.language_model import LanguageModelPolicy
    from agentgym_tlm.policies.random import RandomPolicy
    from agentgym_tlm.policies.smollm2 import load_smollm2

    named: dict[str, Callable[..., Policy]] = {
        "expert": ExpertPolicy,
        "random": RandomPolicy,
        "human": HumanPolicy,
        "smollm2": load_smollm2,
    }
    if str(name) in named:
        return named[str(name)](**options)
    return LanguageModelPolicy.load(name, **options)
