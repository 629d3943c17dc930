"""A server that is well but slow: it answers in full, a few bytes at a time."""

from __future__ import annotations

import http.client
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.played import Clock

BIT_SECONDS = 40.0
CERTIFICATE = Path(__file__).with_name("localhost.pem")


@dataclass
class Drip:
    """Reads a request, then sends ``head``, ``bit`` so many ``times`` and ``tail``.

    Each bit takes ``BIT_SECONDS`` by the ``clock``, and in truth a moment. A connection is
    ``kept`` for more requests. Without ``reads`` it sends before any request.
    """

    head: bytes = b""
    bit: bytes = b""
    tail: bytes = b""
    times: int = 90
    reads: bool = True
    kept: bool = False
    has_tls: bool = False
    requests: int = 0
    answers: int = 0
    address: str = ""
    over: threading.Event = field(default_factory=threading.Event)
    clock: Clock = field(default_factory=Clock)

    def talk(self, wire: Any) -> None:
        request = wire.makefile("rb")
        while not self.reads or request.readline():
            if self.reads:
                headers = http.client.parse_headers(request)
                request.read(int(headers.get("Content-Length", 0)))
            self.requests += 1
            wire.sendall(self.head)
            for _ in range(self.times):
                if self.over.wait(0.01):
                    return
                self.clock.now += BIT_SECONDS
                wire.sendall(self.bit)
            wire.sendall(self.tail)
            self.answers += 1
            if not self.kept:
                return


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the play."""


@contextmanager
def dripping(drip: Drip) -> Iterator[Drip]:
    """Let the server be reached at ``drip.address`` while the block runs."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            wire = self.request
            if drip.has_tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(CERTIFICATE)
                wire = context.wrap_socket(wire, server_side=True)
            with wire:
                drip.talk(wire)

    with _Server(("127.0.0.1", 0), Handler) as server:
        drip.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield drip
        finally:
            drip.over.set()
            server.shutdown()
            thread.join()
