"""Complete finished jobs: their results and their ends commit together, in short transactions.

A thread with its own connection completes many at once, while the loop goes on.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent import futures
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import events
from pgembed_django.core import database, faults
from pgembed_django.core.adapting import AdaptiveSize, halves
from pgembed_django.core.faults import Fault
from pgembed_django.core.threads import Threads
from pgembed_django.queue import jobs, sessions
from pgembed_django.queue.handler import Handler, is_handlers_fault
from pgembed_django.queue.in_flight import HeldJob, InFlight, State

THREADLESS_SECONDS = 5.0
"""How long the loop completes jobs itself after the thread could not reach the database."""

STOP_SECONDS = 5.0
"""How long a worker that ends waits for jobs that are being completed."""

MAX_BUSY = 10
"""After this many futile waits, the rest of a spec's jobs waits for the next round."""


@dataclass(slots=True)
class Completion:
    """What became of finished jobs. Those in none of these are kept and tried again."""

    completed: list[HeldJob] = field(default_factory=list)
    """Their results are written, and they have ended."""
    waited: dict[int, float] = field(default_factory=dict)
    """How long each write among them waited for its result, in seconds, by job id."""
    given_back: list[HeldJob] = field(default_factory=list)
    """Their handler has left them out."""
    refused: list[tuple[HeldJob, Exception, bool]] = field(default_factory=list)
    """Those whose results could not be written, and whether those of their spec can be."""
    lost: set[int] = field(default_factory=set)
    """Job ids that are another worker's now, or gone with their rows."""
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.completed or self.given_back or self.refused or self.lost)


class Completing:
    """Completes a handler's finished jobs.

    The loop's own thread completes a few: handing them over would take longer. It also completes
    the next ones after a failure, to learn at once whether they can be completed. The other
    thread only writes; the held jobs are the loop's.
    """

    def __init__(
        self, handler: Handler, held: InFlight, *, wake: Callable[[], None], inline: bool
    ) -> None:
        self._handler = handler
        self._held = held
        self._wake = wake
        self._thread = None if inline else Threads(1, name="pgembed-completing")
        self._handed_over: Sequence[HeldJob] = ()
        self._future: futures.Future[Completion] | None = None
        self._has_failed = False
        self._is_threadless = False
        self._threadless_until = float("-inf")
        self._size = AdaptiveSize()

    @property
    def is_at_work(self) -> bool:
        """Whether the thread is completing jobs."""
        return self._future is not None

    def step(self) -> bool:
        """Hand out completed jobs, complete finished ones. Return whether anything moved."""
        moved, left = self._collect()
        finished = self._held.finished
        self._held.waiting = len(finished) - len(self._handed_over) if self.is_at_work else 0
        if self.is_at_work:
            return moved
        # An open writer has locked what the thread just left: do not retry at once.
        todo = [job for job in finished.values() if job not in left]
        if not todo:
            return moved
        is_few = len(todo) < self._held.settings.batch_size
        is_threadless = self._has_failed or time.monotonic() < self._threadless_until
        if self._thread is None or is_threadless or is_few:
            self._has_failed = True  # it stays so where completing raises
            ended, _ = self._hand_out(todo, self._complete(todo))
            self._has_failed = False
            return ended or moved
        self._handed_over = todo
        for job in todo:
            job.state = State.COMPLETING
        self._future = self._thread.submit(self._complete, todo)
        self._future.add_done_callback(lambda _: self._wake())
        return moved

    def finish(self) -> None:
        """Wait for jobs that are being completed, and hand them out."""
        if self._future is not None:
            futures.wait([self._future], timeout=STOP_SECONDS)
            self._collect()

    def begin_anew(self) -> None:
        """Note an outage: the loop completes the next jobs itself, whichever thread met it."""
        self.finish()
        self._has_failed = True

    def close(self) -> None:
        """End the thread and its connection."""
        if self._thread is None:
            return
        if not self.is_at_work:
            closing = self._thread.submit(lambda: connections[self._held.using].close())
            futures.wait([closing], timeout=STOP_SECONDS)
        self._thread.shutdown()

    # In the loop's thread

    def _collect(self) -> tuple[bool, Collection[HeldJob]]:
        """Hand out what the thread has completed."""
        if self._future is None or not self._future.done():
            return False, ()
        future, self._future = self._future, None
        todo, self._handed_over = self._handed_over, ()
        for job in todo:
            job.state = State.FINISHED
        error = future.exception()
        self._has_failed = error is not None
        if isinstance(error, DatabaseError | InterfaceError) and faults.is_lost_connection(error):
            # Its own connection. If the database is away, the loop will find out.
            if not self._is_threadless:
                events.tell(events.STORING_ALONE, error=faults.said(error))
            self._is_threadless = True
            self._threadless_until = time.monotonic() + THREADLESS_SECONDS
            return True, ()
        done = future.result()
        self._is_threadless = False
        return self._hand_out(todo, done)

    def _hand_out(
        self, todo: Sequence[HeldJob], done: Completion
    ) -> tuple[bool, Collection[HeldJob]]:
        """Let go of completed jobs. Returns whether there were any, and those left."""
        held = self._held
        still = [job for job in todo if held.holds(job.claim)]
        completed = set(done.completed)
        held.lose(job.claim.id for job in still if job.claim.id in done.lost)
        held.completed += len(done.completed)
        if done.completed:
            self._handler.completed(done)
        held.drop(job.claim.id for job in still if job in completed)
        if done.given_back:
            self._handler.given_back(done.given_back)
            for job in done.given_back:
                held.release(job.claim)
        for job, error, can_write in done.refused:
            self._handler.refused(job, error, can_write=can_write)
        left = {job for job in todo if held.holds(job.claim)}
        for job in left:
            job.was_blocked = True
        return len(left) < len(todo), left

    # In either thread: it touches nothing of the loop's

    def _complete(self, todo: Sequence[HeldJob]) -> Completion:
        """Complete jobs, few per transaction: whoever deletes one of their rows waits for its end.

        A writer may hold one of their rows, or a whole table for hours. Such jobs come again, in
        halves, after all others. Waits are bounded per spec, and what is left is kept.
        """
        using = self._held.using
        done = Completion()
        fresh = deque(todo)
        parts: deque[Sequence[HeldJob]] = deque()
        busy: deque[Sequence[HeldJob]] = deque()
        waits: Counter[str] = Counter()
        last: Sequence[HeldJob] = ()
        while fresh or parts or busy:
            if parts or not fresh:
                some = parts.popleft() if parts else busy.popleft()
            else:
                some = [fresh.popleft() for _ in range(min(self._size.size, len(fresh)))]
            started = time.perf_counter()
            wait = database.BRIEFLY if waits else database.SHORTLY
            try:
                with sessions.Connecting(using):
                    smaller = self._write(some, done, wait=wait, is_again=some is last)
            except database.Busy:
                smaller = _smaller(some)
                busy += smaller
                spec = some[0].claim.spec
                if all(job.claim.spec == spec for job in some):
                    waits[spec] += 1
                if waits[spec] >= MAX_BUSY:
                    fresh = deque(job for job in fresh if job.claim.spec != spec)
                    busy = deque(piece for piece in busy if piece[0].claim.spec != spec)
                continue
            except (DatabaseError, InterfaceError) as error:
                fault = faults.of(error)
                if fault is Fault.TOO_SLOW:
                    self._size.failed(len(some))
                if fault is Fault.OUTAGE or faults.is_lost_connection(error):
                    connections[using].close()
                if not done:
                    raise
                break  # the next try will find it: report what was done first
            parts.extendleft(reversed(smaller))
            last = some
            if not smaller:
                self._size.took(time.perf_counter() - started, len(some))
        return done

    def _write(
        self, some: Sequence[HeldJob], done: Completion, *, wait: str, is_again: bool
    ) -> list[Sequence[HeldJob]]:
        """Write the results of jobs and complete them, in one transaction.

        Jobs that an open writer has locked are left alone. Results of lost ones are discarded. A
        job's own error counts against that job only. Returns the jobs to be tried again at once,
        one part after the other. ``is_again``: this job has just failed alone.

        Raises:
            DatabaseError: a time-out over several jobs, or an error of the server or of our tables.
        """
        handler, using = self._handler, self._held.using
        is_pipelined, started = handler.is_pipelined, time.perf_counter()
        try:
            with database.giving_way(
                using, wait=wait, pipelined=is_pipelined, keep_plans=is_pipelined
            ):
                write = handler.writing(some)
                held = jobs.hold([job.claim for job in some], using=using, table=handler.table)
                ours = [job for job in some if job.claim.id in held.ours]
                items = {key: count for key, count in write(ours).items() if key in held.ours}
                keep_seconds = self._held.settings.keep_succeeded_seconds
                read_waited = handler.complete(ours, items, keep_seconds=keep_seconds, using=using)
        except database.Busy:
            raise
        except Exception as error:
            fault = faults.of(error)
            spec, is_many = some[0].claim.spec, len(some) > 1
            # psycopg hides where an interruption comes from.
            is_thrown_in = not isinstance(error, DatabaseError) and database.is_halfway(using)
            if (
                is_thrown_in
                or not is_handlers_fault(error)
                or (fault is Fault.TOO_SLOW and is_many)
            ):
                raise
            is_of_spec = fault in {Fault.SCHEMA, Fault.PASSING}
            if is_of_spec and len(by_spec(some)) == 1 and not handler.can_write(spec):
                done.refused += [(job, error, False) for job in some]
                return []
            if is_many:
                return _smaller(some)  # one job's data may be at fault: it must not fail the others
            if (is_of_spec or fault is Fault.TOO_SLOW) and not is_again:
                # Canceled by a person, or while the table was altered: it is not yet to blame.
                return [some]
            done.refused.append((some[0], error, True))
            return []
        done.completed += [job for job in ours if job.claim.id in items]
        done.given_back += [job for job in ours if job.claim.id not in items]
        done.waited |= read_waited()
        done.lost |= held.lost
        done.seconds += time.perf_counter() - started
        return []


def by_spec(finished: Iterable[HeldJob]) -> list[Sequence[HeldJob]]:
    """Return jobs apart by spec, in the given order."""
    found: defaultdict[str, list[HeldJob]] = defaultdict(list)
    for job in finished:
        found[job.claim.spec].append(job)
    return [*found.values()]


def _smaller(some: Sequence[HeldJob]) -> list[Sequence[HeldJob]]:
    """Return jobs apart by spec, or in halves. One alone has no parts."""
    if len(some) == 1:
        return []
    if len(of_specs := by_spec(some)) > 1:
        return of_specs
    return halves(some)
