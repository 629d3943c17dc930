"""Which faults happen and when. All are drawn from the seed before the soak begins."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import psycopg

from benchmarks.postgres import Postgres
from benchmarks.soak import server
from benchmarks.soak.processes import Server, Workers

LEASE_SECONDS = 4.0
OUTAGE_SECONDS = 12.0
"""How long a restart of Postgres may have consequences for a worker: a lease, and its backoff."""

WORKER_FAULTS = {
    "SIGKILL": 3,
    "SIGKILL in an expansion": 3,
    "SIGTERM": 3,
    "freeze": 3,
    "terminate one": 3,
    "terminate all": 1,
    "deafen": 3,
}
READER_FAULTS = {"SIGKILL the reader": 3, "freeze the reader": 2, "cut off": 3, "drop the slot": 1}
"""Faults of the worker that reads the write-ahead log, and of the server's process that sends."""
FROZEN_SECONDS = 22.0
"""Longer than the server waits for a reader."""
EVERY_SECONDS = 2.5
SERVER_EVERY_SECONDS = 4.0

OTHERS = """
    SELECT pid
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND backend_type = 'client backend'
      AND pid <> pg_backend_pid()
    ORDER BY backend_start
"""
# Finds listeners by the last statement on their connection.
LISTENERS = """
    SELECT pid
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND pid <> pg_backend_pid()
      AND (query LIKE 'LISTEN%' OR query LIKE 'NOTIFY%' OR query = 'SELECT 1'
           OR query LIKE '%pg_try_advisory_lock%' OR query LIKE '%pg_advisory_unlock%')
"""
# Workers that have enqueued a page of units, and have not committed yet.
EXPANDERS = """
    SELECT application_name
    FROM pg_stat_activity
    JOIN pg_locks USING (pid)
    WHERE (mode, relation) IN (
        ('RowShareLock', 'pgembed_ripple'::regclass::oid),
        ('RowExclusiveLock', 'pgembed_job'::regclass::oid)
    )
    GROUP BY application_name
    HAVING count(DISTINCT relation) = 2
"""
READER = """
    SELECT active_pid, application_name
    FROM pg_replication_slots
    JOIN pg_stat_activity ON pid = active_pid
    WHERE slot_name LIKE 'pgembed\\_%'
"""
DROP = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
EXPANSION_SECONDS = 2.0
"""How long to wait for an expansion."""


class Event(NamedTuple):
    """A fault, and when it is due in seconds after the start."""

    at: float
    what: str
    which: float
    """From 0 to 1: chooses the worker or the backend."""


def schedule(seed: int, *, seconds: float, restarts: bool, reads_log: bool) -> list[Event]:
    """Draw all events, and return them in order. ``reads_log``: a worker reads from a slot."""
    draw = random.Random(f"{seed} faults")
    events = list(_worker_faults(draw, seconds, WORKER_FAULTS))
    if reads_log:
        events += _worker_faults(draw, seconds, READER_FAULTS)
    events += _server_faults(draw, seconds)
    if restarts:
        how = draw.choice(("fast", "immediate"))
        events.append(Event(seconds * draw.uniform(0.4, 0.6), f"restart {how}", 0))
    return sorted(events)


def _worker_faults(draw: random.Random, seconds: float, weights: dict[str, int]) -> Iterator[Event]:
    at = 1.0 + draw.expovariate(1 / EVERY_SECONDS)
    while at < seconds:
        [what] = draw.choices(list(weights), list(weights.values()))
        which = draw.random()
        if what == "freeze":
            yield Event(at, "SIGSTOP", which)
            yield Event(at + draw.uniform(0.5, LEASE_SECONDS + 3), "SIGCONT", which)
        else:
            yield Event(at, what, which)
        at += draw.expovariate(1 / EVERY_SECONDS)


def _server_faults(draw: random.Random, seconds: float) -> Iterator[Event]:
    at = draw.expovariate(1 / SERVER_EVERY_SECONDS)
    while at < seconds:
        until = at + draw.uniform(0.3, 4.0)
        yield Event(at, draw.choice(server.MODES), 0)
        yield Event(until, "well", 0)
        at = until + draw.expovariate(1 / SERVER_EVERY_SECONDS)


class Faults:
    """Makes the events happen when they are due."""

    def __init__(
        self, events: list[Event], *, postgres: Postgres, served: Server, workers: Workers
    ) -> None:
        self.happened: Counter[str] = Counter()
        self.killed_expanders = 0
        self._frozen: list[tuple[float, int]] = []
        self._events = events
        self._postgres = postgres
        self._server = served
        self._workers = workers

    def run_due(self, seconds: float) -> None:
        """Run the events that are due ``seconds`` after the start."""
        while self._events and self._events[0].at <= seconds:
            event = self._events.pop(0)
            self._do(event)
            self.happened[event.what] += 1
        while self._frozen and self._frozen[0][0] <= time.monotonic():
            self._workers.signal(self._frozen.pop(0)[1], signal.SIGCONT)

    def end(self) -> None:
        """End all faults."""
        self._server.be("well")
        for slot in self._workers.alive:
            self._workers.signal(slot, signal.SIGCONT)

    def _do(self, event: Event) -> None:
        if event.what == "SIGKILL in an expansion":
            self._kill_expander()
        elif event.what in READER_FAULTS:
            self._strike_reader(event.what)
        elif event.what.startswith("SIG"):
            # On a busy machine, faults would otherwise come faster than workers can start.
            if event.what == "SIGCONT" or any(
                one.has_begun for one in self._workers.alive.values()
            ):
                slot = int(event.which * self._workers.count)
                self._workers.signal(slot, signal.Signals[event.what])
        elif event.what.startswith("restart"):
            self._restart(event.what.split()[1])
        elif event.what == "deafen":
            self._terminate(LISTENERS)
        elif event.what == "terminate one":
            self._terminate(OTHERS, only=event.which)
        elif event.what == "terminate all":
            self._terminate(OTHERS)
        else:
            self._server.be(event.what)

    def _kill_expander(self) -> None:
        """Kill the first worker that is seen to expand ripples."""
        until = time.monotonic() + EXPANSION_SECONDS
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            while time.monotonic() < until:
                names = {name for [name] in connection.execute(EXPANDERS)}
                for slot, worker in self._workers.alive.items():
                    if worker.name in names:
                        self._workers.signal(slot, signal.SIGKILL)
                        self.killed_expanders += 1
                        return

    def _strike_reader(self, what: str) -> None:
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            for pid, name in connection.execute(READER).fetchall():
                [slot] = [
                    slot for slot, worker in self._workers.alive.items() if worker.name == name
                ] or [None]
                if what in ("cut off", "drop the slot"):
                    connection.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])
                elif slot is not None and what == "SIGKILL the reader":
                    self._workers.signal(slot, signal.SIGKILL)
                elif slot is not None and not self._frozen:
                    self._workers.signal(slot, signal.SIGSTOP)
                    self._frozen.append((time.monotonic() + FROZEN_SECONDS, slot))
            if what == "drop the slot":
                with contextlib.suppress(psycopg.Error):  # another worker reads already
                    connection.execute(DROP)

    def _restart(self, how: str) -> None:
        before = time.monotonic()
        self._postgres.restart(how=how)
        until = time.monotonic() + OUTAGE_SECONDS
        self._workers.all_struck("restart", before, until)

    def _terminate(self, found: str, *, only: float | None = None) -> None:
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            pids = [pid for [pid] in connection.execute(found)]
            if only is not None and pids:
                pids = [pids[int(only * len(pids))]]
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS t(pid)", [pids]
            )
