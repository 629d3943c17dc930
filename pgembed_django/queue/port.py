"""A worker's HTTP port: whether it is ready, and a server of pages for probes and metrics.

It is for use inside a cluster: plain HTTP, no password, and nothing that changes anything. No
request to it can stop the worker.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

from pgembed_django import events

if TYPE_CHECKING:
    from pgembed_django.queue.worker import Worker


class Readiness:
    """Knows whether a worker is ready. Other threads ask it, over connections of their own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._is_migrated = False
        self._looking = threading.Lock()

    def missing(self) -> list[str]:
        """Return the reasons why the worker is not ready. Empty: it is."""
        return list(self._missing())

    def _missing(self) -> Iterator[str]:
        worker = self._worker
        if not worker.is_running:
            yield "stopping" if worker.is_asked_to_stop else "starting"
            return
        if worker.liveness.stuck():
            yield "stuck"
        if worker.is_cut_off:
            yield "the database is away"
            return
        listens = worker.settings.notify and not worker.drain
        if listens and not worker.listener.is_up:
            yield "not listening for notifications"
        if not self._is_migrated:
            # A frozen server never answers: only one request waits for it, not every thread.
            if not self._looking.acquire(blocking=False):
                yield "still looking at migrations"
                return
            try:
                unapplied = self._unapplied()
                self._is_migrated = not unapplied
                if unapplied:
                    yield f"migrations are not applied: {', '.join(unapplied)}"
            except DatabaseError as error:
                yield f"cannot look at migrations: {type(error).__name__}"
            finally:
                self._looking.release()

    def _unapplied(self) -> list[str]:
        labels = {"pgembed"}
        for handler in self._worker.handlers:
            labels.update(handler.app_labels)
        connection = connections[self._worker.using]
        try:
            executor = MigrationExecutor(connection)
            leaves = [key for key in executor.loader.graph.leaf_nodes() if key[0] in labels]
            return [str(migration) for migration, _ in executor.migration_plan(leaves)]
        finally:
            connection.close()


PATIENCE_SECONDS = 10.0
"""How long a client may take over its request."""

ACCEPT_SECONDS = 0.2
"""How long to wait after no client could be accepted. It would fail again at once."""


class Answer(NamedTuple):
    """An HTTP response."""

    body: str | bytes
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Page = Callable[[str], Answer]
"""Called with the request's Accept header, in a thread of its own."""


class Server(ThreadingHTTPServer):
    """Serves pages by their path, within ``with``. It binds the port when it is created.

    Raises:
        OSError: the address is in use, or does not belong to this machine.
    """

    # Do not wait for a client that reads slowly when the worker ends.
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        [(self.address_family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.pages = pages
        super().__init__(cast(Any, address), _Handler)

    def __enter__(self) -> Server:
        threading.Thread(
            target=self.serve_forever, args=(0.1,), name="pgembed-http", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client. Without a free file descriptor, wait: the client stays in the queue."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_SECONDS)
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what a request raised. Called by socketserver."""
        error = sys.exception()
        events.tell(events.PAGE_FAILED, error=f"{type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        """Answer with the page of this path."""
        page = self.server.pages.get(urlsplit(self.path).path.rstrip("/") or "/")
        if page is None:
            paths = " ".join(self.server.pages)
            self._send(Answer(f"There are: {paths}\n", HTTPStatus.NOT_FOUND))
        else:
            self._send(page(self.headers.get("Accept", "")))

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return a name without the version of the interpreter."""
        return "pgembed"

    def log_message(self, *_: object) -> None:
        """Log nothing: there is a probe every few seconds."""
