"""What all played servers share: a real socket, and faults that come before the answer."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from tests.played.replies import HANG_UP, NO_ROUTE, Reply, Seen, texts_of, vector_of


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
        self.weights = ""
        self.open: set[socket.socket] = set()
        self.url = ""

    def exchange(self, weights: str, *, behind_proxy: bool = False) -> None:
        """Serve other weights from now on, as after a restart: all connections are closed."""
        self.weights = weights
        while self.open and not behind_proxy:
            with suppress(OSError):
                self.open.pop().shutdown(socket.SHUT_RDWR)

    def vector_of(self, text: str) -> np.ndarray:
        """The vector of length one that its weights have for a text."""
        return vector_of(self.weights + text, self.width)

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    played: Server

    def setup(self) -> None:
        super().setup()
        self.played.open.add(self.connection)

    def finish(self) -> None:
        self.played.open.discard(self.connection)
        super().finish()

    def log_message(self, *args: object) -> None:
        """Be quiet."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # cut off between head and body, which is no request
            self.close_connection = True
            return
        payload = json.loads(body) if body else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, self.path, headers, payload, self.client_address)
        self.played.seen.append(seen)
        answer = self.played.answer(seen)
        # A server that is exchanged answers nothing over its former connections.
        self.give(answer if self.connection in self.played.open else HANG_UP)

    do_GET = do_POST  # noqa: N815

    def give(self, answer: Reply) -> None:
        self.close_connection = answer.how != "whole"
        if answer.how == "hang up":
            return
        if answer.how == "silent":
            self.played.over.wait(30)
            return
        # Without a Date of its own.
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        body, chunked = answer.body, len(answer.body) > 2048 and answer.how != "drip"
        if chunked:
            # As Go's net/http does, and so Ollama.
            self.send_header("Transfer-Encoding", "chunked")
            pieces = [body[start : start + 1500] for start in range(0, len(body), 1500)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if answer.how == "drip":
            while not self.played.over.wait(0.02):
                try:
                    self.wfile.write(body[:1])
                except OSError:
                    return
        self.wfile.write(body[: len(body) // 2] if answer.how == "cut" else body)


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


@contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """Yield an address that accepts no connection: its queue is full."""
    with socket.socket() as full, ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # more than its queue takes
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield full.getsockname()
