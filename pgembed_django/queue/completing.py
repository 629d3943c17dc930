"""Complete finished jobs: their results and their ends commit together, in short transactions.

A thread with its own connection completes many at once, while the loop goes on.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import conf, database, events, faults
from pgembed_django.faults import Fault
from pgembed_django.queue import jobs
from pgembed_django.queue.handler import Handler
from pgembed_django.queue.in_flight import HeldJob, InFlight, State
from pgembed_django.queue.portion import Portion
from pgembed_django.threads import Threads

THREADLESS_SECONDS = 5.0
"""How long the loop completes jobs itself after the thread could not reach the database."""

STOP_SECONDS = 5.0
"""How long a worker that ends waits for jobs that are being completed."""

MAX_BUSY = 10
"""After this many futile waits, the rest of a spec's jobs waits for the next round."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of finished jobs. Those in none of these are kept and tried again.

    So are the ``busy`` ones.
    """

    completed: Sequence[HeldJob] = ()
    """Their results are written, and they have ended."""
    waited: Mapping[int, float] = field(default_factory=dict)
    """How long each write among them waited for its result, in seconds, by job id."""
    given_back: Sequence[HeldJob] = ()
    """Their handler has left them out."""
    refused: Sequence[tuple[HeldJob, DatabaseError, bool]] = ()
    """Those whose results could not be written, and whether those of their spec can be."""
    lost: Collection[int] = ()
    """Job ids that are another worker's now, or gone with their rows."""
    seconds: float = 0.0
    busy: Sequence[HeldJob] = ()
    """Somebody has locked one of their tables or failures."""

    def __add__(self, other: Completion) -> Completion:
        return Completion(
            [*self.completed, *other.completed],
            {**self.waited, **other.waited},
            [*self.given_back, *other.given_back],
            [*self.refused, *other.refused],
            [*self.lost, *other.lost],
            self.seconds + other.seconds,
            [*self.busy, *other.busy],
        )


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
        self._portion = Portion()

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
        self._hand_over(todo, self._thread)
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

    def _hand_over(self, todo: Sequence[HeldJob], thread: Threads) -> None:
        self._handed_over = todo
        for job in todo:
            job.state = State.COMPLETING
        self._future = thread.submit(self._complete, todo)
        self._future.add_done_callback(lambda _: self._wake())

    def _complete(self, todo: Sequence[HeldJob]) -> Completion:
        """Run in either thread: touch nothing of the loop's.

        Few jobs per transaction: whoever deletes one of their rows waits for its end.
        """
        using = self._held.using
        done = Completion()
        pieces = Pieces(todo)
        while some := pieces.take(self._portion.size):
            started = time.perf_counter()
            try:
                one = complete(
                    some,
                    self._handler,
                    settings=self._held.settings,
                    using=using,
                    wait=pieces.wait,
                )
            except (DatabaseError, InterfaceError) as error:
                fault = faults.of(error)
                if fault is Fault.TOO_SLOW:
                    self._portion.halve(len(some))
                if fault is Fault.OUTAGE or faults.is_lost_connection(error):
                    connections[using].close()
                if not done.completed:
                    raise
                break  # the next try will find it: report what was done first
            done += one
            if one.busy:
                pieces.split(one.busy)
            else:
                self._portion.adapt(len(some), seconds=time.perf_counter() - started)
        return done

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
            self._do_without_thread(error)
            return True, ()
        done = future.result()
        self._is_threadless = False
        return self._hand_out(todo, done)

    def _do_without_thread(self, error: Exception) -> None:
        if not self._is_threadless:
            events.tell(events.STORING_ALONE, error=faults.said(error))
        self._is_threadless = True
        self._threadless_until = time.monotonic() + THREADLESS_SECONDS

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
            job.state, job.was_blocked = State.BLOCKED, True
        return len(left) < len(todo), left


class Pieces:
    """Some jobs at a time. Busy ones come again in halves, after all others.

    A writer may hold one of their rows, or a whole table for hours. Waits are bounded per spec,
    so that all other jobs are completed meanwhile.
    """

    def __init__(self, todo: Sequence[HeldJob]) -> None:
        self._rest = deque(todo)
        self._again: deque[list[HeldJob]] = deque()
        self._busy: Counter[str] = Counter()

    @property
    def wait(self) -> str:
        """How long to wait for locks: only briefly after a futile wait."""
        return database.BRIEFLY if self._busy else database.SHORTLY

    def take(self, size: int) -> Sequence[HeldJob]:
        """Return the next jobs, up to ``size`` new ones. Empty: none are left."""
        if self._rest:
            return [self._rest.popleft() for _ in range(min(size, len(self._rest)))]
        return self._again.popleft() if self._again else ()

    def split(self, busy: Sequence[HeldJob]) -> None:
        """Split jobs that could not be completed together: by spec, or in halves."""
        of_specs = by_spec(busy)
        if len(of_specs) > 1:
            self._again += of_specs
            return
        spec, middle = busy[0].claim.spec, len(busy) // 2
        self._busy[spec] += 1
        if middle:
            self._again += [list(busy[:middle]), list(busy[middle:])]
        if self._busy[spec] >= MAX_BUSY:
            self._rest = deque(job for job in self._rest if job.claim.spec != spec)
            self._again = deque(piece for piece in self._again if piece[0].claim.spec != spec)


def complete(
    finished: Sequence[HeldJob],
    handler: Handler,
    *,
    settings: conf.Settings,
    using: str,
    wait: str = database.SHORTLY,
    is_again: bool = False,
) -> Completion:
    """Write the results of finished jobs and complete the jobs, in one transaction.

    Jobs that an open writer has locked are left alone. Results of lost ones are discarded. A job's
    own error counts against that job only. A time-out over several is raised, and so are errors of
    the server or of our own tables. ``is_again``: this job has just failed alone.
    """
    started = time.perf_counter()
    try:
        is_pipelined = handler.is_pipelined
        with database.giving_way(using, wait=wait, pipelined=is_pipelined, keep_plans=is_pipelined):
            write = handler.writing(finished)
            held = jobs.hold([job.claim for job in finished], using=using)
            ours = [job for job in finished if job.claim.id in held.ours]
            items = {job_id: count for job_id, count in write(ours).items() if job_id in held.ours}
            read_waited = jobs.complete(
                items, keep_seconds=settings.keep_succeeded_seconds, using=using
            )
    except database.Busy:
        return Completion(busy=finished)
    except DatabaseError as error:
        is_many = len(finished) > 1
        match faults.of(error):
            case Fault.OUTAGE | Fault.OURS:
                raise
            case Fault.TOO_SLOW if is_many:
                raise
            case Fault.SCHEMA | Fault.PASSING if len(of_specs := by_spec(finished)) > 1:
                return _apart(of_specs, handler, settings=settings, using=using, wait=wait)
            case Fault.SCHEMA | Fault.PASSING if not handler.can_write(finished[0].claim.spec):
                return Completion(refused=[(job, error, False) for job in finished])
            case _ if is_many:
                # One job's data may be at fault. It must not fail the others.
                middle = len(finished) // 2
                halves = [finished[:middle], finished[middle:]]
                return _apart(halves, handler, settings=settings, using=using, wait=wait)
            case Fault.TOO_SLOW | Fault.SCHEMA | Fault.PASSING if not is_again:
                # Canceled by a person, or while the table was altered: it is not yet to blame.
                return complete(
                    finished, handler, settings=settings, using=using, wait=wait, is_again=True
                )
        return Completion(refused=[(finished[0], error, True)])
    return Completion(
        [job for job in ours if job.claim.id in items],
        read_waited(),
        [job for job in ours if job.claim.id not in items],
        lost=held.lost,
        seconds=time.perf_counter() - started,
    )


def by_spec(finished: Iterable[HeldJob]) -> list[list[HeldJob]]:
    """Return jobs apart by spec, in the given order."""
    found: defaultdict[str, list[HeldJob]] = defaultdict(list)
    for job in finished:
        found[job.claim.spec].append(job)
    return [*found.values()]


def _apart(
    parts: Sequence[Sequence[HeldJob]],
    handler: Handler,
    *,
    settings: conf.Settings,
    using: str,
    wait: str,
) -> Completion:
    done = complete(parts[0], handler, settings=settings, using=using, wait=wait)
    for jobs_of_part in parts[1:]:
        try:
            done += complete(jobs_of_part, handler, settings=settings, using=using, wait=wait)
        except (DatabaseError, InterfaceError):
            break  # the next try will find it: report what was done first
    return done
