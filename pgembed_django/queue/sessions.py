"""A worker's database sessions: set up as the queue requires, and cut or canceled when they hang.

A proxy with a broken route (after a failover, for instance) may keep a connection and
acknowledge what is sent, but pass nothing on. TCP finds nothing wrong, and the loop would wait
forever. So a new connection asks the server what those sessions do.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from pgembed_django import database, events
from pgembed_django.queue.listener import MAY_BE_IDLE

# A worker that freezes in the middle of a transaction would block writers until it wakes.
FROZEN_AFTER = "10s"
PREPARE_AFTER = 3
"""How often a worker sends a statement before psycopg prepares it."""

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


def configure_sessions(using: str, *, is_direct: bool = False) -> None:
    """Set a worker's connections up as the queue requires, now and after each reconnect.

    ``is_direct``: no pooler in transaction mode is in between, so that prepared statements and
    settings last as long as the connection.
    """

    def configure(connection: BaseDatabaseWrapper, **_: object) -> None:
        if connection.alias != using:
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


def drop_halfway_session(using: str) -> None:
    """Close a connection that was interrupted in the middle of a statement or transaction."""
    if database.is_halfway(using):
        connections[using].close()


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


CONNECT_SECONDS = 10

# As numbers, so that they compare equal: Django reads times in another time zone than a session
# that it has not set up.
IDENTIFY = """
    SELECT pid, extract(epoch FROM backend_start)
    FROM pg_stat_activity
    WHERE pid = pg_backend_pid()
"""

BUSY = """
    SELECT pid, extract(epoch FROM backend_start)
    FROM pg_stat_activity
    WHERE pid = ANY(%(pids)s)
      AND (
            -- A session is active, too, while it waits for the rest of a pipeline.
            state NOT LIKE 'idle%%' AND wait_event IS DISTINCT FROM 'ClientRead'
            -- If only just, the answer may be on its way.
         OR state_change > clock_timestamp() - %(seconds)s * interval '1 second'
            -- All that is shown of another role's session.
         OR state IS NULL
      )
"""

# Only table locks: waits for row locks are short, and an index build waits for transactions.
# A commit that waits for a standby is already done here, and canceling does not undo it.
WAITING = """
    SELECT pid, extract(epoch FROM backend_start)
    FROM pg_stat_activity
    WHERE pid = ANY(%(pids)s)
      AND (
            EXISTS (
                SELECT
                FROM pg_locks
                WHERE pg_locks.pid = pg_stat_activity.pid
                  AND NOT granted
                  AND locktype = 'relation'
                  AND waitstart < clock_timestamp() - %(seconds)s * interval '1 second'
            )
         OR (
                wait_event = 'SyncRep'
            AND query_start < clock_timestamp() - %(seconds)s * interval '1 second'
            )
      )
"""
CANCEL = "SELECT pg_cancel_backend(pid) FROM unnest(%(pids)s::int[]) AS waiting(pid)"

Backend = tuple[int, Any]
"""Its pid, and when it started, as pids are reused."""


class Session(NamedTuple):
    """The backend of a connection, and the thread that uses it."""

    backend: Backend
    thread: int


class Sessions:
    """The sessions of one alias in this process. Any thread may cut or cancel them."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self._sessions: WeakKeyDictionary[psycopg.Connection[Any], Session] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Register this thread's connection and all that are opened from now on."""
        connection_created.connect(self._learn, dispatch_uid=self._uid)
        if connections[self.using].connection is not None:
            self._learn(connections[self.using])

    def end(self) -> None:
        """No longer register new connections."""
        connection_created.disconnect(dispatch_uid=self._uid)

    def cut_silent(self, thread: int, *, seconds: float) -> int:
        """Cut all connections whose session is idle or gone, if the one of the given thread is.

        ``seconds``: how long a session must have been idle. Returns how many were cut. None are
        cut if the server cannot be asked: that is an outage, to be waited out.
        """
        with self._lock:
            known = dict(self._sessions)
        backends = [session.backend for session in known.values()]
        try:
            busy = self._busy([pid for pid, _ in backends], seconds=seconds)
        except psycopg.Error:
            return 0
        silent = {one: session for one, session in known.items() if session.backend not in busy}
        if not any(session.thread == thread for session in silent.values()):
            return 0
        for one in silent:
            _cut(one)
        events.tell(events.CONNECTIONS_CUT, count=len(silent), seconds=seconds)
        return len(silent)

    def cancel_waiting(self, *, seconds: float) -> int:
        """Cancel statements that have waited this long for a table lock or a standby.

        Returns how many were canceled.
        """
        with self._lock:
            backends = {session.backend for session in self._sessions.values()}
        pids = [pid for pid, _ in backends]
        try:
            with self._connect() as asking:
                found = asking.execute(WAITING, {"pids": pids, "seconds": seconds}).fetchall()
                waiting = [pid for pid, _ in backends.intersection(found)]
                asking.execute(CANCEL, {"pids": waiting})
        except psycopg.Error:
            return 0
        return len(waiting)

    @property
    def _uid(self) -> str:
        return f"pgembed-sessions-{self.using}"

    def _learn(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        if connection.alias != self.using:
            return
        raw = connection.connection
        with connection.cursor() as cursor:
            cursor.execute(IDENTIFY)
            backend = cursor.fetchone()
        # Behind a pooler the backend may be another one each time: such a session is not kept.
        if backend and backend[0] == raw.info.backend_pid:
            with self._lock:
                self._sessions[raw] = Session(backend, threading.get_ident())

    def _busy(self, pids: list[int], *, seconds: float) -> set[Backend]:
        with self._connect() as asking:
            return set(asking.execute(BUSY, {"pids": pids, "seconds": seconds}).fetchall())

    def _connect(self) -> psycopg.Connection[Any]:
        parameters = connections[self.using].get_connection_params()
        parameters.pop("cursor_factory", None)
        parameters["connect_timeout"] = CONNECT_SECONDS
        return psycopg.connect(**parameters, autocommit=True)


def _cut(connection: psycopg.Connection[Any]) -> None:
    """Shut the socket down, so that a thread that waits on it gets an error."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)
