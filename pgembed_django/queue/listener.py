"""Wait for new jobs while idle. Jobs are in the table, so a lost notification only costs time.

At first the loop polls, then it goes on watch until a notification comes.

Before it sleeps, a worker goes on watch: it takes an exclusive advisory lock for each spec. A
trigger tries to take the same lock in shared mode. If that fails, a worker is on watch, and the
trigger sends a notification. If it succeeds, no worker sleeps, and the trigger sends none, because
committing one locks the whole cluster. It then holds the lock until its transaction ends, so
that no worker can go on watch before that transaction's jobs are visible.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from pgembed_django import conf, events
from pgembed_django.queue import jobs

CONNECT_SECONDS = 10
RECRUIT_SECONDS = 5.0
ECHO_SECONDS = 2.0

SILENT_SECONDS = 5.0
"""How long to wait for an answer before closing the connection: it may be half open."""

FIRST_LOOK_SECONDS = 0.001
LAST_LOOK_SECONDS = 0.008
"""The intervals at which an awake worker polls, ever more slowly, before it goes on watch."""

BUSY_LOOK_SECONDS = 0.05
MAX_BUSY_LOOK_SECONDS = 0.8
"""The intervals while writers' transactions are open, or due jobs are locked."""

STANDBY_SECONDS = 0.5
"""How soon a standby checks whether the worker on watch still is."""

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
        self._recruited_at = float("-inf")
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
        except (psycopg.Error, OSError) as error:  # see sessions.Connecting
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
        """Wake sleeping workers, now and then: there are more jobs than this one can claim.

        The reconciler and the reaper do not notify, and writers do not while a worker is awake.
        """
        if time.monotonic() < self._recruited_at + RECRUIT_SECONDS:
            return
        self._recruited_at = time.monotonic()
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


@dataclass(slots=True)
class Timer:
    """Calls ``tick`` every ``seconds``, or never if that is zero."""

    seconds: float
    tick: Callable[[], object]
    due_at: float

    def run(self) -> None:
        """Call it, and note when it is due next."""
        now = time.monotonic()
        self.tick()
        # After the tick: one that a lost database interrupted is tried again at once.
        self.due_at = now + self.seconds


class IdleWait:
    """Waits for the listener, answers of providers, signals, and time-outs."""

    def __init__(self, listener: Listener, settings: conf.Settings) -> None:
        self._listener = listener
        self._settings = settings
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._is_woken = False
        self._look_seconds = FIRST_LOOK_SECONDS
        self._busy_seconds = BUSY_LOOK_SECONDS

    def wake(self) -> None:
        """End the wait. May be called from any thread, or from a signal handler."""
        if self._is_woken:
            return  # the loop has yet to look
        self._is_woken = True
        with suppress(OSError):
            self._sender.send(b"!")

    def moved(self, *, is_waiting: bool) -> None:
        """Poll at short intervals again, as there was something to do.

        While results are awaited, only at the longest: they wake the loop, and rows that came
        meanwhile share its next round.
        """
        self._look_seconds = LAST_LOOK_SECONDS if is_waiting else FIRST_LOOK_SECONDS
        self._busy_seconds = BUSY_LOOK_SECONDS

    def busy_look(self) -> float:
        """Return the seconds until the next look at what a writer has locked. Doubles each time."""
        seconds = self._busy_seconds
        self._busy_seconds = min(seconds * 2, MAX_BUSY_LOOK_SECONDS)
        return seconds

    def sleep(
        self,
        *,
        step: Callable[[], bool],
        due_seconds: Callable[[], float | None],
        timeout: float,
    ) -> bool:
        """Wait for new jobs, or for anything else to do, up to ``timeout`` seconds.

        ``due_seconds`` tells in how many seconds the next job is due. Returns whether a ``step`` on
        watch already did something.
        """
        listener, moved = self._listener, False
        if self._look_seconds <= LAST_LOOK_SECONDS:
            self.wait(min(timeout, self._look_seconds))
            self._look_seconds *= 2
        elif not listener.is_up:
            self.wait(min(timeout, self._until_due(due_seconds)))
        elif not listener.watch():
            # A writer that saw us awake, and therefore did not notify, has yet to commit.
            self.wait(min(timeout, self.busy_look()))
            listener.unwatch()
        else:
            # On watch now: commits from here on notify. Take one last step for earlier ones.
            moved = step()
            if not moved and not listener.hear():
                if listener.is_standby:
                    # Once the worker on watch wakes or is gone, nothing notifies this one.
                    timeout = min(timeout, STANDBY_SECONDS)
                self.wait(min(timeout, self._until_due(due_seconds)))
                # Claim and send what the nudge was for before the watch ends.
                moved = step()
            listener.unwatch()
        return moved

    def wait(self, seconds: float) -> None:
        """Wait until woken or nudged, for ``seconds`` at most."""
        sockets: list[socket.socket | Listener] = [self._receiver]
        if self._listener.is_up:
            sockets.append(self._listener)
        select.select(sockets, [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            while self._receiver.recv(4096):
                pass
        # Clear last, so that a ``wake()`` that saw it set is served by the next round.
        self._is_woken = False
        if self._listener.hear():
            self._look_seconds = FIRST_LOOK_SECONDS

    def close(self) -> None:
        """Close the sockets."""
        self._receiver.close()
        self._sender.close()

    def _until_due(self, due_seconds: Callable[[], float | None]) -> float:
        due = due_seconds()
        if due is None:
            return self._settings.poll_seconds or float("inf")
        return due if due > 0 else self.busy_look()
