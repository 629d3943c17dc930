"""Threads that run chores on timers. Each thread has its own database connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import events, faults
from pgembed_django.exceptions import MaintenanceDied
from pgembed_django.faults import Fault
from pgembed_django.once import Told
from pgembed_django.threads import OurThread

STOP_SECONDS = 30.0

RENEW_SECONDS = faults.MAX_OUTAGE_SECONDS + 5.0
"""After an outage all workers are back after so long, and have renewed their leases."""

_told = Told()
"""Which errors were logged already. Keyed by chore, spec and database."""


@dataclass(slots=True)
class Chore:
    """A function ``once`` that is called every ``seconds``, or never if that is zero.

    It returns how many jobs became ready. ``put_off_seconds`` is the current backoff while the
    server is out of room or read-only. Zero: the last call succeeded.
    """

    seconds: float
    once: Callable[[], int]
    starts_at_once: bool = True
    """Whether its first turn is at the start. Otherwise it is after ``seconds``."""
    awaits_others: bool = False
    """Whether it has no turn until all other workers are back from an outage, too."""
    due_at: float = 0.0
    put_off_seconds: float = 0.0


def attempt(once: Callable[[], int]) -> int:
    """Run a chore once. An error that fewer rows might avoid is logged, not raised."""
    try:
        return once()
    except DatabaseError as error:
        if not faults.may_pass(error):
            raise
        events.tell(events.CHORE_CANCELED, chore=once.__name__, error=str(error))
        return 0


@contextmanager
def apart(spec: str, *, chore: str, using: str) -> Iterator[None]:
    """Keep a chore's error in one spec from stopping the other specs. Log it once.

    During a deploy a spec's tables may differ from the code: a migration ran before this process
    was restarted, or has yet to run.
    """
    what = chore, spec, using
    try:
        yield
        _told.clear(what)
    except DatabaseError as error:
        fault, reason = faults.of(error), faults.said(error)
        if fault is not Fault.SCHEMA and not faults.may_pass(error):
            raise
        if not _told.is_new(what, reason):
            return
        if fault is Fault.SCHEMA:
            events.tell(events.CHORE_REFUSED, chore=chore, spec=spec, error=reason)
        else:
            events.tell(events.CHORE_CANCELED, chore=chore, error=reason)


class Chores:
    """A thread that runs chores until it is stopped. Calls ``wake`` when jobs became ready."""

    def __init__(
        self,
        name: str,
        chores: Sequence[Chore],
        *,
        using: str,
        wake: Callable[[], None],
        stopping: threading.Event | None = None,
    ) -> None:
        self.using = using
        self.stopping = stopping or threading.Event()
        self._chores = [chore for chore in chores if chore.seconds]
        self._wake = wake
        self._at = ""
        self._others_back_at = 0.0
        self._error: BaseException | None = None
        self._thread = OurThread(target=self._run, name=f"pgembed-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread. Chores that start at once are due immediately."""
        now = time.monotonic()
        for chore in self._chores:
            chore.due_at = now if chore.starts_at_once else now + chore.seconds
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if one did: a worker must not go on without it."""
        if self._error is not None:
            raise MaintenanceDied(f"{self._thread.name} died: {self._error}") from self._error

    def stop(self) -> None:
        """Ask the thread to end after the chore that it is running."""
        self.stopping.set()

    def join(self) -> None:
        """Wait up to ``STOP_SECONDS`` for the thread's end. A longer statement is left running."""
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - raised again by check(), in the worker
            self._error = error
            self._wake()
        finally:
            connections[self.using].close()

    def _loop(self) -> None:
        outage_seconds = 0.0
        while not self.stopping.is_set():
            try:
                self._round()
                outage_seconds = 0.0
            except (DatabaseError, InterfaceError) as error:
                if not faults.is_lost_connection(error):
                    raise
                outage_seconds = faults.longer(outage_seconds)
                self._others_back_at = time.monotonic() + outage_seconds + RENEW_SECONDS
                events.tell(
                    events.CHORE_CUT_OFF,
                    chore=self._at,
                    seconds=outage_seconds,
                    error=str(error).strip(),
                )
                connections[self.using].close()
            next_due = min(map(self._due_at, self._chores), default=float("inf"))
            wait = max(next_due - time.monotonic(), 0.0)
            self.stopping.wait(outage_seconds or min(wait, threading.TIMEOUT_MAX))

    def _round(self) -> None:
        for chore in self._chores:
            if time.monotonic() >= self._due_at(chore) and not self.stopping.is_set():
                self._at = chore.once.__name__
                try:
                    if attempt(chore.once):
                        self._wake()
                    chore.put_off_seconds = 0.0
                except DatabaseError as error:
                    if not faults.is_of_the_server(error):
                        raise
                    self._put_off(chore, error)
                chore.due_at = time.monotonic() + max(chore.seconds, chore.put_off_seconds)

    def _due_at(self, chore: Chore) -> float:
        return max(chore.due_at, self._others_back_at if chore.awaits_others else 0.0)

    def _put_off(self, chore: Chore, error: DatabaseError) -> None:
        """Back off while the server is out of room or read-only. Logged once. Others go on."""
        if not chore.put_off_seconds:
            events.tell(events.CHORE_CANCELED, chore=chore.once.__name__, error=str(error))
        chore.put_off_seconds = faults.longer(chore.put_off_seconds)
        self._others_back_at = time.monotonic() + chore.put_off_seconds + RENEW_SECONDS
        connections[self.using].close()
