"""Model servers on the loopback: real HTTP, spoken by the standard library.

A server is a function from a request to a :class:`Reply`. ``chat_expert`` answers chat completions as the expert of
``Toy-v0`` would; :class:`ServedModel` speaks vLLM's completions with a real model behind it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from agentgym_tlm.policies.language_model import LanguageModelPolicy
from tests.toy_env import ToyEnv


@dataclass
class Reply:
    """What a server sends; ``body`` as JSON, or as it is if it is text. ``delay`` is in seconds."""

    body: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass
class Asked:
    """A request as the server got it."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


Answer = Callable[[Asked], Reply]


class ModelServer(ThreadingHTTPServer):
    """Counts what it is asked, and how many requests it has at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self.lock = threading.Lock()
        self.at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        server = self.server
        length = int(self.headers.get("Content-Length", 0))
        asked = Asked(self.path, json.loads(self.rfile.read(length) or b"{}"), dict(self.headers))
        with server.lock:
            server.asked.append(asked)
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            reply = server.answer(asked)
            time.sleep(reply.delay)
        finally:
            with server.lock:
                server.at_once -= 1
        content = (reply.body if isinstance(reply.body, str) else json.dumps(reply.body)).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """The tests' output is for the tests."""


@contextmanager
def serving(answer: Answer) -> Iterator[ModelServer]:
    """A server, until the block ends."""
    server = ModelServer(answer)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def in_turn(*replies: Reply | Answer) -> Answer:
    """The replies one after the other, the last one for ever."""
    left, lock = list(replies), threading.Lock()

    def answer(asked: Asked) -> Reply:
        with lock:
            reply = left.pop(0) if len(left) > 1 else left[0]
        return reply if isinstance(reply, Reply) else reply(asked)

    return answer


def chat(text: str | None, finish_reason: str = "stop", **message: Any) -> Reply:
    """A chat completion."""
    return Reply(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "toy-2026-11-30",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, **message},
                    "finish_reason": finish_reason,
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
        }
    )


def chat_expert(asked: Asked) -> Reply:
    """What the expert of ``Toy-v0`` says to the conversation so far."""
    expert = ToyEnv().expert()
    thought = action = ""
    for message in asked.body["messages"]:
        if message["role"] == "user":
            thought, action = expert.act(message["content"])
    return chat(f"Thought: {thought}\nAction: {action}")


class ServedModel:
    """vLLM's ``/v1/models`` and ``/v1/completions`` with the model of a policy; greedy, or sampled with torch.

    ``mode`` is its ``--logprobs-mode``. ``change`` may tamper with a completion before it is sent.
    """

    def __init__(
        self,
        policy: LanguageModelPolicy,
        *,
        name: str = "toy/tiny",
        root: str = "toy/tiny",
        max_model_len: int = 512,
        mode: str = "raw_logprobs",
        change: Callable[[dict[str, Any]], None] = lambda reply: None,
    ) -> None:
        self.policy = policy
        self.name, self.root, self.max_model_len = name, root, max_model_len
        self.mode = mode
        self.change = change
        self.lock = threading.Lock()

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            card = {"id": self.name, "object": "model", "root": self.root, "max_model_len": self.max_model_len}
            return Reply({"object": "list", "data": [card]})
        if asked.path != "/v1/completions" or asked.body["model"] != self.name:
            return Reply({"message": "The model does not exist.", "code": 404}, status=404)
        with self.lock, torch.inference_mode():
            reply = self._complete(asked.body)
        self.change(reply)
        return Reply(reply)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(body["seed"])
        temperature, finish_reason = body["temperature"], "length"
        ids: list[int] = []
        logprobs: list[float] = []
        top: list[dict[str, float]] = []
        while len(ids) < body["max_tokens"]:
            logits = self.policy.model(torch.tensor([body["prompt"] + ids])).logits[0, -1].float()
            raw, processed = logits.log_softmax(-1), (logits / (temperature or 1.0)).log_softmax(-1)
            reported = raw if self.mode == "raw_logprobs" else processed
            sampled = torch.multinomial(processed.exp(), 1, generator=generator) if temperature else logits.argmax()
            ids.append(int(sampled))
            logprobs.append(float(reported[ids[-1]]))
            best = reported.topk(body.get("logprobs", 1))
            top.append({f"token_id:{i}": float(value) for value, i in zip(*best, strict=True)})
            if ids[-1] in body.get("stop_token_ids", ()):
                finish_reason = "stop"
                break
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": finish_reason, "logprobs": None}
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": logprobs, "top_logprobs": top, "tokens": [], "text_offset": []}
        if body.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": body["prompt"]}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return {"object": "text_completion", "model": self.name, "choices": [choice], "usage": usage}
