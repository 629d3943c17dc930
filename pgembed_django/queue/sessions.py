"""A worker's database sessions, set up as the queue requires.

No wait of theirs is endless: not for a lock, and not for a server that has vanished.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import psycopg
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from pgembed_django.core.threads import OurThread
from pgembed_django.queue.listener import MAY_BE_IDLE

# A worker that freezes in the middle of a transaction would block writers until it wakes.
FROZEN_AFTER = "10s"
PREPARE_AFTER = 3
"""How often a worker sends a statement before psycopg prepares it."""

LOCK_SECONDS = 3.0
"""How long to wait for a table's lock before the loop goes round again: it may have to stop."""

# A shorter one of the role stays. A pooler tells its clients a process id of its own: it would hand
# the setting on to others.
LOCK_TIMEOUT = """
    SELECT set_config(name, %(milliseconds)s::int::text, false)
    FROM pg_settings
    WHERE name = 'lock_timeout'
      AND setting::int NOT BETWEEN 1 AND %(milliseconds)s
      AND pg_backend_pid() = %(pid)s
"""

CUT_OFF_WHERE_FROZEN = "SELECT set_config('idle_in_transaction_session_timeout', %(after)s, false)"

# However a role or database is set up, values must be read as they were written, and a text made
# of a row must be the same in each worker. Django sets the encoding and the time zone.
PLAIN_VALUES = """
    SELECT
        set_config('DateStyle', 'ISO, MDY', false),
        set_config('IntervalStyle', 'postgres', false),
        set_config('bytea_output', 'hex', false),
        set_config('array_nulls', 'on', false),
        set_config('extra_float_digits', '1', false),
        set_config('standard_conforming_strings', 'on', false),
        set_config('quote_all_identifiers', 'off', false)
"""

# Notice within a minute that a server has vanished silently (a failover, a firewall): by default a
# worker would wait for hours. Seconds, but for the count and the milliseconds of USER_TIMEOUT.
SILENCE = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 50_000,
}


class Connecting:
    """Converts the error of a connection that could not be opened for want of files.

    While it connects, psycopg waits with a selector, which takes a file besides the socket's. If
    this process may open no more, that raises an ``OSError``, and not an error of the database.
    """

    # No generator: its frame and the error would keep each other, and with them the socket.

    def __init__(self, using: str) -> None:
        self._using = using

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and connections[self._using].connection is None:
            raise OperationalError(str(error)) from psycopg.OperationalError(str(error))


def configure_sessions(using: str, *, is_direct: bool = False) -> None:
    """Set a worker's connections up as the queue requires, now and after each reconnect.

    Those are the connections of the calling thread, and of ``OurThread``. What tasks run in other
    threads has sessions as a web request has them.

    ``is_direct``: no pooler in transaction mode is in between, so that prepared statements and
    settings last as long as the connection.
    """

    loop = threading.current_thread()

    def configure(connection: BaseDatabaseWrapper, **_: object) -> None:
        thread = threading.current_thread()
        is_ours = thread is loop or isinstance(thread, OurThread)
        if connection.alias != using or not is_ours:
            return
        options = connection.settings_dict.get("OPTIONS", {})
        connection.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if not any(option.startswith(("keepalive", "tcp_user")) for option in options):
            notice_silence(connection.connection.fileno())
        if is_direct:
            connection.connection.prepare_threshold = PREPARE_AFTER
        with connection.cursor() as cursor:
            if is_direct:
                # The table may have grown a thousandfold since a kept plan was made.
                cursor.execute("SET plan_cache_mode = force_custom_plan")
            pid = connection.connection.info.backend_pid
            cursor.execute(LOCK_TIMEOUT, {"milliseconds": int(LOCK_SECONDS * 1000), "pid": pid})
            cursor.execute(PLAIN_VALUES)
            cursor.execute("SET default_transaction_isolation = 'read committed'")
            # Where row security hides rows, raise an error: hidden rows must not look deleted.
            cursor.execute("SET row_security = off")
            cursor.execute(CUT_OFF_WHERE_FROZEN, {"after": FROZEN_AFTER})
            cursor.execute(MAY_BE_IDLE)

    leave_sessions(using)
    connection_created.connect(configure, weak=False, dispatch_uid=f"pgembed-{using}")
    wrapper = connections[using]
    if wrapper.connection is not None:
        configure(wrapper)


def leave_pool(using: str) -> None:
    """Open this process's connections without Django's connection pool from now on.

    A worker's threads keep their connections. They would use up a pool of four, the default,
    and probes and metrics would wait half a minute for one.
    """
    wrapper: Any = connections[using]
    options = wrapper.settings_dict.get("OPTIONS", {})
    if "pool" in options:
        wrapper.close()
        wrapper.close_pool()
        kept = {name: value for name, value in options.items() if name != "pool"}
        # For all threads: Django gives each the same dictionary.
        wrapper.settings_dict["OPTIONS"] = kept


def leave_sessions(using: str) -> None:
    """No longer set up new connections: the worker has ended."""
    connection_created.disconnect(dispatch_uid=f"pgembed-{using}")


def end_sessions(using: str) -> None:
    """Close the connections, so that the caller of the worker does not get their settings."""
    leave_sessions(using)
    wrapper: Any = connections[using]
    wrapper.close()
    # The worker's threads gave theirs back to the pool with the settings still on.
    wrapper.close_pool()


def notice_silence(file: int) -> None:
    """Set keep-alives and time-outs, so that waiting on TCP ends when the other side is gone."""
    wire = socket.socket(fileno=file)
    try:
        if wire.family == socket.AF_UNIX:
            return
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in SILENCE.items():
            option = getattr(socket, name, None)  # not every system has all of them
            if option is not None:
                wire.setsockopt(socket.IPPROTO_TCP, option, value)
    finally:
        wire.detach()  # libpq closes it
