"""Language-model policy: token-in, token-out, with a key/value cache that survives from turn to turn.

A conversation's ids are appended to and never changed: each turn adds the new observation and the generation prompt,
then exactly the ids that were sampled. With a windowed prompt format a turn begins a sequence of its own instead, and
keeps of the cache what the prompts of two turns begin with in common. Randomness comes from the conversation's own
stream, one uniform number per token position, so that a response does not depend on which other conversations happen to
share the batch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_tlm.errors import ConfigError, DataError
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.policies.cache import Slot, SlotCache, cache_argument, check_cacheable
from agentgym_tlm.policies.decoding import CachedDecoder, PlainDecoder, Row
from agentgym_tlm.policies.drafting import Drafter
from agentgym_tlm.policies.loading import SETTINGS_FILE, load_model, load_tokenizer, no_progress_bar, read_settings
from agentgym_tlm.policies.sampling import sample_tokens
from agentgym_tlm.policies.tokens import open_sequence
from agentgym_tlm.prompt import PromptFormat, ReactFormat, format_to_dict
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.trajectory import FinishReason

_MOST_LOGITS = 2**26  # of drafted tokens in one pass


class LanguageModelPolicy:
    """Plays with a transformers causal language model.

    ``temperature`` 0 is greedy decoding. ``max_context`` bounds prompt and response together and defaults to what the
    model was built for. ``kv_cache=False`` recomputes the history for every token: slow, for models whose attention the
    slot cache does not support. ``name`` and ``version`` are recorded in every trajectory. Raises ConfigError for
    options that contradict each other or the model, TemplateError for a chat template that is not append-only.
    """

    draft_tokens = 8
    """Most tokens that are guessed ahead for one pass of the model; they change the time that it takes only."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "",
        version: str = "0",
        format: PromptFormat | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 128,
        max_context: int | None = None,
        kv_cache: bool = True,
    ) -> None:
        limit = getattr(model.config, "max_position_embeddings", None)
        if max_context is None:
            max_context = limit or 4096
        if limit is not None and max_context > limit:
            raise ConfigError(f"max_context={max_context} is more than the {limit} positions of the model")
        if not 0 < max_new_tokens < max_context:
            raise ConfigError(f"max_new_tokens={max_new_tokens} must be in 1..{max_context - 1} (max_context - 1)")
        if temperature < 0:
            raise ConfigError(f"temperature={temperature} must not be negative; 0 is greedy decoding")
        if not 0 < top_p <= 1:
            raise ConfigError(f"top_p={top_p} must be in (0, 1]")
        if kv_cache:
            check_cacheable(model, max_context)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or Path(model.config.name_or_path or model.config.model_type).name
        self.version = version
        self.format: PromptFormat = format or ReactFormat()
        self.renderer = Renderer(tokenizer, self.format)
        self.temperature = temperature
        self.top_p = top_p
        self.max_new_tokens = max_new_tokens
        self.max_context = max_context
        self.kv_cache = kv_cache
        self.stop_ids = _stop_ids(model, tokenizer, self.renderer)
        self._cache_argument = cache_argument(model)
        self._cache: SlotCache | None = None
        self._drafter = Drafter()
        self._weights_seen = self._weights_state()
        self._fingerprint = ""

    @classmethod
    def load(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str = "auto",
        **options: Any,
    ) -> LanguageModelPolicy:
        """Load a hub id or a folder, one written by :meth:`save` included.

        ``options`` are those of the constructor; they win over what :meth:`save` recorded. ``device`` defaults to the
        accelerator if there is one. Raises DataError when the model, its tokenizer or its settings cannot be read,
        ConfigError for a device or dtype that cannot be used.
        """
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        _check_placement(device, dtype)
        settings = read_settings(Path(name_or_path))
        model = load_model(name_or_path, dtype)
        tokenizer = load_tokenizer(name_or_path, verbatim=bool(settings))
        return cls(model.to(device), tokenizer, **{**settings, **options})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, tokenizer and settings to a folder that :meth:`load` reads."""
        path = Path(path)
        with no_progress_bar():
            self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        settings = {
            "name": self.name,
            "version": self.version,
            "format": format_to_dict(self.format),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "max_context": self.max_context,
            "kv_cache": self.kv_cache,
        }
        (path / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n")

    def use_renderer(self, renderer: Renderer) -> None:
        """Play episodes that begin from now on with ``renderer`` and its prompt format, and be saved with that."""
        self.renderer, self.format = renderer, renderer.format

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    @property
    def fingerprint(self) -> str:
        """Hash of the weights, made when it is first asked for and kept until they change."""
        self._notice_update()
        self._fingerprint = self._fingerprint or weights_fingerprint(self.model)
        return self._fingerprint

    def weights_changed(self, version: str | None = None) -> None:
        """The model was updated: forget everything cached, and take ``version`` (default: the next number).

        In-place updates by an optimizer are noticed without it; anything else, such as switching adapters, is not.
        """
        self._cache = None
        self._weights_seen = self._weights_state()
        self._fingerprint = ""
        self.version = version if version is not None else _next_version(self.version)

    def _notice_update(self) -> None:
        """Take note of an optimiser step that nobody reported."""
        if self._weights_state() != self._weights_seen:
            self.weights_changed()

    def _weights_state(self) -> tuple[int, int]:
        """Changes when the model is replaced and when its parameters are written to."""
        return id(self.model), sum(parameter._version for parameter in self.model.parameters())

    def end(self, conversation: Conversation) -> None:
        """Free the conversation's cache slot, and with the last one the cache."""
        slot = conversation.memory
        if isinstance(slot, Slot) and slot.cache is self._cache:
            slot.cache.free(slot)
            if slot.cache.unused:
                self._cache = None
        conversation.memory = None

    @torch.inference_mode()
    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """Sample one response per conversation, and append its ids to the conversation.

        A conversation without room for another ``max_new_tokens`` is left as it is and answered with ``overflow``.
        Raises DataError when the model's weights give no numbers.
        """
        self._notice_update()
        was_training = self.model.training
        self.model.train(False)
        try:
            rows = {i: row for i, c in enumerate(conversations) if (row := self._open_row(c)) is not None}
            generations = self._generate(list(rows.values())) if rows else []
        finally:
            self.model.train(was_training)
        done = dict(zip(rows, generations, strict=True))
        return [done.get(i) or Generation("", overflow=True) for i in range(len(conversations))]

    def _open_row(self, conversation: Conversation) -> Row | None:
        """Open the sequence that the response is to be appended to; None if it would not fit."""
        cached = conversation.sequences[-1] if conversation.sequences else []
        ids = open_sequence(conversation, self.renderer, self.max_context - self.max_new_tokens)
        if ids is None:
            return None
        slot = self._slot(conversation) if self.kv_cache else None
        if slot is not None and ids is not cached:
            slot.length = _common_length(cached[: slot.length], ids[:-1])
        uniforms = conversation.rng.random(self.max_new_tokens) if self.temperature else np.zeros(self.max_new_tokens)
        return Row(conversation, ids, uniforms, slot)

    def _slot(self, conversation: Conversation) -> Slot:
        """The conversation's slot in the current cache."""
        if self._cache is None:
            self._cache, self._drafter = SlotCache(self.max_context), Drafter()
        slot = conversation.memory
        if not isinstance(slot, Slot) or slot.cache is not self._cache:
            slot = conversation.memory = self._cache.allocate()
        return slot

    def _generate(self, rows: list[Row]) -> list[Generation]:
        """Sample all rows' responses, append them to the sequences, and describe them."""
        decoder: CachedDecoder | PlainDecoder
        if self.kv_cache:
            assert self._cache is not None  # the rows have their slots in it
            decoder = CachedDecoder(self._forward, self._cache, self._drafter, rows, self.device)
        else:
            decoder = PlainDecoder(self._forward, self.device)
        # The logits of drafts take memory: with a big vocabulary and many rows, fewer are drafted.
        most_drafted = min(
            self.draft_tokens, _MOST_LOGITS // (len(rows) * self.model.config.get_text_config().vocab_size)
        )
        writing = rows
        while writing:
            for members, logits in decoder.run(writing, most_drafted):
                self._sample(members, logits)
            writing = [row for row in writing if not row.finished]
        if any(math.isnan(logprob) for row in rows for logprob in row.logprobs):
            raise DataError(
                f"the model {self.model.config.name_or_path or self.name!r} gives no numbers (NaN): its weights are "
                "broken or overflow their dtype. Go back to an earlier checkpoint, or load it with dtype=torch.float32"
            )
        return [self._close_row(row, row.written, row.logprobs) for row in rows]

    def _sample(self, rows: list[Row], logits: torch.Tensor) -> None:
        """Let the rows that are not finished write, from logits [rows, places, vocabulary] behind their drafts."""
        places = logits.shape[1]
        uniforms = np.zeros((len(rows), places))
        for row, numbers in zip(rows, uniforms, strict=True):
            if not row.finished:
                drafted = len(row.draft)
                numbers[places - drafted - 1 :] = row.uniforms[len(row.written) : len(row.written) + drafted + 1]
        ids, logprobs = sample_tokens(
            logits.flatten(0, 1),
            torch.from_numpy(uniforms).to(logits.device, non_blocking=True).flatten(),
            temperature=self.temperature,
            top_p=self.top_p,
        )
        drawn = zip(rows, ids.view(-1, places).tolist(), logprobs.view(-1, places).tolist(), strict=True)
        for row, row_ids, row_logprobs in drawn:
            if not row.finished:
                first = places - len(row.draft) - 1
                row.take(row_ids[first:], row_logprobs[first:], self.stop_ids)

    def _close_row(self, row: Row, ids: list[int], logprobs: list[float]) -> Generation:
        """Append a response's ids to its conversation; an end of turn that was not sampled stays outside the span."""
        start = len(row.ids)
        row.ids += ids
        if row.slot is not None:
            row.slot.length = len(row.ids) - 1  # the last token has not been through the model yet
        row.conversation.spans.append((len(row.conversation.sequences) - 1, start, len(row.ids)))
        stopped = ids[-1] in self.stop_ids
        if ids[-1] != self.renderer.end_of_turn_id:
            row.ids.append(self.renderer.end_of_turn_id)
        text = self.tokenizer.decode(ids[:-1] if stopped else ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Generation(text, token_ids=ids, logprobs=logprobs, finish_reason=reason)

    def _forward(self, cache: SlotCache | None, keep: int, **inputs: torch.Tensor) -> torch.Tensor:
        """Logits of the last ``keep`` positions, [batch, keep, vocabulary]."""
        caching: dict[str, Any] = {"use_cache": False}
        if cache is not None:
            caching = {"use_cache": True, self._cache_argument: cache}
        logits: torch.Tensor = self.model(logits_to_keep=keep, **inputs, **caching).logits[:, -keep:]
        return logits


def _check_placement(device: str | torch.device, dtype: torch.dtype | str) -> None:
    """Raise ConfigError for a device that is not there, or a name that is no dtype's."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device={device!r} cannot be used here ({reason}): leave it out, or set cpu") from error
    if dtype != "auto" and not isinstance(getattr(torch, str(dtype).removeprefix("torch."), None), torch.dtype):
        raise ConfigError(f"dtype={dtype!r} must be auto, or one of torch's, such as bfloat16 or float32")


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, renderer: Renderer) -> frozenset[int]:
    """Everything that ends a response: the template's end of turn, and what tokenizer and model call end of text."""
    stop = {renderer.end_of_turn_id}
    generation_config = getattr(model, "generation_config", None)
    for ids in (tokenizer.eos_token_id, getattr(generation_config, "eos_token_id", None)):
        stop.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(stop)


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _next_version(version: str) -> str:
    head, number = version.rstrip("0123456789"), version[len(version.rstrip("0123456789")) :]
    return f"{head}{int(number or 0) + 1}"


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Hash of a model's weights."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
