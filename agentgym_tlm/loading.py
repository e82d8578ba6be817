"""Policies by the names that users give; one that cannot be loaded is a mistake to explain, not a traceback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_tlm.errors import AgentGymError, ConfigError
from agentgym_tlm.policies import load_policy
from agentgym_tlm.policies.base import Policy

if TYPE_CHECKING:
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def load_named(name: str, **options: Any) -> Policy:
    """:func:`load_policy` of a name from the command line. Raises ConfigError when it cannot be loaded."""
    from safetensors import SafetensorError

    if "/" in name and not _HUB_ID.fullmatch(name) and not Path(name).is_dir():
        raise ConfigError(f"there is no folder {name} to load a policy from")
    try:
        return load_policy(name, **options)
    except AgentGymError:
        raise
    except (OSError, ValueError, SafetensorError) as error:  # how transformers says that it cannot load something
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"no policy, folder or model on the hub could be loaded as {name!r}: {reason}") from error


def load_language_model(name: str) -> LanguageModelPolicy:
    """:func:`load_named`, which must be something that can be trained."""
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

    policy = load_named(name)
    if not isinstance(policy, LanguageModelPolicy):
        raise ConfigError(f"policy {name!r} is not a language model: there is nothing to train")
    return policy
