"""How many tasks of a queue, and of each tenant in it, may run at once and start in a minute.

A claim of a queue with limits counts what runs, in a transaction that keeps all other claims of
this queue away. A claim that meets another one takes nothing, and comes again soon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from pgembed_django.core import database, locks
from pgembed_django.queue.jobs import Claim
from pgembed_django.tasks import api

SAVED_SECONDS = 1.0
"""How many seconds of an unused limit per minute may be saved up and then used at once."""

MINUTE_SECONDS = 60 + SAVED_SECONDS
"""How long a minute's tasks must last, so that no minute exceeds the limit even with saved ones."""

NAMES = ("concurrency", "per_minute", "tenant_concurrency", "tenant_per_minute")

UNLIMITED = 2**31 - 1

RUNNING = """
    SELECT tenant, count(*)
    FROM pgembed_task
    WHERE status = 'running'
      AND spec = %(queue)s
    GROUP BY tenant
"""

# How long ago the next task could have started.
LATE = """
    SELECT tenant, extract(epoch FROM statement_timestamp() - free_at)::float8
    FROM pgembed_taskrate
    WHERE queue = %(queue)s
      AND (tenant IS NULL OR tenant = ANY(%(tenants)s))
"""

CHARGE = """
    INSERT INTO pgembed_taskrate AS rate (queue, tenant, free_at)
    SELECT
        %(queue)s,
        tenant,
        statement_timestamp() + (seconds - %(saved)s) * interval '1 second'
    FROM unnest(%(tenants)s::text[], %(seconds)s::float8[]) AS started(tenant, seconds)
    ON CONFLICT (queue, tenant) DO UPDATE SET
        free_at = excluded.free_at + GREATEST(
            rate.free_at - (statement_timestamp() - %(saved)s * interval '1 second'),
            interval '0'
        )
"""

# A row of the past says the same as none.
FORGET = """
    DELETE FROM pgembed_taskrate
    WHERE free_at < statement_timestamp() - %(saved)s * interval '1 second'
"""

TENANT = "SELECT tenant FROM pgembed_task WHERE id = %(id)s"


class Exceeded(Exception):
    """A suspect was started beyond its tenant's limit: the transaction is rolled back."""


class Limits(NamedTuple):
    """The limits of a queue, as in ``OPTIONS["limits"]``. None: there is none."""

    concurrency: int | None = None
    per_minute: int | None = None
    tenant_concurrency: int | None = None
    tenant_per_minute: int | None = None


def declared() -> dict[str, Limits]:
    """Return the limits of the queues that have some.

    Raises:
        ImproperlyConfigured: those of a queue are not as documented.
    """
    from pgembed_django.tasks.backend import PostgresBackend

    found: dict[str, Limits] = {}
    for backend in api.task_backends.all():
        if isinstance(backend, PostgresBackend):
            for said in problems(backend.options.get("limits", {}), backend.queues):
                raise ImproperlyConfigured(f"TASKS[{backend.alias!r}]: {said}")
            declared = backend.options.get("limits", {})
            found |= {queue: Limits(**given) for queue, given in declared.items() if given}
    return found


def problems(declared: object, queues: Sequence[str] | set[str]) -> Iterator[str]:
    """Yield what is wrong with ``OPTIONS["limits"]``, for people."""
    if not isinstance(declared, Mapping):
        yield f"OPTIONS['limits'] is {declared!r}. Give a dict of each queue's limits."
        return
    names = ", ".join(NAMES)
    for queue, given in declared.items():
        if queue not in queues:
            yield f"OPTIONS['limits'] names the queue {queue!r}. Add it to QUEUES, or leave it out."
        if not isinstance(given, Mapping):
            yield f"OPTIONS['limits'][{queue!r}] is {given!r}. Give a dict with: {names}."
            continue
        for name, most in given.items():
            where = f"OPTIONS['limits'][{queue!r}]"
            if name not in NAMES:
                yield f"{where} has {name!r}. Choose from: {names}."
            elif most is not None and (type(most) is not int or most < 1):
                yield f"{where}[{name!r}] is {most!r}. Give a whole number from 1 on, or None."


class Room:
    """How many more tasks of one queue may start now."""

    def __init__(self, queue: str, limits: Limits, *, using: str) -> None:
        self._queue = queue
        self._limits = limits
        self._using = using
        self._running = Counter[str](dict(database.rows(using, RUNNING, queue=queue)))
        self.free = self._free()

    def of_tenants(self, tenants: Sequence[str]) -> dict[str, int]:
        """Return how many more tasks of each tenant may start now."""
        limits = self._limits
        most = dict.fromkeys(tenants, self.free)
        if limits.tenant_concurrency:
            for tenant in tenants:
                free = limits.tenant_concurrency - self._running[tenant]
                most[tenant] = min(most[tenant], max(free, 0))
        if limits.tenant_per_minute:
            late = self._late(tenants)
            for tenant in tenants:
                due = _due(limits.tenant_per_minute, late.get(tenant))
                most[tenant] = min(most[tenant], due)
        return most

    def take(self, tenants: Sequence[str]) -> None:
        """Count tasks that were started, by their tenants."""
        if not tenants:
            return
        counts = Counter(tenants)
        self._running.update(counts)
        charged: dict[str | None, float] = {}
        if per_minute := self._limits.per_minute:
            charged[None] = len(tenants) * MINUTE_SECONDS / per_minute
        if per_minute := self._limits.tenant_per_minute:
            charged |= {one: n * MINUTE_SECONDS / per_minute for one, n in counts.items()}
        if charged:
            database.execute(
                self._using,
                CHARGE,
                queue=self._queue,
                tenants=list(charged),
                seconds=list(charged.values()),
                saved=SAVED_SECONDS,
            )
        self.free = self._free()

    def take_suspect(self, claim: Claim) -> None:
        """Count a suspect that was started.

        Raises:
            Exceeded: its tenant has no room.
        """
        [[tenant]] = database.rows(self._using, TENANT, id=claim.id)
        if self.of_tenants([tenant])[tenant] < 1:
            raise Exceeded
        self.take([tenant])

    def _free(self) -> int:
        limits, free = self._limits, UNLIMITED
        if limits.concurrency:
            free = max(limits.concurrency - self._running.total(), 0)
        if limits.per_minute:
            free = min(free, _due(limits.per_minute, self._late([]).get(None)))
        return free

    def _late(self, tenants: Sequence[str]) -> dict[str | None, float]:
        given = {"queue": self._queue, "tenants": list(tenants)}
        return dict(database.rows(self._using, LATE, **given))


def _due(per_minute: int, late: float | None) -> int:
    """Return how many tasks may start, if the next could have started ``late`` seconds ago."""
    seconds = MINUTE_SECONDS / per_minute
    if late is None or late < -2 * (seconds + SAVED_SECONDS):
        late = SAVED_SECONDS  # none has started yet, or the clock was set back since
    return 0 if late < 0 else int(min(late, SAVED_SECONDS) / seconds) + 1


def forget_past(*, using: str) -> int:
    """Forget the tenants that have started nothing lately. Returns how many there were."""
    return database.execute(using, FORGET, saved=SAVED_SECONDS)


@contextmanager
def room(queue: str, limits: Limits, *, using: str) -> Iterator[Room | None]:
    """Begin a claim of a queue with limits, and yield its room. Nobody else claims meanwhile.

    If another worker does so now, there is no room.
    """
    is_outermost = not connections[using].in_atomic_block
    # The counts are read by later statements: they see what the last claim has committed.
    with locks.transaction_lock(f"pgembed_task {queue}", using=using) as is_first:
        if is_outermost:
            database.execute(using, database.BY_KEPT_PLANS)
        found = Room(queue, limits, using=using)
        if not is_first:
            found.free = 0
        yield found
