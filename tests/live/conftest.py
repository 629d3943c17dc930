"""Played servers that worker processes talk to, and what to wait for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.conftest import wait_until
from tests.live.project import Project, made_in
from tests.played import Ollama, Reply, Seen, serving

OLLAMA = "pgembed_django.providers.ollama.OllamaProvider"

# A script's background job ignores Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Gated(Ollama):
    """Answers embedding requests when ``gate`` is set, and with ``fault`` while there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Reply | None = None
        self.times: list[float] = []
        """When each embedding request came."""

    def answer(self, seen: Seen) -> Reply:
        if seen.path in self.routes:
            self.times.append(time.monotonic())
            self.gate.wait(60)
            if self.fault:
                return self.fault
        return super().answer(seen)


@pytest.fixture
def serve() -> Iterator[Callable[[], Gated]]:
    with ExitStack() as stack:

        def start() -> Gated:
            server = stack.enter_context(serving(Gated()))
            stack.callback(server.gate.set)
            return server

        yield start


@pytest.fixture
def server(serve: Callable[[], Gated]) -> Gated:
    return serve()


def providers(server: Gated, **options: Any) -> dict[str, Any]:
    """Return PGEMBED_PROVIDERS with the server as the default one."""
    return {
        "default": {
            "BACKEND": OLLAMA,
            "MODEL": server.model,
            "DIMENSIONS": server.width,
            "OPTIONS": {"base_url": server.url, **options},
        }
    }


def is_asleep() -> bool:
    """Whether a worker is on watch."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' "
            "AND granted AND database = (SELECT oid FROM pg_database "
            "WHERE datname = current_database())"
        )
        return cursor.fetchone()[0] > 0


def wait_for_log(worker: Any, text: str, *, times: int = 1) -> str:
    """Return what a worker has written, once a text is in it."""
    wait_until(lambda: worker.log.read_text().count(text) >= times)
    return worker.log.read_text()


@pytest.fixture
def project(tmp_path: Path, django_db_setup: None) -> Iterator[Project]:
    with made_in(tmp_path) as project:
        yield project
