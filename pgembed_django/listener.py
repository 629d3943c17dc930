"""Hear of new jobs while idle. The table is the truth: a lost nudge costs time, never work.

Before it sleeps, a worker goes on watch: it takes an advisory lock, one per spec,
exclusively. A trigger tries the same lock, shared. Where that fails, somebody is on watch,
and the trigger notifies. Where it succeeds, nobody sleeps, the trigger spares the
notification (whose commit takes a lock on the whole cluster), and holds the lock until its
transaction ends: so no worker can go on watch before it has seen that transaction's jobs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from pgembed_django import events, jobs

ECHO_SECONDS = 2.0

SILENT_SECONDS = 5.0
"""After so long without an answer the connection is given up: it may be half open."""

# A role's own is for sessions that somebody has forgotten. A worker's wait for work.
MAY_BE_IDLE = "SET idle_session_timeout = 0"

KEYS = """
    SELECT hashtextextended(spec, 'pgembed_job'::regclass::oid::bigint)
    FROM unnest(%(specs)s::text[]) AS known(spec)
"""

# Shared with a writer whose transaction is open, exclusive with a worker on watch.
WATCH = """
    SELECT key, pg_try_advisory_lock(key)
    FROM unnest(%(keys)s::bigint[]) AS wanted(key)
"""
HAS_WRITERS = """
    SELECT pg_try_advisory_lock_shared(key) AND pg_advisory_unlock_shared(key)
    FROM unnest(%(keys)s::bigint[]) AS wanted(key)
"""
UNWATCH = """
    SELECT pg_advisory_unlock(key)
    FROM unnest(%(keys)s::bigint[]) AS held(key)
"""


class Listener:
    """An autocommit connection of its own, direct to the server: session locks and LISTEN."""

    def __init__(self, specs: Sequence[str], *, using: str) -> None:
        self._specs = list(specs)
        self._using = using
        self._connection: psycopg.Connection | None = None
        self._keys: list[int] = []
        self._watched: list[int] = []
        self.was_lost = False
        """Whether the connection has gone since it was opened last."""

    @property
    def is_up(self) -> bool:
        """Whether notifications can be heard."""
        return self._connection is not None and not self._connection.closed

    @property
    def is_standby(self) -> bool:
        """Whether another worker is on watch for some of the specs."""
        return len(self._watched) < len(self._keys)

    def open(self) -> bool:
        """Connect and LISTEN, and tell whether that worked."""
        self.close()
        self.was_lost = False
        parameters = connections[self._using].get_connection_params()
        parameters.pop("cursor_factory", None)
        try:
            self._connection = _Connection.connect(**parameters, autocommit=True)
            if role := connections[self._using].settings_dict["OPTIONS"].get("assume_role"):
                # Its search_path may lead elsewhere, and our tables may be for that role only.
                self._connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            self._connection.execute(MAY_BE_IDLE)
            self._connection.execute(f"LISTEN {jobs.CHANNEL}")
            # A pooler in transaction mode takes a LISTEN and forgets it. It would hand us
            # what we send ourselves, so the other connection has to.
            list(self._connection.notifies(timeout=0))
            jobs.nudge(using=self._using)
            if not list(self._connection.notifies(timeout=ECHO_SECONDS, stop_after=1)):
                events.tell(events.LISTENER_DEAF)
                self.close()
                return False
            self._keys = [key for [key] in self._run(KEYS, specs=self._specs)]
        except psycopg.Error as error:
            events.tell(events.LISTENER_FAILED, error=str(error))
            self.close()
            return False
        events.tell(events.LISTENER_UP)
        return True

    def watch(self) -> bool:
        """Go on watch, and tell whether it is safe to sleep after one last look for jobs.

        It is not while a writer's transaction is open that has not notified: it saw a worker
        awake. It is where another worker is on watch already.
        """
        with self._lost_connection_closes():
            missing = [key for key in self._keys if key not in self._watched]
            result = self._run(WATCH, keys=missing)
            self._watched += [key for key, is_ours in result if is_ours]
            taken = [key for key, is_ours in result if not is_ours]
            return not any(has for [has] in self._run(HAS_WRITERS, keys=taken))
        return False

    def unwatch(self) -> None:
        """Tell the triggers that somebody is awake."""
        if self._watched:
            with self._lost_connection_closes():
                self._run(UNWATCH, keys=self._watched)
        self._watched = []

    def recruit(self) -> None:
        """Wake the workers that sleep: there is more to do than this one can claim."""
        with self._lost_connection_closes():
            self._run(jobs.NUDGE, channel=jobs.CHANNEL)

    def drain(self) -> bool:
        """Take the notifications that have arrived, and tell whether there were any."""
        if self._connection is None:
            return False
        with self._lost_connection_closes():
            return bool(list(self._connection.notifies(timeout=0)))
        return True  # a lost connection counts as a nudge

    def probe(self) -> None:
        """Find out whether the connection is half open."""
        with self._lost_connection_closes():
            self._run("SELECT 1")

    def fileno(self) -> int:
        """Return the socket to wait on."""
        if self._connection is None:
            raise ValueError("The listener is not connected.")
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection, which also ends the watch."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._watched = []

    def _run(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        if self._connection is None:
            return []
        cursor = self._connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def _lost_connection_closes(self) -> _ClosingOnLoss:
        return _ClosingOnLoss(self)


class _Connection(psycopg.Connection[Any]):
    """Gives up on a silent server, because the loop's own thread must not hang."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_impatient(gen), *args, **kwargs)


def _impatient(gen: Any) -> Any:
    """Run a statement's generator, but fail after ``SILENT_SECONDS`` without an answer."""
    end = time.monotonic() + SILENT_SECONDS
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end:
                raise psycopg.OperationalError(f"no answer within {SILENT_SECONDS:.0f} s")
            wanted = gen.send(ready)
    except StopIteration as stop:
        return stop.value


class _ClosingOnLoss:
    """A lost connection is not an error here: it is opened again on the worker's timer."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> bool:
        if kind is None or not issubclass(kind, psycopg.Error):
            return False
        events.tell(events.LISTENER_LOST, error=str(error))
        self._listener.close()
        self._listener.was_lost = True
        return True
