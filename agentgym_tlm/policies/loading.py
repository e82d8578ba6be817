"""Models from a folder or the hub, read with errors that say which one is broken and what to do about it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from agentgym_tlm.errors import DataError
from agentgym_tlm.prompt import format_from_dict

SETTINGS_FILE = "agentgym_policy.json"

_SETTINGS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "version": str,
    "format": dict,
    "temperature": (int, float),
    "top_p": (int, float),
    "max_new_tokens": int,
    "max_context": int,
    "kv_cache": bool,
}
_VOCABULARIES = ("tokenizer.*", "vocab*", "*.model", "*.tiktoken", "tekken*")
_UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)  # what transformers raises
_REMEDY = "write or download the folder again; for a model of the hub, check its name and the network"


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Transformers shows no bars inside."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_config(name: str | os.PathLike[str]) -> PretrainedConfig:
    """The shape of the model of a folder or hub id. Raises DataError when it cannot be read."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name)
    except _UNREADABLE as error:
        raise _broken("configuration", name, error) from error
    return config


def load_model(name: str | os.PathLike[str], dtype: torch.dtype | str) -> Any:
    """The causal language model of a folder or hub id. Raises DataError when it cannot be read."""
    try:
        with no_progress_bar():
            return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation="sdpa")
    except _UNREADABLE as error:
        raise _broken("model", name, error) from error


def load_tokenizer(name: str | os.PathLike[str], *, verbatim: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id; ``verbatim`` as its ``tokenizer.json``, if there is one, says.

    AutoTokenizer would replace the splitting rules of what we saved by those of the model's architecture. Raises
    DataError when it cannot be read or, in a folder, has no vocabulary.
    """
    folder = Path(name)
    if folder.is_dir() and not any(path for pattern in _VOCABULARIES for path in folder.glob(pattern)):
        raise DataError(f"{folder} holds no tokenizer (such as a tokenizer.json): {_REMEDY}")
    reader = PreTrainedTokenizerFast if verbatim and (folder / "tokenizer.json").is_file() else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = reader.from_pretrained(name)
    except _UNREADABLE as error:
        raise _broken("tokenizer", name, error) from error
    return tokenizer


def read_settings(folder: Path) -> dict[str, Any]:
    """Constructor options that a policy was saved with; none where the folder is not a saved policy's.

    Raises DataError when they cannot be read.
    """
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise TypeError("not a JSON object")
        for name, value in settings.items():
            if name not in _SETTINGS or not isinstance(value, _SETTINGS[name]):
                raise TypeError(f"{name}={value!r} is no setting of a policy")
        if "format" in settings:
            settings["format"] = format_from_dict(settings["format"])
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): save the policy again, or delete the file to load a plain model"
        ) from error
    return settings


def _broken(what: str, name: str | os.PathLike[str], error: Exception) -> DataError:
    reason = str(error).strip().partition("\n")[0]
    return DataError(f"the {what} of {os.fspath(name)!r} cannot be read ({type(error).__name__}: {reason}): {_REMEDY}")
