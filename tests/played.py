"""Servers played on a real socket, as they answer in the wild: Ollama, and OpenAI's many kin.

Only the far side is played. Their vectors come from the text alone, so that a test sees
whether each text got its own.
"""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Reply:
    """``how``: whole; cut (half of the body, then the end); hang up (nothing at all); silent
    (nothing until the test is over); drip (a byte now and then until the test is over)."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    how: Literal["whole", "cut", "hang up", "silent", "drip"] = "whole"


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    payload: Any
    client: tuple[str, int]


def texts_of(seen: Seen) -> list[str]:
    payload = seen.payload
    return payload["input"] if "input" in payload else [payload["prompt"]]


def reply(value: object, status: int = 200, **headers: str) -> Reply:
    names = {name.replace("_", "-"): content for name, content in headers.items()}
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **names})


def plain(status: int, body: str, **headers: str) -> Reply:
    return Reply(status, body.encode(), {"Content-Type": "text/plain", **headers})


HANG_UP = Reply(how="hang up")
SILENT = Reply(how="silent")
DRIP = Reply(body=b"[" * 10_000, how="drip")
HTML = plain(200, "<html><title>Sign in</title><p>hello</p></html>")
EMPTY = plain(200, "")
NO_ROUTE = plain(404, "404 page not found")


def vector_of(text: str, width: int) -> np.ndarray:
    """The vector of length one that every played server has for a text."""
    vector = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(width)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Server:
    """One played server. ``faults`` answer the next embedding requests instead of it."""

    model = "played"
    routes: tuple[str, ...] = ()

    def __init__(self, *, width: int = 16, context: int = 10**9) -> None:
        self.width = width
        self.context = context
        self.faults: deque[Reply | None] = deque()
        self.poison: Callable[[str], Reply | None] = lambda text: None
        self.seen: list[Seen] = []
        self.over = threading.Event()
        self.url = ""

    @property
    def asked(self) -> list[list[str]]:
        """The texts of each embedding request, in order."""
        return [texts_of(seen) for seen in self.seen if seen.path in self.routes]

    def answer(self, seen: Seen) -> Reply:
        if seen.path in self.routes and seen.method == "POST":
            fault = self.faults.popleft() if self.faults else None
            poisoned = next(filter(None, map(self.poison, texts_of(seen))), None)
            return fault or poisoned or self.embed(seen)
        return self.other(seen)

    def embed(self, seen: Seen) -> Reply:
        raise NotImplementedError

    def other(self, seen: Seen) -> Reply:
        return NO_ROUTE


class Ollama(Server):
    """Ollama at a version, which decides its routes, its order and its answers."""

    routes = ("/api/embed", "/api/embeddings")

    def __init__(self, *, version: str | None = "0.33.0", **common: Any) -> None:
        super().__init__(**common)
        self.version = version
        self.models = {f"{self.model}:latest": "sha-one"}

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(map(int, (self.version or "0.33.0").split(".")))

    def embed(self, seen: Seen) -> Reply:
        if seen.path == "/api/embed" and self.number < (0, 2, 6):
            return NO_ROUTE
        name = seen.payload["model"]
        if f"{name}:latest" not in self.models and name not in self.models:
            return reply({"error": f'model "{name}" not found, try pulling it first'}, 404)
        if seen.path == "/api/embeddings":
            # Not of length one, here.
            vector = 13.6 * vector_of(seen.payload["prompt"], self.width).astype(float)
            return reply({"embedding": vector.tolist()})
        texts = seen.payload["input"]
        if any(len(text) > self.context for text in texts):
            if not seen.payload.get("truncate", True):
                return reply({"error": "the input length exceeds the context length"}, 400)
            texts = [text[: self.context] for text in texts]
        width = min(self.width, seen.payload.get("dimensions") or self.width)
        rows = [vector_of(text, width).tolist() for text in texts]
        if (0, 2, 6) <= self.number < (0, 3, 5):
            rows.reverse()
        return reply({"model": name, "embeddings": rows, "total_duration": 1})

    def other(self, seen: Seen) -> Reply:
        if seen.path == "/api/version" and self.version:
            return reply({"version": self.version})
        if seen.path == "/api/tags":
            models = [{"name": name, "digest": digest} for name, digest in self.models.items()]
            return reply({"models": models})
        return NO_ROUTE


class OpenAI(Server):
    """Any server that speaks /v1/embeddings. ``kin`` decides the shape of its errors."""

    routes = ("/v1/embeddings",)

    def __init__(self, *, kin: str = "openai", takes_base64: bool = True, **common: Any) -> None:
        super().__init__(**common)
        self.kin = kin
        self.takes_base64 = takes_base64
        self.most = 32 if kin == "tei" else 2048

    def embed(self, seen: Seen) -> Reply:
        texts, encoding = seen.payload["input"], seen.payload.get("encoding_format", "float")
        if encoding == "base64" and not self.takes_base64:
            return self.error(400, "encoding_format: only 'float' is supported")
        if seen.payload["model"] != self.model:
            return self.error(404, f"The model `{seen.payload['model']}` does not exist.")
        if len(texts) > self.most:
            said = f"batch size {len(texts)} > maximum allowed batch size {self.most}"
            return self.error(422, said)
        longest = max(map(len, texts))
        if longest > self.context:
            return self.error(*self.too_long(longest))
        rows = [
            {"object": "embedding", "index": index, "embedding": self.encoded(text, encoding)}
            for index, text in enumerate(texts)
        ]
        return reply({"object": "list", "model": self.model, "data": rows[::-1]})

    def encoded(self, text: str, encoding: str) -> object:
        vector = vector_of(text, self.width)
        if encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    def too_long(self, given: int) -> tuple[int, str]:
        said = f"maximum context length is {self.context} tokens, however you requested {given}"
        return {
            "tei": (413, f"`inputs` must have less than {self.context} tokens. Given: {given}"),
            "llama.cpp": (500, "input is too large to process. increase the physical batch size"),
            "litellm": (400, f"litellm.ContextWindowExceededError: {said} tokens"),
        }.get(self.kin, (400, f"This model's {said} tokens."))

    def error(self, status: int, message: str) -> Reply:
        shapes: dict[str, object] = {
            "tei": {"message": message, "code": status, "type": "Validation"},
            "vllm": {"object": "error", "message": message, "type": "BadRequest", "code": status},
            "lm studio": {"error": message},
        }
        one = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return reply(shapes.get(self.kin, {"error": one}), status)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    played: Server

    def log_message(self, *args: object) -> None:
        """Be quiet."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        payload = json.loads(body) if body else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, self.path, headers, payload, self.client_address)
        self.played.seen.append(seen)
        self.give(self.played.answer(seen))

    do_GET = do_POST

    def give(self, answer: Reply) -> None:
        self.close_connection = answer.how != "whole"
        if answer.how == "hang up":
            return
        if answer.how == "silent":
            self.played.over.wait(30)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if answer.how == "drip":
            while not self.played.over.wait(0.02):
                try:
                    self.wfile.write(answer.body[:1])
                except OSError:
                    return
        self.wfile.write(answer.body[: len(answer.body) // (2 if answer.how == "cut" else 1)])


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the play."""


@contextmanager
def serving(played: Server) -> Iterator[Server]:
    """Let the server be reached at ``played.url`` while the block runs."""
    handler = type("Handler", (_Handler,), {"played": played})
    with _Quiet(("127.0.0.1", 0), handler) as httpd:
        played.url = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield played
        finally:
            played.over.set()
            httpd.shutdown()
            thread.join()
