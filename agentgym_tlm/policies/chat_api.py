"""A model behind any server that speaks OpenAI's chat completions, as a policy.

A chat API shows texts and no token ids, so that nothing can be trained on what it plays but by imitation: it serves
evaluation, prompt-based baselines, and expert play. Its answers are as reproducible as the server makes them: every
request has a seed from the episode's own stream, which many servers use and none has to.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.base import Conversation, Generation
from agentgym_tlm.policies.http import JsonServer, Request, RequestError
from agentgym_tlm.prompt import PromptFormat, ReactFormat, Situation
from agentgym_tlm.ranges import SEED, check_count, check_range
from agentgym_tlm.trajectory import FinishReason

OPENAI = "https://api.openai.com/v1"
STOP = ("\nObservation:",)
"""Models that were shown an episode write the next observation themselves if they are not stopped."""

_MAX_SEED = int(float(SEED.strip("[]").partition(",")[2]))


class ChatApiPolicy:
    """Plays with ``model`` of the server at ``base_url`` (default: ``OPENAI_BASE_URL``, else OpenAI's).

    The key is that of the variable ``OPENAI_API_KEY``, and is written nowhere. ``extra_body`` are fields of each
    request, further ones or instead of ours; one that is None is left out, as in ``{"max_tokens": None,
    "max_completion_tokens": 512}`` for a server that wants the newer name. ``concurrency`` and what follows it are
    those of :class:`~agentgym_tlm.policies.http.JsonServer`.

    A request that finally fails ends its episode as ``policy_error``, and so does an answer that the server's filter
    withholds. Raises ConfigError for options that cannot be, or OpenAI's server without a key.
    """

    version = "0"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        format: PromptFormat | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 512,
        stop: str | Sequence[str] | None = STOP,
        extra_body: Mapping[str, Any] | None = None,
        concurrency: int = 32,
        timeout: float = 300.0,
        max_retries: int = 6,
        backoff: float = 0.5,
        max_failures: int = 8,
    ) -> None:
        check_range("temperature", temperature, "[0, inf)")
        check_range("top_p", top_p, "(0, 1]")
        check_count("max_new_tokens", max_new_tokens)
        stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
        if not (isinstance(stops, Sequence) and all(isinstance(text, str) for text in stops)):
            raise ConfigError(f"stop must be a text or a list of texts, not {stop!r}")
        _check_fields(extra_body)
        self.model = model
        self.name = f"openai:{model}"
        self.format: PromptFormat = format or ReactFormat()
        self.temperature = temperature
        self.top_p = top_p
        self.max_new_tokens = max_new_tokens
        self.stop = list(stops)
        self.extra_body = dict(extra_body or {})
        self.server = JsonServer(
            base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI,
            api_key=os.environ.get("OPENAI_API_KEY"),
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            backoff=backoff,
            max_failures=max_failures,
        )
        if self.server.base_url == OPENAI and not os.environ.get("OPENAI_API_KEY"):
            raise ConfigError("set OPENAI_API_KEY, or name another server with base_url or OPENAI_BASE_URL")

    @property
    def fingerprint(self) -> str:
        """Hash of the server's address and the model's name: all that is known of the weights."""
        return hashlib.sha256(f"{self.server.base_url}\n{self.model}".encode()).hexdigest()[:16]

    def act(self, conversations: Sequence[Conversation]) -> list[Generation]:
        """Ask for all responses at once. Raises PolicyFailureError when the server is of no use."""
        requests = [self._request(conversation) for conversation in conversations]
        answers = self.server.post_all("/chat/completions", requests, _read)
        return [_generation(*pair) for pair in zip(conversations, answers, strict=True)]

    def end(self, conversation: Conversation) -> None:
        """Nothing is held for an episode."""

    def _request(self, conversation: Conversation) -> Request:
        seed = int(conversation.rng.integers(_MAX_SEED))
        body = {
            "model": self.model,
            "messages": self._messages(conversation),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_new_tokens,
            "stop": self.stop or None,
            "seed": seed,
            **self.extra_body,
        }
        return Request({name: value for name, value in body.items() if value is not None}, seed)

    def _messages(self, conversation: Conversation) -> list[dict[str, str]]:
        last = len(conversation.responses)
        messages: list[dict[str, str]] = []
        for turn in range(last if self.format.windowed else 0, last + 1):
            if messages:
                messages.append({"role": "assistant", "content": conversation.responses[turn - 1]})
            messages.append({"role": "user", "content": self._message(conversation, turn)})
        return messages

    def _message(self, conversation: Conversation, turn: int) -> str:
        responses = conversation.responses[:turn] if self.format.windowed else []
        actions = [self.format.parse(response).action for response in responses]
        commands = conversation.commands[turn] if turn < len(conversation.commands) else None
        observations = conversation.observations[: turn + 1]
        return self.format.message(Situation(conversation.instruction, observations, actions, commands))


def _check_fields(extra_body: object) -> None:
    """Raise ConfigError for what cannot be fields of a request."""
    try:
        json.dumps(extra_body, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra_body={extra_body!r} cannot be sent as JSON ({error})") from error
    if not isinstance(extra_body, Mapping | None):
        raise ConfigError(f"extra_body must hold fields of a request by their names, not {extra_body!r}")


class _Answer(NamedTuple):
    text: str
    finish_reason: FinishReason
    model: str | None
    usage: dict[str, int]


def _read(reply: dict[str, Any]) -> _Answer:
    choice = first_choice(reply)
    message = choice.get("message")
    text = message.get("content", "") if isinstance(message, dict) else None
    if text is None and isinstance(message, dict):  # all of it was thought, or a refusal, which has its own field
        text = message.get("refusal") or ""
    if not isinstance(text, str):
        raise RequestError(f"the server's answer has no message: {str(choice)[:80]!r}", passing=True)
    reason = choice.get("finish_reason")
    if reason == "content_filter":
        raise RequestError("the server's filter withholds the answer (content_filter)")
    model = reply.get("model")
    return _Answer(
        _whole_characters(text).strip(),
        FinishReason.LENGTH if reason == "length" else FinishReason.STOP,
        model if isinstance(model, str) else None,
        usage_of(reply),
    )


def _whole_characters(text: str) -> str:
    """``text`` with U+FFFD for halves of surrogate pairs, as JSON may hold them: no later request could say them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _generation(conversation: Conversation, answer: _Answer | RequestError) -> Generation:
    if isinstance(answer, RequestError):
        return Generation("", overflow=True) if answer.too_long else Generation("", error=str(answer))
    add_usage(conversation, answer.usage)
    if answer.model is not None:
        conversation.metadata["model"] = answer.model
    return Generation(answer.text, finish_reason=answer.finish_reason)


def first_choice(reply: dict[str, Any]) -> dict[str, Any]:
    """The answer in a reply. Raises RequestError when there is none."""
    choices = reply.get("choices")
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise RequestError(f"the server's answer has no choices: {str(reply)[:200]!r}", passing=True)
    return choices[0]


def usage_of(reply: dict[str, Any]) -> dict[str, int]:
    """Tokens of a request as the server counted them, if it did."""
    usage = reply.get("usage")
    names = ("prompt_tokens", "completion_tokens")
    return {name: usage[name] for name in names if type(usage.get(name)) is int} if isinstance(usage, dict) else {}


def add_usage(conversation: Conversation, usage: Mapping[str, int]) -> None:
    """Add to the sums that the trajectory records: every turn's prompt counts anew, as it is paid for."""
    if usage:
        total = conversation.metadata.setdefault("usage", {})
        total.update({name: total.get(name, 0) + count for name, count in usage.items()})
