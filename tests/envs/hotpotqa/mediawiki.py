"""A loopback server that answers as Wikipedia's API does, or fails as it can."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

Reply = tuple[int, dict[str, str], bytes]
Failure = Reply | Callable[[], None]
"""A reply, or something to do before the connection is dropped."""

EXTRACTS = {
    "Orla Brandt": (
        "Orla Brandt is a painter of the U.S. Navy. She writes. She cooks.\nShe was born in Tarnwick. She sails.\n\n\n"
        "== Later years ==\nShe kept bees. Mr. Lind helped.\n\n\n=== Prizes ===\nOne was for honey.\n\n\n"
        "== References ==\nA list of books."
    ),
    "Mercury": (
        "Mercury most commonly refers to:\n\nMercury (planet), the first planet\nMercury (element), a metal\n"
        "Freddie Mercury, a singer\n"
    ),
    "Reference work": "A reference work refers to other works. It is a book.",
    "Heron & Sons": "Heron & Sons sold rope.",
}
REDIRECTS = {"O. Brandt": "Orla Brandt"}
LINKS = {"Mercury": ["Freddie Mercury", "Mercury (disambiguation)", "Mercury (element)", "Mercury (planet)", "Zinc"]}
CATEGORIES = {"Mercury": ["Category:All disambiguation pages"], "Reference work": ["Category:Books"]}
FOUND = {"Orla": ["Orla Brandt", "Orla Kiely"], "writer of novels": ["Mercury", "Orla Brandt", "Heron & Sons"]}
NEAR = {"orla brandt": "Orla Brandt"}


@dataclass
class MediaWiki:
    """What was asked, and the failures that the next requests meet."""

    port: int = 0
    requests: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    """What the next requests get."""

    def reply(self, params: dict[str, str]) -> Reply:
        """The right answer to a request."""
        if params.get("list") == "search":
            query = params["srsearch"]
            near = params.get("srwhat") == "nearmatch"
            titles = [NEAR[query]] if near and query in NEAR else [] if near else FOUND.get(query, [])
            titles = titles[: int(params["srlimit"])]
            body: dict[str, Any] = {
                "query": {
                    "searchinfo": {"totalhits": len(titles)},
                    "search": [{"ns": 0, "title": title, "pageid": 1, "snippet": "<b>x</b>"} for title in titles],
                }
            }
            return _json(body)
        asked = params["titles"]
        if asked.startswith("de:"):
            return _json({"query": {"interwiki": [{"title": asked, "iw": "de"}]}})
        title = REDIRECTS.get(asked, asked)
        if title not in EXTRACTS:
            return _json({"query": {"pages": {"-1": {"ns": 0, "title": title, "missing": ""}}}})
        page: dict[str, Any] = {"pageid": 7, "ns": 0, "title": title}
        match params["prop"]:
            case "extracts":
                page["extract"] = EXTRACTS[title]
            case "links":
                page["links"] = [{"ns": 0, "title": each} for each in LINKS[title]] + [{"ns": 12, "title": "Help:X"}]
            case "categories":
                page["categories"] = [{"ns": 14, "title": each} for each in CATEGORIES.get(title, [])]
            case other:
                raise AssertionError(f"prop={other} is not expected")
        answer: dict[str, Any] = {"pages": {"7": page}}
        if title != asked:
            answer["redirects"] = [{"from": asked, "to": title}]
        return _json({"batchcomplete": "", "query": answer})


def failure(status: int, body: str = "", **headers: str) -> Reply:
    """A reply with a body that is no JSON, unless that is what it says; ``_`` in a header's name is ``-``."""
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body.encode()


def _json(body: dict[str, Any]) -> Reply:
    return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()


class Loopback(httpx.HTTPTransport):
    """Sends requests for any host to a port of this machine, the Host header unchanged. Can be pickled."""

    def __init__(self, port: int) -> None:
        super().__init__(verify=False)
        self.port = port

    def __reduce__(self) -> tuple[type[Loopback], tuple[int]]:
        return Loopback, (self.port,)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self.port)
        return super().handle_request(request)


@contextmanager
def serve() -> Iterator[MediaWiki]:
    """A running server."""
    wiki = MediaWiki()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            params = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            wiki.requests.append({"path": parts.path, **params})
            wiki.headers.append(dict(self.headers.items()))
            planned = wiki.failures.pop(0) if wiki.failures else wiki.reply(params)
            if callable(planned):
                planned()
                self.close_connection = True
                return
            status, headers, body = planned
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    wiki.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield wiki
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
