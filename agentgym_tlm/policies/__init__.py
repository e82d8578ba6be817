"""Policies: anything that turns conversations into responses."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Policy

if TYPE_CHECKING:
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_REMOTE = ("openai", "vllm")
_PLAIN: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}
"""Types of options that a command line or a file can get wrong, in words."""


def load_policy(name: str | os.PathLike[str], /, **options: Any) -> Policy:
    """A policy by name: ``expert``, ``random``, ``human``, ``smollm2``, or a model's hub id or folder.

    ``openai:MODEL`` is a model behind a chat completions server, ``vllm:MODEL`` one that vLLM serves. ``options`` are
    those of the policy's constructor (of ``load`` for models). A ``tiny`` model has to be trained before it can do
    anything: it is built with :func:`agentgym_tlm.policies.tiny.build_tiny` and loaded by the folder that it was saved
    to. Raises ConfigError for a name that can be none of these, before anything is looked for on the hub, and for an
    option that the policy does not have; and what the policy's constructor or ``load`` raises.
    """
    kind, model = remote_model(name)
    if kind == "openai":
        from agentgym_tlm.policies.chat_api import ChatApiPolicy

        check_options(str(name), options, ChatApiPolicy)
        return ChatApiPolicy(model, **options)
    if kind == "vllm":
        from agentgym_tlm.policies.vllm import VllmPolicy

        check_options(str(name), options, VllmPolicy.load, VllmPolicy)
        return VllmPolicy.load(model, **options)
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
        known = (LanguageModelPolicy.load, LanguageModelPolicy) if str(name) == "smollm2" else (named[str(name)],)
        check_options(str(name), options, *known)
        return named[str(name)](**options)
    if not Path(name).is_dir() and not _HUB_ID.fullmatch(str(name)):
        raise ConfigError(_unknown(str(name), list(named)))
    check_options(str(name), options, LanguageModelPolicy.load, LanguageModelPolicy)
    return LanguageModelPolicy.load(name, **options)


def remote_model(name: str | os.PathLike[str]) -> tuple[str, str]:
    """Kind of server and model of a policy behind one, such as ``vllm:MODEL``; "" and the name itself for others.

    Raises ConfigError when the name lacks the model.
    """
    kind, _, model = str(name).partition(":")
    if kind not in _REMOTE:
        return "", str(name)
    if not model:
        raise ConfigError(f"policy {kind!r} needs the name of a model: {kind}:MODEL")
    return kind, model


def check_options(name: str, options: Mapping[str, Any], *makers: Callable[..., Policy]) -> None:
    """Raise ConfigError for an option that none of ``makers`` has as a keyword argument, or of another type there."""
    known: dict[str, Any] = {}
    for maker in makers:
        for parameter in signature(maker, eval_str=True).parameters.values():
            if parameter.kind is Parameter.KEYWORD_ONLY:
                known.setdefault(parameter.name, parameter.annotation)
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"policy {name} has no option {option}; there are {', '.join(known)}")
        wanted = get_args(known[option]) or (known[option],)
        if set(wanted) <= _PLAIN.keys() and not any(_is_a(kind, value) for kind in wanted):
            words = " or ".join(_PLAIN[kind] for kind in wanted)
            raise ConfigError(f"policy {name}: {option} must be {words}, not {value!r}")


def _is_a(kind: type, value: object) -> bool:
    number = (int, float) if kind is float else (kind,)
    return isinstance(value, number) and not (isinstance(value, bool) and kind is not bool)


def load_language_model(name: str) -> LanguageModelPolicy:
    """:func:`load_policy` of something that can be trained. Raises ConfigError for any other policy."""
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

    policy = None if remote_model(name)[0] else load_policy(name)
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
    known_names = f"There are {', '.join(known)}, openai:MODEL, vllm:MODEL, folders, and hub ids (OWNER/NAME)"
    return f"no policy or folder is called {name!r}{hint} {known_names}"
