"""The process that reads, and the server's process that sends to it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Self

import psycopg

from benchmarks import usage
from benchmarks.compare import Figures

SENDER = """
    SELECT active_pid
    FROM pg_replication_slots
    WHERE database = current_database()
      AND active
"""
LOOK_SECONDS = 0.02


class Reader:
    """``python -m benchmarks.capture`` on a database. A context manager."""

    def __init__(self, url: str, capture: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.capture", capture],
            env={**os.environ, "DATABASE_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._heard()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def told(self, what: str) -> str:
        """Tell the process what to do, and return what it prints in the end."""
        assert self.process.stdin
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self._heard()

    def _heard(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the reader has died"
        return line


class Sender:
    """Watches the server's process, as long as there is one. A context manager.

    It looks now and then, so it misses the last moments. That process has to be on this machine.
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.figures: Figures = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            pid = sender(self._connection)
            try:
                while pid and not self._is_over.wait(LOOK_SECONDS):
                    self.figures = {
                        "sender CPU, s": usage.cpu_seconds(pid),
                        "sender MB": usage.peak_bytes(pid) / 2**20,
                    }
            except (FileNotFoundError, ProcessLookupError):
                """It has ended."""


def sender(connection: psycopg.Connection) -> int | None:
    """Return the process id of the server's process that sends from a database's slot."""
    [pid] = connection.execute(SENDER).fetchone() or [None]
    return pid


def await_sender(connection: psycopg.Connection) -> int:
    """Wait until the reader reads."""
    while not (pid := sender(connection)):
        time.sleep(LOOK_SECONDS)
    return pid
