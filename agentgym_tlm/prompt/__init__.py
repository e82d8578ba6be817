"""Prompt formats: how an episode becomes model input, and how a response becomes an action.

======== ===================================================================================================
react    ``Thought: ...`` and ``Action: ...``, full history: one growing conversation (:mod:`.react`)
tags     ``<think>`` and ``<action>``, the last turns and the admissible commands: a new message for every
         turn, as in the protocol of GiGPO (:mod:`.tags`)
======== ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.prompt.base import MAX_ACTION_CHARS, ParsedResponse, PromptFormat, Situation
from agentgym_tlm.prompt.react import DEFAULT_INSTRUCTIONS, ReactFormat
from agentgym_tlm.prompt.tags import TagsArguments, TagsFormat

__all__ = [
    "DEFAULT_INSTRUCTIONS",
    "FORMATS",
    "MAX_ACTION_CHARS",
    "FormatName",
    "ParsedResponse",
    "PromptFormat",
    "ReactFormat",
    "Situation",
    "TagsArguments",
    "TagsFormat",
    "format_from_dict",
    "format_to_dict",
    "make_format",
]

FormatName = Literal["react", "tags"]
FORMATS: Mapping[str, type[ReactFormat] | type[TagsFormat]] = {"react": ReactFormat, "tags": TagsFormat}


def format_to_dict(format: PromptFormat) -> dict[str, Any]:
    """A format as JSON can hold it, its name included."""
    return {"name": format.name, **asdict(format)}


def format_from_dict(record: Mapping[str, Any]) -> PromptFormat:
    """Inverse of :func:`format_to_dict`; without a name, react. Raises TypeError for what is no format's."""
    options = dict(record)
    name = options.pop("name", "react")
    if name not in FORMATS:
        raise TypeError(f"there is no prompt format {name!r}")
    return FORMATS[name](**options)


def make_format(
    name: FormatName | None,
    tags: TagsArguments,
    *,
    own: PromptFormat | None = None,
    instructions: str | None = None,
) -> PromptFormat | None:
    """The format that options name, None if they name none; with ``instructions`` instead of the format's own.

    If it is of the same kind as a policy's ``own``, that keeps its instructions and whatever else it was trained with.
    Raises ConfigError for options of a format that is not the one named.
    """
    if name != "tags" and tags != TagsArguments():
        raise ConfigError("the options tags.* are those of --prompt-format tags: add that, or leave them out")
    if name is None:
        return None
    if own is not None and own.name == name:
        return replace(own, **asdict(tags)) if name == "tags" else own
    told: dict[str, Any] = {} if instructions is None else {"instructions": instructions}
    return ReactFormat(**told) if name == "react" else TagsFormat(**asdict(tags), **told)
