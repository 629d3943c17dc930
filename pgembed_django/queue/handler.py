"""What a worker gives the jobs of some specs to: the part that knows what they are for.

The queue claims jobs, keeps their leases, and ends them. A handler does the work in between, and
reports each job's result to ``held``: ``finish``, ``retry``, ``fail`` or ``release``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import InterfaceError

from pgembed_django import conf
from pgembed_django.core import faults
from pgembed_django.core.faults import Fault
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Table

if TYPE_CHECKING:
    from pgembed_django.queue.completing import Completion
    from pgembed_django.queue.in_flight import HeldJob, InFlight
    from pgembed_django.queue.jobs import Claim, Lease
    from pgembed_django.queue.lanes import Claiming
    from pgembed_django.queue.maintenance import Chore

Write = Callable[[Sequence["HeldJob"]], Mapping[int, int]]
"""Writes the results of jobs, in the transaction that completes them. See ``Handler.writing``."""


class Ready(NamedTuple):
    """The specs whose jobs a handler can take now."""

    specs: Sequence[str]
    unstarted: Sequence[str] = ()
    """Specs of which it takes jobs that were never started, if there are no others."""


class Gaps(NamedTuple):
    """Units of one spec that lack their result."""

    spec: str
    units: Sequence[str]
    next_page: str = ""
    """What to ask for next. Empty: this was the last page."""


@dataclass(slots=True)
class Hindrances:
    """What keeps a handler from some of its jobs, for people. Shown in the worker's row."""

    paused: dict[str, str] = field(default_factory=dict)
    """Why a server that it needs cannot be asked, by name."""
    paused_seconds: dict[str, float] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    """Why the jobs of a spec are left alone, by the spec's name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a worker hands its handlers when it begins."""

    held: InFlight
    using: str
    settings: conf.Settings
    wake: Callable[[], None]
    """Ends the loop's wait. Any thread may call it."""
    inline: bool
    """Whether everything is to happen in the caller's thread, on its one connection."""
    clock: Callable[[], float]


def is_handlers_fault(error: BaseException) -> bool:
    """Return whether an error of a handler's code is no more than that.

    Not if the server or our own tables are at fault, or if it was thrown into the code.
    """
    if isinstance(error, (InterfaceError, MemoryError)):
        return False
    if faults.of(error) in {Fault.OUTAGE, Fault.OURS}:
        return False
    return not (faults.is_interruption(error) or faults.is_at_a_limit(error))


class Handler:
    """Handles the jobs of some specs. A subclass needs ``specs``, ``room`` and ``take``.

    The loop's thread calls all methods, with these exceptions: the thread that completes jobs may
    call ``writing``, what it returns, and ``can_write``; the threads of chores call ``find_gaps``
    and the chores; other threads read ``hindrances``, ``executors`` and ``app_labels``. Only the
    loop's thread may call ``held``; other threads may only call ``wake`` of the ``Setting``.

    None of them may block, since the leases are not renewed meanwhile. What ``writing`` raises
    fails its job, and what ``find_gaps`` raises is logged. Elsewhere an error of the database is
    waited out, or tried again, and any other exception ends the worker.
    """

    specs: Mapping[str, int]
    """The names of the specs. The numbers, -100 to 100, are added to the priority of the jobs for
    gaps, and of those that a person retries."""

    is_pipelined = False
    """Whether ``writing`` runs its statements by ``core.database`` only, such as by ``send``.
    Otherwise results are written within ``transaction.atomic()``."""

    table: Table = jobs.JOBS
    """Where its jobs are."""

    held: InFlight
    """The jobs that were claimed for it and have not ended. Set by ``begin``."""

    def begin(self, setting: Setting) -> None:
        """Get ready for the first claim. Called again after an outage at the worker's start."""
        self.held = setting.held

    # Which jobs it wants

    @property
    def room(self) -> int:
        """How many more jobs it wants now."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Read again what others may have changed. Called before each claim, so mostly a no-op."""

    def ready(self) -> Ready:
        """Return the specs whose jobs it can take now."""
        return Ready([*self.specs])

    def claiming(self, setting: Setting, lease: Lease) -> Claiming:
        """Return what claims its jobs."""
        from pgembed_django.queue.lanes import LaneClaiming

        return LaneClaiming(self, setting, lease)

    def take(self, claims: Sequence[Claim]) -> None:
        """Take in jobs that were just claimed. Read what they are about in ``advance``."""
        raise NotImplementedError

    # One round of the loop: in this order, with the ends of jobs after ``save_progress``

    def collect(self) -> bool:
        """Report the results that have come. Return whether there were any."""
        return False

    def save_progress(self) -> None:
        """Store what has come of unfinished jobs, some of which are about to be given back."""

    def advance(self, *, may_begin: bool) -> bool:
        """Go on with the jobs. Return whether anything moved.

        ``may_begin``: also with those that it has not begun yet.
        """
        return False

    # How finished jobs end

    def writing(self, finished: Sequence[HeldJob]) -> Write:
        """Begin to write the results of finished jobs. Called before the jobs are locked.

        What it returns is called with those that are still ours, in the same transaction. It
        returns how many items each job had, by job id. A job that it leaves out is given back.

        Both may run several times for one job: after a failure, jobs are written in halves. They
        wait for locks for 100 ms at most, and must not catch errors of the database. What cannot
        be rolled back belongs into ``completed``.
        """
        return lambda ours: {job.claim.id: 0 for job in ours}

    def complete(
        self, ours: Sequence[HeldJob], items: Mapping[int, int], *, keep_seconds: float, using: str
    ) -> Callable[[], Mapping[int, float]]:
        """End the jobs of ``items``, in the transaction that has written their results.

        Returns what reads how many seconds each awaited job has waited for its result, by id.
        """
        return jobs.complete(dict(items), keep_seconds=keep_seconds, using=using)

    def failing(self, claim: Claim) -> Callable[[], object] | None:
        """Return what belongs to the final failure of a job, in the same transaction."""
        return None

    def can_write(self, spec: str) -> bool:
        """Return whether results of a spec's jobs can be written at all, after one could not."""
        return True

    def completed(self, done: Completion) -> None:
        """Note that jobs were completed, before they are dropped."""

    @property
    def completing_itself(self) -> Collection[int]:
        """The ids of jobs that its own threads complete: they may be gone without being lost."""
        return ()

    def given_back(self, jobs: Sequence[HeldJob]) -> None:
        """Note that ``writing`` has left jobs out. They are released after this."""

    def refused(self, job: HeldJob, error: Exception, *, can_write: bool) -> None:
        """End a job whose result could not be written, in some way: else it is tried for ever.

        It was alone in its transaction, unless ``can_write`` has returned False for its spec.
        """
        said = faults.described(error).partition("\n")[0]
        if faults.is_nobodys(error):
            self.held.put_off(job.claim, said)
        else:
            self.held.retry(job.claim, said)

    # What is lost or given back

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget jobs: they have ended, or are another worker's now.

        Called within ``held.retry``, ``fail`` and ``release``; after ``finish`` only at the end.
        """

    def leave(self, job_ids: Iterable[int]) -> None:
        """Prepare to give jobs back: what has come of them is to be saved."""

    def awaited(self) -> Collection[int]:
        """Return the ids of jobs that are worth waiting for when the worker is to stop."""
        return ()

    # When it next wants to be called

    @property
    def wait_seconds(self) -> float:
        """The longest time that the loop may sleep unless it is woken. Zero: very soon."""
        return float("inf")

    @property
    def is_waiting(self) -> bool:
        """Whether something will wake the loop: a request is in flight."""
        return False

    @property
    def has_unbegun(self) -> bool:
        """Whether there are claimed jobs that it has not begun yet."""
        return False

    # Around the loop

    @property
    def known(self) -> Collection[str] | None:
        """The names of all specs of this project, or None if it does not know of all of them.

        If a handler knows, jobs fail that are an hour old, and whose spec is neither among these
        nor known to any worker that runs.
        """
        return None

    def find_gaps(self, page: str) -> Gaps | None:
        """Return a page of units that lack their result. The first page is "".

        Asked at the start and every ``PGEMBED_RECONCILE_SECONDS``, by every worker. Units with a
        job, or whose failure is parked, may be among them. None: gaps are found otherwise. It must
        not take long, as leases are reaped by the same thread.
        """
        return None

    @property
    def app_labels(self) -> Collection[str]:
        """The apps whose migrations must be applied before it is ready."""
        return ()

    def prepare(self) -> None:
        """Do what must be done before ``begin``. Called again after an outage."""

    def warm_up(self) -> None:
        """Load what takes long, so that the first job need not wait. The worker is seen by now."""

    def chores(self, is_stopping: Callable[[], bool]) -> tuple[Sequence[Chore], Sequence[Chore]]:
        """Return its chores: short ones, and those that may take minutes.

        They run in threads of their own. A long one looks at ``is_stopping`` now and then.
        """
        return (), ()

    def endless_chores(self, is_stopping: Callable[[], bool]) -> Sequence[Chore]:
        """Return chores that go on until ``is_stopping``. Each gets a thread of its own."""
        return ()

    def chores_of_drain(self) -> Sequence[Callable[[], int]]:
        """Return what a drain does once nothing is ready. Each returns how many jobs became so."""
        return ()

    def hindrances(self, *, for_people: bool = False) -> Hindrances:
        """Return what keeps it from some jobs. ``for_people``: by names that are easier to read."""
        return Hindrances()

    def executors(self, *, for_people: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return what runs its models is at, as JSON for the worker's row. Names as above."""
        return ()

    def close(self) -> None:
        """Let its threads end, without waiting for what is in flight."""
