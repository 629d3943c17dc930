"""Handles tasks: lets their functions run, and reports how they have ended."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import router

from pgembed_django import conf, events
from pgembed_django.core import database
from pgembed_django.models import Task
from pgembed_django.models.job import Ending
from pgembed_django.queue import jobs
from pgembed_django.queue.completing import Completion
from pgembed_django.queue.handler import Handler, Hindrances, Ready, Setting
from pgembed_django.queue.in_flight import HeldJob
from pgembed_django.queue.jobs import Claim, Lease, Table
from pgembed_django.queue.maintenance import Chore
from pgembed_django.tasks import finishing, limits, records, results, schedules, tenants
from pgembed_django.tasks.api import InvalidTask
from pgembed_django.tasks.claims import TaskClaiming
from pgembed_django.tasks.finishing import Ended
from pgembed_django.tasks.outages import Outages
from pgembed_django.tasks.places import Places
from pgembed_django.tasks.retention import Retention
from pgembed_django.tasks.running import Call, End, Outcome, Run
from pgembed_django.tasks.table import TASKS
from pgembed_django.tasks.turns import Started

BATCH = 50
"""How many tasks may end, or wait for a place, before the loop has to see to it."""

AHEAD_SECONDS = 0.02
"""How much work of the threads is claimed beyond what they run. Long tasks are not claimed ahead:
other workers may be free for them."""

HAND_IN_SECONDS = 0.01
"""How long a task that has ended waits at most, so that others are completed with it."""

MAX_WAIT_SECONDS = 0.5
"""After so long a claimed task that has found no place is given back."""

CANCELED_LOOK_SECONDS = 2.0
"""How often to ask whether running tasks are to be canceled."""

SCHEDULES_SECONDS = 60.0

IS_POLICY_ACTIVE = "SELECT row_security_active('pgembed_task')"

SEARCH_PATH = "SELECT current_setting('search_path')"

CALLS = """
    SELECT id, arguments::text, tenant, once, created_at
    FROM pgembed_task
    WHERE id = ANY(%(ids)s::bigint[])
"""

CANCELED = """
    SELECT id
    FROM pgembed_task
    WHERE id = ANY(%(ids)s::bigint[])
      AND cancel_asked_at IS NOT NULL
"""


class TaskHandler(Handler):
    """Runs the tasks of some queues: ``concurrency`` at once, or one in each of ``processes``."""

    table = TASKS

    def __init__(
        self, queues: Iterable[str], *, using: str, concurrency: int, processes: int = 0
    ) -> None:
        self.specs = dict.fromkeys(queues, 0)
        self._using = using
        self._concurrency = processes or concurrency
        self._in_processes = processes > 0
        self._claimed: list[Claim] = []
        self._calls: dict[Claim, Call] = {}
        """As far as claims have told. Not by id: a task may have been claimed again."""
        self._runs: dict[int, Run] = {}
        """Those that were handed to a place and have not been collected."""
        self._done: deque[Run] = deque()
        self._handed_in_at = float("-inf")
        self._looked_at = float("-inf")
        self._put_at = float("-inf")
        """When runs were last handed to places."""
        self._mean_seconds = 1.0
        """How long runs take, the last ones above all."""
        self._known: dict[str, tuple[Any, bool, tenants.Enter | None]] = {}
        """By function: its task, whether it is a coroutine's, and the context of tenants."""
        self._search_path = ""
        self._places: Places | None = None

    def begin(self, setting: Setting) -> None:
        """Get the places ready."""
        super().begin(setting)
        self.outages = Outages(
            self.specs, held=setting.held, using=setting.using, clock=setting.clock
        )
        self._settings = setting.settings
        self._wake, self._inline = setting.wake, setting.inline
        self._application = _application(self._using)
        [[self._search_path]] = database.rows(self._using, SEARCH_PATH)
        if not self._inline and self._places is None:
            self._places = Places(
                self._concurrency, done=self._take_in, in_processes=self._in_processes
            )

    # Which tasks it wants

    @property
    def room(self) -> int:
        """How many more tasks it wants now."""
        held = len(self._runs) + len(self._claimed) - len(self._done)
        ahead = 0
        if not (self._inline or self._in_processes):
            ahead = int(
                min(AHEAD_SECONDS / max(self._mean_seconds, 1e-6) * self._concurrency, 4 * BATCH)
            )
        # Few claims of many, not many of few.
        free = self._concurrency + ahead - held
        return max(free, 0) if held < self._concurrency or free >= BATCH else 0

    def refresh(self) -> None:
        """Read again after a while what a person has paused."""
        self.outages.read_if_old()

    def ready(self) -> Ready:
        """Return the queues that do not wait for a provider or a person."""
        return Ready([queue for queue in self.specs if self.places(queue)])

    def places(self, queue: str) -> int:
        """Return how many tasks of a queue may start now: after an outage one at a time."""
        return self.outages.places(queue)

    def claiming(self, setting: Setting, lease: Lease) -> TaskClaiming:
        """Return what claims its tasks."""
        return TaskClaiming(self, setting, lease)

    def take_calls(self, started: Sequence[Started]) -> None:
        """Take in what tasks that were just started are called with."""
        for one in started:
            self._calls[one.claim] = Call(
                one.claim, one.arguments, one.tenant, one.once, one.created_at
            )

    def take(self, claims: Sequence[Claim]) -> None:
        """Take in tasks that were just claimed."""
        self._claimed += claims

    # One round

    def collect(self) -> bool:
        """Report how runs have ended, several at once. Return whether there were any."""
        now = time.monotonic()
        if not self._done or (len(self._done) < BATCH and self._hand_in_at > now):
            return False
        self._handed_in_at = now
        for _ in range(len(self._done)):
            run = self._done.popleft()
            if self._places is not None:
                self._places.ended(run)
            if self._runs.get(run.call.claim.id) is run:
                del self._runs[run.call.claim.id]
                self._mean_seconds += (run.seconds - self._mean_seconds) / 16
                self._report(run, run.outcome or Outcome(End.AGAIN, seconds=1))
        return True

    def advance(self, *, may_begin: bool) -> bool:
        """Hand claimed tasks to places, and look at those that run. Return whether any moved."""
        moved = bool(self._claimed and may_begin)
        if moved:
            self._begin_claimed()
        self._give_back_waiting(may_begin=may_begin)
        self._end_overdue()
        self._look_for_canceled()
        return moved

    def _begin_claimed(self) -> None:
        claimed, calls = self._claimed, self._read_calls()
        self._claimed, self._calls = [], {}
        self._put_at = time.monotonic()
        for claim in claimed:
            if not self.held.holds(claim) or claim not in calls:
                continue  # the next heartbeat finds it lost
            try:
                run = self._run(calls[claim])
            except Exception as error:  # noqa: BLE001 - importing runs a project's code
                # A deploy may be under way, and another worker knows the function.
                self.held.put_off(claim, f"{error}")
                continue
            if self.outages.keeps(claim, run.task):
                continue
            self._runs[claim.id] = run
            if self._places is None:
                run.run()
                self._done.append(run)
            else:
                self._places.put(run)

    def _read_calls(self) -> dict[Claim, Call]:
        """Return what the claimed tasks are called with. Claims of suspects have not told."""
        left = {one.id: one for one in self._claimed if one not in self._calls}
        if left:
            rows = database.prepared(self._using, CALLS, ids=database.array(left))
            self._calls |= {left[row[0]]: Call(left[row[0]], *row[1:]) for row in rows}
        return self._calls

    def _give_back_waiting(self, *, may_begin: bool) -> None:
        """Give back what has found no place for a while: other workers may be free."""
        if self._places is None or not self._runs:
            return
        if may_begin and time.monotonic() < self._put_at + MAX_WAIT_SECONDS:
            return
        for run in self._places.take_back():
            self._places.ended(run)
            if self._runs.get(run.call.claim.id) is run:
                self.held.release(run.call.claim)

    def _end_overdue(self) -> None:
        """Give up runs whose time is up. Each costs an attempt, and a late result is discarded."""
        now = time.monotonic()
        for run in [run for run in self._runs.values() if _ends_at(run, now) <= now]:
            claim, seconds = run.call.claim, run.task.timeout
            events.tell(
                events.TASK_TIMED_OUT, function=claim.kind, job_id=claim.id, seconds=seconds
            )
            self._retry(run, f"builtins.TimeoutError: No end within {seconds:g} s")

    def _look_for_canceled(self) -> None:
        now = time.monotonic()
        if self._inline or not self._runs or now < self._looked_at + CANCELED_LOOK_SECONDS:
            return
        self._looked_at = now
        ids = database.array(self._runs)
        for [task_id] in database.prepared(self._using, CANCELED, ids=ids):
            if not self._runs[task_id].canceled_for:
                self._runs[task_id].cancel("A person has asked for it.")

    # How they end

    def complete(
        self, ours: Sequence[HeldJob], items: Mapping[int, int], *, keep_seconds: float, using: str
    ) -> Callable[[], Mapping[int, float]]:
        """End tasks, in the transaction that holds them."""
        ended = [job.result for job in ours if job.claim.id in items]
        return finishing.complete(ended, using=using)

    def failing(self, claim: Claim) -> Callable[[], object] | None:
        """Return what inserts the next run of a schedule."""
        try:
            task = results.declared(claim.kind)
        except InvalidTask:
            return None
        if getattr(task, "every", None) is None:
            return None
        started_at = claim.started_at
        return lambda: schedules.insert_next(task, started_at=started_at, using=self._using)

    def completed(self, done: Completion) -> None:
        """Count completed tasks."""
        self._count([(job.claim, done.waited.get(job.claim.id)) for job in done.completed])

    def drop(self, job_ids: Iterable[int]) -> None:
        """Give up runs whose tasks have ended otherwise, or are another worker's now."""
        for job_id in job_ids:
            run = self._runs.pop(job_id, None)
            if run is not None and run.outcome is None:
                run.is_given_up = True
                run.cancel(run.canceled_for or "The task is no longer this worker's.")
                if self._places is not None:
                    self._places.abandon(run)

    def awaited(self) -> Collection[int]:
        """Return the tasks that run: a worker that is to stop waits for them."""
        return [key for key, run in self._runs.items() if run.began_at is not None]

    @property
    def is_waiting(self) -> bool:
        """Whether a place will wake the loop."""
        return bool(self._runs)

    @property
    def has_unbegun(self) -> bool:
        """Whether there are claimed tasks that no place has."""
        return bool(self._claimed)

    @property
    def wait_seconds(self) -> float:
        """When runs are to be looked at, or a queue that waits."""
        seconds = self.outages.wait_seconds
        if not self._runs:
            return seconds
        now = time.monotonic()
        at = min(_ends_at(run, now) for run in self._runs.values())
        at = min(at, self._looked_at + CANCELED_LOOK_SECONDS)
        if self._done:
            at = min(at, self._hand_in_at)
        if len(self._runs) > self._concurrency:
            at = min(at, self._put_at + MAX_WAIT_SECONDS)
        return min(max(at - now, 0.001), seconds)

    @property
    def completing_itself(self) -> Collection[int]:
        """The ids of tasks that may just have been completed by their own threads."""
        return [key for key, run in self._runs.items() if run.is_completing]

    # Around the loop

    def prepare(self) -> None:
        """Make sure that kept results have a partition to go to, and forget past rates.

        Raises:
            ImproperlyConfigured: a policy may hide tasks from the worker.
        """
        [[may_be_hidden]] = database.rows(self._using, IS_POLICY_ACTIVE)
        if may_be_hidden:
            raise ImproperlyConfigured(
                "Row-level security may hide rows of pgembed_task from the worker's role, so that "
                "tasks would never run. Give it BYPASSRLS, or leave policies to your own tables."
            )
        records.make_partitions(using=self._using)
        limits.forget_past(using=self._using)

    def chores(self, is_stopping: Callable[[], bool]) -> tuple[Sequence[Chore], Sequence[Chore]]:
        """Return what deletes old rows, makes and drops partitions, and mends schedules."""
        retention = Retention(
            using=self._using,
            keep_seconds=conf.current().keep_succeeded_seconds,
            is_stopping=is_stopping,
        )
        restoring = Chore(SCHEDULES_SECONDS, self.restore_schedules)
        return [restoring, *retention.short], retention.long

    def restore_schedules(self) -> int:
        """Add runs of schedules that are missing."""
        return schedules.restore(using=self._using)

    def hindrances(self, *, for_people: bool = False) -> Hindrances:
        """Return the queues that wait for a provider or a person."""
        return self.outages.hindrances()

    def close(self) -> None:
        """Let the threads end, without waiting for what they run."""
        if self._places is not None:
            self._places.close()
            self._places = None

    @property
    def _hand_in_at(self) -> float:
        """Until when tasks that have ended wait for others. Never, if no others run."""
        is_all = len(self._done) >= len(self._runs)
        return float("-inf") if is_all else self._handed_in_at + HAND_IN_SECONDS

    def _run(self, call: Call) -> Run:
        function = call.claim.kind
        if function not in self._known:
            task = results.declared(function)
            is_async = inspect.iscoroutinefunction(task.func)
            self._known[function] = task, is_async, tenants.context_of(task)
        task, is_async, enter_tenant = self._known[function]
        return Run(
            call=call,
            task=task,
            using=self._application,
            is_async=is_async,
            max_attempts=getattr(task, "attempts", None) or self._settings.max_attempts,
            enter_tenant=enter_tenant,
            search_path=self._search_path if enter_tenant else "",
        )

    def _report(self, run: Run, outcome: Outcome) -> None:
        held, claim = self.held, run.call.claim
        if self.outages.ended(claim, run.task, outcome.error):
            return
        match outcome.end:
            case End.FINISHED:
                held.finish(claim, run.ended(outcome.result))
            case End.COMPLETED:
                self._count([(claim, run.waited)])
                held.completed_itself(claim)
            case End.AGAIN:
                held.release(claim, delay_seconds=outcome.seconds)
            case End.CANCELED:
                held.end(claim, canceled)
            case End.LOST:
                held.lose([claim.id])
            case End.PUT_OFF:
                held.put_off(claim, outcome.said)
            case End.FAILED:
                held.fail(claim, outcome.said)
            case End.CRASHED:
                held.crash(claim, outcome.said)
            case End.RETRY:
                self._retry(run, outcome.said)

    def _retry(self, run: Run, said: str) -> None:
        backoff = getattr(run.task, "backoff", None)
        self.held.retry(
            run.call.claim, said, max_attempts=run.max_attempts, backoff_seconds=backoff
        )

    def _count(self, ended: list[tuple[Claim, float | None]]) -> None:
        """Count completed tasks, each with how long it had been due when it started."""
        for claim, waited in ended:
            self.held.tally.completed(claim.spec, waited=waited)
        events.tell(events.TASKS_COMPLETED, about=ended, count=len(ended))

    # In the places' threads

    def _take_in(self, run: Run) -> None:
        now = time.monotonic()
        run.seconds = now - (now if run.began_at is None else run.began_at)
        self._done.append(run)
        count = len(self._done)
        if count == 1 or count == BATCH or count >= len(self._runs):
            self._wake()


def canceled(claim: Claim, *, using: str, table: Table) -> Ending:
    """End a task that has stopped because a person asked for it."""
    try:
        with database.giving_way(using):
            held = jobs.hold([claim], using=using, table=table)
            if held.ours:
                finishing.complete([Ended(claim.id)], using=using)()
                return Ending.CANCELED
            return Ending.BUSY if held.locked else Ending.LOST
    except database.Busy:
        return Ending.BUSY


def _ends_at(run: Run, now: float) -> float:
    """Return when a run's time is up. It begins with the run."""
    timeout = getattr(run.task, "timeout", None)
    if timeout is None:
        return float("inf")
    return float((now if run.began_at is None else run.began_at) + timeout)


def _application(using: str) -> str:
    """Return the alias that the application writes by, where workers have one of their own.

    Rows and completion commit together only over one connection.
    """
    return router.db_for_write(Task) if using == conf.current().worker_database else using
