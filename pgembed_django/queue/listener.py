"""Learn of new jobs while idle. Jobs are in the table, so a lost notification only costs time.

Before it sleeps, a worker goes on watch: it takes an exclusive advisory lock for each spec. A
trigger tries to take the same lock in shared mode. If that fails, a worker is on watch, and the
trigger sends a notification. If it succeeds, no worker sleeps, and the trigger sends none, because
committing one locks the whole cluster. It then holds the lock until its transaction ends, so
that no worker can go on watch before that transaction's jobs are visible.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from pgembed_django import events
from pgembed_django.queue import jobs

CONNECT_SECONDS = 10
ECHO_SECONDS = 2.0

SILENT_SECONDS = 5.0
"""How long to wait for an answer before closing the connection: it may be half open."""

# A role may have a time-out for forgotten sessions, but a worker's sessions are waiting for work.
MAY_BE_IDLE = "SET idle_session_timeout = 0"

KEYS = """
    SELECT hashtextextended(spec, 'pgembed_job'::regclass::oid::bigint)
    FROM unnest(%(specs)s::text[]) AS known(spec)
"""

# An open writer's transaction holds this lock in shared mode, a worker on watch exclusively.
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
    """A direct connection to the server in autocommit mode, for session locks and LISTEN."""

    def __init__(self, specs: Sequence[str], *, using: str) -> None:
        self._specs = list(specs)
        self._using = using
        self._connection: psycopg.Connection | None = None
        self._keys: list[int] = []
        self._watched: list[int] = []
        self.was_lost = False
        """Whether the connection was lost since it was last opened."""

    @property
    def is_up(self) -> bool:
        """Whether notifications can arrive."""
        return self._connection is not None and not self._connection.closed

    @property
    def is_standby(self) -> bool:
        """Whether this worker is not on watch for some specs, because another one is."""
        return len(self._watched) < len(self._keys)

    def open(self) -> bool:
        """Connect and LISTEN. Return whether that worked."""
        self.close()
        self.was_lost = False
        parameters = connections[self._using].get_connection_params()
        parameters.pop("cursor_factory", None)
        # The loop waits for it: psycopg's own is 130 s, for each host that does not answer.
        parameters.setdefault("connect_timeout", CONNECT_SECONDS)
        try:
            self._connection = _Connection.connect(**parameters, autocommit=True)
            if role := connections[self._using].settings_dict["OPTIONS"].get("assume_role"):
                # The role may have another search_path, and be the only one to see our tables.
                self._connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            self._connection.execute(MAY_BE_IDLE)
            self._connection.execute(f"LISTEN {jobs.CHANNEL}")
            # A pooler in transaction mode accepts a LISTEN, and then forgets it. To find out, send
            # a notification over the other connection: one sent over this one always comes back.
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
        """Go on watch. Return whether it is safe to sleep after one last look for jobs.

        It is not safe while a transaction is open that will not notify, because no worker was
        on watch when it wrote. It is safe if another worker is on watch.
        """
        open_writers: list[tuple[Any, ...]] = []
        with self._closing_when_lost():
            missing = [key for key in self._keys if key not in self._watched]
            result = self._run(WATCH, keys=missing)
            self._watched += [key for key, is_ours in result if is_ours]
            taken = [key for key, is_ours in result if not is_ours]
            open_writers = self._run(HAS_WRITERS, keys=taken)
        return self.is_up and not any(has for [has] in open_writers)

    def unwatch(self) -> None:
        """End the watch: triggers no longer need to notify."""
        if self._watched:
            with self._closing_when_lost():
                self._run(UNWATCH, keys=self._watched)
        self._watched = []

    def recruit(self) -> None:
        """Wake sleeping workers: there are more jobs than this one can claim."""
        with self._closing_when_lost():
            self._run(jobs.NUDGE, channel=jobs.CHANNEL)

    def hear(self) -> bool:
        """Take the notifications that have arrived. Return whether there were any."""
        if self._connection is None:
            return False
        heard: list[psycopg.Notify] = []
        with self._closing_when_lost():
            heard = list(self._connection.notifies(timeout=0))
        return bool(heard) or not self.is_up  # a lost connection counts as a nudge

    def probe(self) -> None:
        """Close the connection if it is half open."""
        with self._closing_when_lost():
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

    @contextmanager
    def _closing_when_lost(self) -> Iterator[None]:
        """Close a lost connection instead of raising: the worker's timer opens it again."""
        try:
            yield
        except psycopg.Error as error:
            events.tell(events.LISTENER_LOST, error=str(error))
            self.close()
            self.was_lost = True


class _Connection(psycopg.Connection[Any]):
    """A connection that gives up on a silent server, because the loop's thread must not hang."""

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
