"""Policies: anything that turns conversations into responses."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Policy

if TYPE_CHECKING:
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def load_policy(name: str | os.PathLike[str], **options: Any) -> Policy:
    """A policy by name: ``expert``, ``random``, ``human``, ``smollm2``, or a model's hub id or folder.

    ``options`` are those of the policy's constructor (of :meth:`LanguageModelPolicy.load` for models). A ``tiny`` model
    has to be trained before it can do anything: it is built with :func:`agentgym_tlm.policies.tiny.build_tiny` and
    loaded by the folder that it was saved to. Raises ConfigError for a name that can be none of these, before anything
    is looked for on the hub, and what the policy's constructor or ``load`` raises.
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
    if not Path(name).is_dir() and not _HUB_ID.fullmatch(str(name)):
        raise ConfigError(_unknown(str(name), list(named)))
    return LanguageModelPolicy.load(name, **options)


def load_language_model(name: str) -> LanguageModelPolicy:
    """:func:`load_policy` of something that can be trained. Raises ConfigError for any other policy."""
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

    policy = load_policy(name)
    if not isinstance(policy, LanguageModelPolicy):
        raise ConfigError(f"policy {name!r} is not a language model: there is nothing to train")
    return policy


def _unknown(name: str, known: list[str]) -> str:
    if "/" in name:
        return f"there is no folder {name} to load a policy from"
    if name == "tiny":
        return "tiny is built by `agentgym-tlm train`: give the folder that it was saved to, such as RUN/sft/policy"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f": did you mean {close[0]}?" if close else "."
    known_names = f"There are {', '.join(known)}, folders, and hub ids (OWNER/NAME)"
    return f"no policy or folder is called {name!r}{hint} {known_names}"
