"""Enqueue units at request: rows that changed unseen, or that a person wants embedded again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Manager, Model, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.db.models.query import ModelIterable
from psycopg import sql

from pgembed_django import store
from pgembed_django.core import database, postgres
from pgembed_django.core.adapting import halves, isolate
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job
from pgembed_django.models.job import PENDING, RUNNING
from pgembed_django.queue import jobs
from pgembed_django.spaces.coverage import LookedUp, jobs_of_row
from pgembed_django.spaces.ripples import UNIT
from pgembed_django.triggers import sql as functions

# What a trigger calls, with its rights: the application's role needs none on our tables.
ENQUEUE = "SELECT {function}(%(spec)s, %(path)s, %(source_pks)s::text[])"

AT_ONCE = 50
"""How many units to enqueue in one transaction: writers may have to wait for their jobs."""

MAX_BUSY = 20
"""How many times ``reembed`` waits for open writers before it leaves the rest."""


def enqueue(rows: QuerySet[Any] | Manager[Any], *, name: str | None = None) -> int:
    """Enqueue rows whose text has changed without their triggers noticing. Returns how many.

    That is part of the caller's transaction, and waits for no other: a worker adds the jobs. Rows
    that do not match ``when`` are left out, unless they have vectors: then a worker deletes these.
    A model that is decorated several times has a unit for each declaration, and ``name`` chooses
    one.

    Raises:
        TypeError: that is no queryset, or one that is sliced or of ``values()``.
        ImproperlyConfigured: the model is not embeddable, or its database is not PostgreSQL.
    """
    queryset = _queryset(rows)
    using = queryset.db
    if other := postgres.not_postgres(using, remedy="using()"):
        raise ImproperlyConfigured(other)
    function = sql.SQL(functions.qualified("pgembed_ripple_v1"))
    statement = sql.SQL(ENQUEUE).format(function=function).as_string(None)
    enqueued = 0
    for spec in specs.of(queryset.model, name=name):
        source_pks = _units_of(spec, queryset, using=using)
        # Not their jobs, which would stay locked until the transaction's end, although their rows
        # are not: writers who had nothing in common would wait for each other, or deadlock.
        database.rows(using, statement, spec=spec.key, path=UNIT, source_pks=source_pks)
        enqueued += len(source_pks)
    return enqueued


def _queryset(rows: object) -> QuerySet[Any]:
    """Return the queryset, of the database that its rows are written to."""
    queryset = rows.all() if isinstance(rows, Manager) else rows
    if not isinstance(queryset, QuerySet):
        kind = rows if isinstance(rows, type) else type(rows)
        model = kind.__name__ if issubclass(kind, Model) else "Article"
        raise TypeError(
            f"enqueue() takes a queryset, not {kind.__name__}. Write for instance "
            f"enqueue({model}.objects.filter(pk=...))."
        )
    if queryset.query.is_sliced:
        raise TypeError("Cannot enqueue a sliced queryset. Filter it instead.")
    if not issubclass(queryset._iterable_class, ModelIterable):  # noqa: SLF001
        raise TypeError("Cannot enqueue a queryset of values(). Leave values() out.")
    written: Any = queryset.all()
    written._for_write = True  # noqa: SLF001 - a replica may lag behind, and takes no jobs
    return queryset.using(written.db)


def _units_of(spec: Spec, queryset: QuerySet[Any], *, using: str) -> list[str]:
    """Return the source_pks of a queryset's rows, except of those that nothing is stored of."""
    keys = queryset.order_by().values("pk")
    keys.query.select_for_update = False
    # Neither what the base manager hides is left out, nor is a row twice that a join finds twice.
    rows: QuerySet[Any] = QuerySet(spec.model, using=using).filter(pk__in=keys)
    if spec.when:
        stored = spec.embedding_model._base_manager.filter(source_id=OuterRef("pk"))
        # A worker may have read the row before it ceased to match.
        matches = spec.when | Q(LookedUp(stored))
        for status in (PENDING, RUNNING):  # each has an index of its own
            matches |= Q(LookedUp(jobs_of_row(spec, status)))
        rows = rows.filter(matches)
    return list(rows.order_by("pk").values_list(Cast("pk", TextField()), flat=True))


class Reembedded(NamedTuple):
    """How many units were enqueued, and the source_pks of those that writers had locked."""

    enqueued: int
    busy: Sequence[str]


def reembed(
    spec: Spec, source_pks: Iterable[str], *, using: str, wait: str = database.SHORTLY
) -> Reembedded:
    """Enqueue units to be embedded again. Until then, searches find their old vectors.

    ``wait``: how long to wait at most, each time that an open writer has locked some of them.
    If that happens often, some units that are not locked are also returned as ``busy``.
    """
    wanted = list(dict.fromkeys(source_pks))
    waits = 0
    busy: list[str] = []

    def attempt(some: Sequence[str]) -> list[Sequence[str]]:
        nonlocal waits
        if waits < MAX_BUSY and _reembed(spec, some, using=using, wait=wait):
            return []
        waits += 1
        if waits < MAX_BUSY and (apart := halves(some)):
            return apart
        busy.extend(some)
        return []

    # First all pieces, then the halves of the busy ones.
    isolate(attempt, *(wanted[n : n + AT_ONCE] for n in range(0, len(wanted), AT_ONCE)))
    enqueued = len(wanted) - len(busy)
    if enqueued:
        jobs.nudge(using=using)
    return Reembedded(enqueued, busy)


def _reembed(spec: Spec, source_pks: Sequence[str], *, using: str, wait: str) -> bool:
    """Enqueue all of these units, or return False if an open writer has locked one."""
    try:
        with database.giving_way(using, wait=wait):
            # Enqueue first, in the order of a delete: it locks the pending jobs, so that no worker
            # starts one meanwhile.
            # As a gap: nobody has written the rows, so stale="hide" must not hide them meanwhile.
            kind, priority = Job.Kind.BACKFILL, spec.priority
            jobs.enqueue_again(spec.key, source_pks, kind=kind, priority=priority, using=using)
            # Cancel running jobs: their plans reuse vectors that are invalidated below.
            jobs.supersede_running(spec.key, source_pks, using=using)
            store.outdate(spec, source_pks, using=using)
    except database.Busy:
        return False
    return True
