"""An embedding server in its own process: Ollama's /api/embed, with every kind of trouble.

The soak sends it messages over a pipe: the mode to be in from now on, or "deliveries" to get the
list of what was embedded for which worker. A vector depends only on its text, so that it can be
checked.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pgembed_django.providers import recognition

POISON = "poison"
REFUSAL = "one of these cannot be embedded"
WIDTH = 16
WORKER_HEADER = "X-Soak-Worker"
TIMEOUT_SECONDS = 2.0
"""How long the workers wait for an answer."""

USUAL_SECONDS = (0.01, 0.15)
"""How long an answer takes: drawn from this range, and slow enough for a backlog to form."""

TROUBLES = ("slow", "too slow", "429", "500", "503", "reset", "reset late")
"""What can go wrong with a single request. The mode ``mixed`` draws one or none for each."""

MODES = (*TROUBLES, "mixed", "down")


class Delivery(NamedTuple):
    """A text whose vector was sent to a worker in time."""

    at: float
    worker: str
    text: str


class Unanswered(NamedTuple):
    """When a worker wanted to know which model it has, and was not told. Empty: all workers."""

    at: float
    worker: str


class State:
    """The state that the handlers share."""

    def __init__(self, seed: int) -> None:
        self.mode = "well"
        self.deliveries: list[Delivery] = []
        self.unanswered: list[Unanswered] = []
        self.clients: set[socket.socket] = set()
        self.random = random.Random(seed)
        self.lock = threading.Lock()

    def trouble(self) -> str:
        """Draw what goes wrong with a request."""
        with self.lock:
            if self.mode == "mixed":
                return self.random.choice((*TROUBLES, "well", "well", "well"))
            return self.mode


def serve(control: Connection, port: int, seed: int) -> None:
    """Serve until the pipe is closed. This is all that the process does."""
    state = State(seed)
    httpd = _start(port, state)
    control.send(httpd.server_port)
    port = httpd.server_port
    while True:
        try:
            command = control.recv()
        except EOFError:
            return
        if command == "deliveries":
            control.send((list(state.deliveries), list(state.unanswered)))
            continue
        if state.mode == "down" != command:
            httpd = _start(port, state)
        elif command == "down" != state.mode:
            state.unanswered.append(Unanswered(time.monotonic(), ""))
            httpd.shutdown()
            httpd.server_close()
        state.mode = command
        if command == "down":
            for client in list(state.clients):
                _reset(client)


def vector_of(text: str) -> list[float]:
    """Return the vector of a text: small whole numbers that differ from every other text's."""
    numbers = random.Random(zlib.crc32(text.encode()))
    return [float(numbers.randint(1, 9)) for _ in range(WIDTH)]


def _start(port: int, state: State) -> ThreadingHTTPServer:
    httpd = _Quiet(("127.0.0.1", port), type("Handler", (_Handler,), {"state": state}))
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    return httpd


def _reset(client: socket.socket) -> None:
    """Close so that the other side sees "connection reset", even in the middle of an answer."""
    try:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        """The client has already disconnected."""


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: clients that disconnect are part of the soak."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State

    def setup(self) -> None:
        super().setup()
        self.state.clients.add(self.connection)

    def finish(self) -> None:
        self.state.clients.discard(self.connection)
        super().finish()

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path == "/api/version":
            self._give(200, {"version": "0.33.0"})
        else:
            self._give(200, {"models": [{"name": "soak:latest", "digest": "one"}]})

    def do_POST(self) -> None:
        started = time.monotonic()
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        # A worker sends them one by one while its requests must be small.
        if not self._answer(texts, started) and set(texts) <= set(recognition.TEXTS):
            worker = self.headers.get(WORKER_HEADER, "")
            self.state.unanswered.append(Unanswered(time.monotonic(), worker))

    def _answer(self, texts: list[str], started: float) -> bool:
        """Answer, or do what goes wrong. Returns whether there were vectors."""
        trouble = self.state.trouble()
        if trouble == "too slow":
            time.sleep(TIMEOUT_SECONDS + 0.5)
        else:
            times = 4 if trouble == "slow" else 1
            time.sleep(times * self.state.random.uniform(*USUAL_SECONDS))
        if trouble == "429":
            self._give(429, {"error": "too many requests"}, **{"Retry-After": "1"})
        elif trouble in ("500", "503"):
            self._give(int(trouble), {"error": "something went wrong"})
        elif trouble == "reset":
            self._hang_up()
        elif any(POISON in text for text in texts):
            # Refuse in two ways: plainly, or with Ollama's 500 for a vector with NaN.
            is_plain = zlib.crc32("".join(texts).encode()) % 2
            nan = f"failed to encode response: json: unsupported value: NaN: {REFUSAL}"
            self._give(400 if is_plain else 500, {"error": REFUSAL if is_plain else nan})
        else:
            return self._embed(texts, started, is_cut=trouble == "reset late")
        return False

    def _embed(self, texts: list[str], started: float, *, is_cut: bool) -> bool:
        answer = {"model": "soak", "embeddings": [vector_of(text) for text in texts]}
        if is_cut:
            self._give(200, answer, is_cut=True)
        elif self.state.mode != "down" and time.monotonic() - started < TIMEOUT_SECONDS - 0.2:
            self._give(200, answer)
            now = time.monotonic()
            worker = self.headers.get(WORKER_HEADER, "")
            self.state.deliveries.extend(Delivery(now, worker, text) for text in texts)
            return True
        else:
            self._hang_up()
        return False

    def _give(self, status: int, value: Any, *, is_cut: bool = False, **headers: str) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, content in headers.items():
            self.send_header(name, content)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        _reset(self.connection)
