"""A model that vLLM serves, as a policy: token-in, token-out over HTTP.

The prompt is sent as ids to ``/v1/completions``, and the sampled ids come back with their log-probabilities
(``return_token_ids``, vLLM 0.10.2 or newer), so that an episode has the same tokens as one of
:class:`~agentgym_tlm.policies.language_model.LanguageModelPolicy`. The server's prefix cache stands for its key/value
cache. The served model is fixed: weights cannot be updated from here, so that a trainer cannot use this policy.

Which log-probabilities a server reports is its option ``--logprobs-mode``: ``raw_logprobs``, the default, are those at
temperature 1, ``processed_logprobs`` those at the temperature of the request, cut off and normalised by top-p. A turn
records them at the sampling temperature (at 1 for greedy decoding) and before top-p:

====================== ============== ===========================
temperature            ``top_p`` is 1 ``top_p`` is less
====================== ============== ===========================
0 (top-p has no part)  any mode       any mode
1                      any mode       ``raw_logprobs``
other                  processed      refused: no mode reports it
====================== ============== ===========================

Where the mode matters the server is asked, before the first response, for the same distribution at two temperatures. A
server in the wrong mode is refused; ``logprobs=False`` records none instead, which is enough for an evaluation.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from transformers import PreTrainedTokenizerBase

from agentgym_tlm.errors import ConfigError, PolicyFailureError
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.policies.chat_api import add_usage, first_choice, usage_of
from agentgym_tlm.policies.http import JsonServer, Request, RequestError
from agentgym_tlm.policies.loading import load_tokenizer, read_settings
from agentgym_tlm.policies.tokens import open_sequence
from agentgym_tlm.prompt import PromptFormat, ReactFormat
from agentgym_tlm.ranges import SEED, check_count, check_range
from agentgym_tlm.renderer import Renderer
from agentgym_tlm.trajectory import FinishReason

LOCAL = "http://localhost:8000/v1"

_MAX_SEED = int(float(SEED.strip("[]").partition(",")[2]))
_NEUTRAL = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent with every request: what is left out is taken from the model's generation_config.json, if it has one."""


class VllmPolicy:
    """Plays with ``model`` of the vLLM server at ``base_url`` (default: ``OPENAI_BASE_URL``, else port 8000 here).

    ``tokenizer`` has to be the served model's. ``temperature`` 0 is greedy decoding; ``max_context`` defaults to what
    the server allows. The key, if the server wants one, is that of the variable ``OPENAI_API_KEY``. ``concurrency`` and
    what follows it are those of :class:`~agentgym_tlm.policies.http.JsonServer`.

    A request that finally fails ends its episode as ``policy_error``. Raises ConfigError for options that cannot be or
    a model that is not served, PolicyFailureError when there is no server, TemplateError for a chat template that is
    not append-only.
    """

    def __init__(
        self,
        model: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        base_url: str | None = None,
        name: str = "",
        version: str = "0",
        format: PromptFormat | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 128,
        max_context: int | None = None,
        logprobs: bool = True,
        concurrency: int = 64,
        timeout: float = 300.0,
        max_retries: int = 6,
        backoff: float = 0.5,
        max_failures: int = 8,
    ) -> None:
        check_range("temperature", temperature, "[0, inf)")
        check_range("top_p", top_p, "(0, 1]")
        check_count("max_new_tokens", max_new_tokens)
        check_count("max_context", max_context)
        self._mode = _needed_mode(temperature, top_p) if logprobs else None
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or Path(model).name
        self.version = version
        self.format: PromptFormat = format or ReactFormat()
        self.renderer = Renderer(tokenizer, self.format)
        self.temperature = temperature
        self.top_p = top_p if temperature else 1.0
        self.max_new_tokens = max_new_tokens
        self.logprobs = logprobs
        ends = {self.renderer.end_of_turn_id, tokenizer.eos_token_id}
        self.stop_ids = sorted(end for end in ends if isinstance(end, int))
        self._last_id = max(tokenizer.get_vocab().values())
        self.server = _server(
            base_url,
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            backoff=backoff,
            max_failures=max_failures,
        )
        self._root, limit = _served(self.server, model)
        self.max_context = max_context or limit
        if limit < self.max_context:
            raise ConfigError(f"max_context={max_context} is more than the {limit} tokens that the server allows")
        if not max_new_tokens < self.max_context:
            raise ConfigError(f"max_new_tokens={max_new_tokens} must be less than max_context={self.max_context}")

    @classmethod
    def load(
        cls, model: str, *, tokenizer: str | None = None, base_url: str | None = None, **options: Any
    ) -> VllmPolicy:
        """The policy of a served model by its name: the folder or hub id that ``vllm serve`` was given.

        ``tokenizer`` is a folder or hub id, by default the one that the server names as the model's origin. ``options``
        are those of the constructor; in a folder that a policy was saved to they win over its settings. Raises
        DataError when the tokenizer or the settings cannot be read.
        """
        root, limit = _served(_server(base_url, max_retries=1), model)
        source = tokenizer or (model if Path(model).is_dir() else root)
        settings = {name: value for name, value in read_settings(Path(source)).items() if name != "kv_cache"}
        if "max_context" in settings:
            settings["max_context"] = min(settings["max_context"], limit)
        loaded = load_tokenizer(source, verbatim=bool(settings))
        return cls(model, loaded, base_url=base_url, **{**settings, **options})

    @property
    def fingerprint(self) -> str:
        """Hash of the model's name and of where the server says that it got it: all that is known of the weights."""
        return hashlib.sha256(f"{self._root}\n{self.model}".encode()).hexdigest()[:16]

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """Sample all responses at once, and append their ids to the conversations.

        A conversation without room for another ``max_new_tokens`` is answered with ``overflow``. Raises
        PolicyFailureError when the server is of no use, or does not report what a turn records.
        """
        turns = {i: turn for i, c in enumerate(conversations) if (turn := self._open(c)) is not None}
        if turns and self._mode is not None:
            self._check_mode(next(iter(turns.values())).ids, self._mode)
            self._mode = None
        requests = [self._request(turn) for turn in turns.values()]
        answers = self.server.post_all("/completions", requests, self._read)
        done = {i: self._close(turns[i], answer) for i, answer in zip(turns, answers, strict=True)}
        return [done.get(i) or Generation("", overflow=True) for i in range(len(conversations))]

    def end(self, conversation: Conversation) -> None:
        """Nothing is held for an episode."""

    def _open(self, conversation: Conversation) -> _Turn | None:
        """The turn that is due, None if its response would not fit; the conversation is left as it is."""
        copied = replace(
            conversation, sequences=[list(ids) for ids in conversation.sequences], spans=list(conversation.spans)
        )
        ids = open_sequence(copied, self.renderer, self.max_context - self.max_new_tokens)
        return None if ids is None else _Turn(conversation, ids, copied.sequences, copied.spans)

    def _request(self, turn: _Turn) -> Request:
        seed = int(turn.conversation.rng.integers(_MAX_SEED))
        body = {
            "model": self.model,
            "prompt": turn.ids,
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": seed,
            "stop_token_ids": self.stop_ids,
            "return_token_ids": True,
            **_NEUTRAL,
            **({"logprobs": 1} if self.logprobs else {}),  # the sampled token's own is reported in any case
        }
        return Request(body, seed)

    def _read(self, reply: dict[str, Any]) -> _Sampled:
        choice = first_choice(reply)
        ids, prompt = choice.get("token_ids"), choice.get("prompt_token_ids")
        if not (_are_ids(ids) and _are_ids(prompt)):
            raise PolicyFailureError(
                f"{self.server.base_url} returns no token ids: vLLM 0.10.2 or newer is needed; for other servers there "
                "is openai:MODEL, without tokens"
            )
        if foreign := [token for token in ids if not 0 <= token <= self._last_id]:
            raise RequestError(
                f"the server sampled the token {foreign[0]}, and the tokenizer ends with {self._last_id}: is it the "
                "served model's? Name that with tokenizer="
            )
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length") or not 0 < len(ids) <= self.max_new_tokens:
            raise RequestError(f"the server broke off after {len(ids)} tokens ({reason})", passing=True)
        logprobs = None
        if self.logprobs:
            record = choice.get("logprobs")
            logprobs = record.get("token_logprobs") if isinstance(record, dict) else None
            if not (isinstance(logprobs, list) and len(logprobs) == len(ids) and all(map(_is_logprob, logprobs))):
                raise PolicyFailureError(
                    f"{self.server.base_url} does not report one log-probability per token; logprobs=False does without"
                )
        return _Sampled(prompt, ids, logprobs, reason == "stop" or ids[-1] in self.stop_ids, usage_of(reply))

    def _close(self, turn: _Turn, answer: _Sampled | RequestError) -> Generation:
        """Append a response's ids to its conversation; an end of turn that was not sampled stays outside the span."""
        if isinstance(answer, RequestError):
            return Generation("", error=str(answer))
        if answer.prompt != turn.ids:
            raise PolicyFailureError(
                f"{self.server.base_url} saw other tokens than it was sent ({len(answer.prompt)} instead of "
                f"{len(turn.ids)}): it must not cut or extend prompts"
            )
        conversation, start = turn.conversation, len(turn.ids)
        turn.ids.extend(answer.ids)
        turn.spans.append((len(turn.sequences) - 1, start, len(turn.ids)))
        if turn.ids[-1] != self.renderer.end_of_turn_id:
            turn.ids.append(self.renderer.end_of_turn_id)
        conversation.sequences[:], conversation.spans[:] = turn.sequences, turn.spans
        add_usage(conversation, answer.usage)
        text = self.tokenizer.decode(
            answer.ids[:-1] if answer.stopped else answer.ids, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        reason = FinishReason.STOP if answer.stopped else FinishReason.LENGTH
        return Generation(text, token_ids=answer.ids, logprobs=answer.logprobs, finish_reason=reason)

    def _check_mode(self, prompt: list[int], needed: str) -> None:
        """Raise PolicyFailureError unless the server reports log-probabilities in the ``needed`` mode."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "logprobs": 5, "seed": 0, **_NEUTRAL}
        body["return_tokens_as_token_ids"] = True  # two tokens may have one text
        requests = [Request({**body, "temperature": temperature, "top_p": 1.0}, 0) for temperature in (1.0, 2.0)]
        answers = self.server.post_all("/completions", requests, _top_logprobs)
        plain, flat = (_answered(answer) for answer in answers)
        same = [token for token in plain if token in flat]
        raw = bool(same) and all(abs(plain[token] - flat[token]) < 1e-2 for token in same)
        if raw != (needed == "raw_logprobs"):
            raise PolicyFailureError(
                f"{self.server.base_url} reports {'raw' if raw else 'processed'} log-probabilities, and at temperature "
                f"{self.temperature:g} with top_p {self.top_p:g} {needed} are needed: start it with --logprobs-mode "
                f"{needed}, or give logprobs=False to record none"
            )


class _Turn(NamedTuple):
    """A turn that is due: ``ids`` end with its prompt, and are the last of the ``sequences`` of a conversation."""

    conversation: Conversation
    ids: list[int]
    sequences: list[list[int]]
    spans: list[tuple[int, int, int]]


class _Sampled(NamedTuple):
    prompt: list[int]
    ids: list[int]
    logprobs: list[float] | None
    stopped: bool
    usage: dict[str, int]


def _needed_mode(temperature: float, top_p: float) -> str | None:
    """The mode that reports what a turn records, None for any. Raises ConfigError where none does."""
    if temperature in (0, 1) and (top_p == 1 or temperature == 0):
        return None
    if top_p == 1:
        return "processed_logprobs"
    if temperature == 1:
        return "raw_logprobs"
    raise ConfigError(
        f"vLLM reports no log-probabilities at temperature={temperature} before top_p={top_p} cuts them off: set one "
        "of them to 1, or give logprobs=False to record none"
    )


def _server(base_url: str | None, **options: Any) -> JsonServer:
    address = base_url or os.environ.get("OPENAI_BASE_URL") or LOCAL
    return JsonServer(address, api_key=os.environ.get("OPENAI_API_KEY"), **options)


def _served(server: JsonServer, model: str) -> tuple[str, int]:
    """Where the server has ``model`` from, and its longest context. Raises ConfigError when it does not serve it."""

    def read(reply: dict[str, Any]) -> dict[str, dict[str, Any]]:
        cards = reply.get("data")
        if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
            raise RequestError(f"{server.base_url}/models lists no models: {str(reply)[:80]!r}", passing=True)
        return {str(card.get("id")): card for card in cards}

    cards = server.get("/models", read)
    if model not in cards:
        raise ConfigError(f"{server.base_url} serves {', '.join(cards) or 'no model'}, not {model!r}")
    limit = cards[model].get("max_model_len")
    if type(limit) is not int:
        raise ConfigError(f"{server.base_url} is no vLLM server: it does not say max_model_len. Use openai:{model}")
    return str(cards[model].get("root") or model), limit


def _top_logprobs(reply: dict[str, Any]) -> dict[str, float]:
    record = first_choice(reply).get("logprobs")
    top = record.get("top_logprobs") if isinstance(record, dict) else None
    if not (isinstance(top, list) and top and isinstance(top[0], dict) and all(map(_is_logprob, top[0].values()))):
        raise PolicyFailureError("the server reports no log-probabilities; logprobs=False does without")
    return top[0]


def _answered(answer: dict[str, float] | RequestError) -> dict[str, float]:
    if isinstance(answer, RequestError):
        raise answer
    return answer


def _are_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _is_logprob(value: Any) -> bool:
    """Whether it may be one; a server in one of the modes for logits reports numbers above 0."""
    return type(value) in (int, float) and math.isfinite(value) and value < 1e-3
