"""Add jobs, and wake sleeping workers. The triggers do the same in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from django.db.models import Q
from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models.job import PENDING, RUNNING, UNSETTLED, Job

CHANNEL = "pgembed"

# As in the triggers: a transaction that notifies while the cluster's queue is full cannot commit.
NUDGE = """
    SELECT pg_notify(%(channel)s, '')
    WHERE pg_notification_queue_usage() < 0.5
"""


def nudge(*, using: str) -> None:
    """Let workers look for jobs now rather than at their next poll."""
    database.rows(using, NUDGE, channel=CHANNEL)


def free(spec: str, source_pks: Sequence[str], *, using: str) -> list[str]:
    """Return the units without an unfinished job, whose failure is not parked."""
    units = Job.objects.using(using).filter(spec=spec, source_pk__in=source_pks)
    taken = units.filter(PENDING | RUNNING | (UNSETTLED & Q(run_at__gt=Now())))
    return [*{*source_pks}.difference(taken.values_list("source_pk", flat=True))]


MAX_BUSY = 20
"""How many brief waits for open writers ``enqueue`` makes before it leaves the rest.

It may run in a transaction, and then other writers wait for the jobs that it has added.
"""

# In key order, like every other writer of several jobs.
INSERT = """
    INSERT INTO pgembed_job AS job (spec, source_pk, kind, is_awaited, priority)
    SELECT %(spec)s, source_pk, %(kind)s, %(is_awaited)s, %(priority)s
    FROM unnest(%(source_pks)s::text[]) AS unit(source_pk)
    ORDER BY source_pk
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
"""
ENQUEUE = INSERT + "DO NOTHING"

# A pending job comes forward and starts afresh. It keeps its last error, for people to read. What
# was only a gap until now becomes what is awaited: its row may have been written.
DUE_NOW = """
    DO UPDATE SET
        kind = CASE WHEN excluded.is_awaited > job.is_awaited THEN excluded.kind ELSE job.kind END,
        created_at = CASE
            WHEN excluded.is_awaited > job.is_awaited THEN excluded.created_at
            ELSE job.created_at
        END,
        is_awaited = job.is_awaited OR excluded.is_awaited,
        run_at = LEAST(job.run_at, excluded.run_at),
        priority = GREATEST(job.priority, excluded.priority),
        attempts = 0,
        crashes = 0,
        outages = 0
"""
ENQUEUE_AGAIN = INSERT + DUE_NOW

# What workers read before, and what failed or was dismissed, may be of former texts. In key order.
ENQUEUE_DOUBTFUL = """
    INSERT INTO pgembed_job AS job (spec, source_pk, kind, is_awaited, priority)
    SELECT DISTINCT spec, source_pk, %(kind)s, %(is_awaited)s, %(priority)s::int
    FROM pgembed_job
    WHERE spec = %(spec)s
      AND (status = 'running' OR status IN ('failed', 'dismissed') AND settled_at IS NULL)
    ORDER BY source_pk
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO NOTHING
"""

# What an open writer of the row has locked is left to the next expansion: should the writer's
# transaction be rolled back, so is its job. A job is written only if that makes a difference.
ENQUEUE_RELATED = (
    ENQUEUE_AGAIN
    + """
    WHERE job.run_at > excluded.run_at
       OR job.priority < excluded.priority
       OR NOT job.is_awaited
       OR job.attempts + job.crashes + job.outages > 0
"""
)


def enqueue(spec: str, source_pks: Sequence[str], *, kind: str, priority: int, using: str) -> int:
    """Add jobs for units that have no pending one. Returns how many were added.

    A unit whose writer's transaction is open is left to that writer's job. If there are many
    such units, some of the others are left to the next call, too.
    """
    return enqueue_unlocked(spec, source_pks, kind=kind, priority=priority, using=using)[0]


def enqueue_unlocked(
    spec: str, source_pks: Sequence[str], *, kind: str, priority: int, using: str
) -> tuple[int, list[str]]:
    """Add jobs like ``enqueue``. Returns how many were added, and the units that are left."""
    return _add_free(ENQUEUE, spec, source_pks, kind, priority, using)


def enqueue_related(
    spec: str, source_pks: Sequence[str], *, priority: int, using: str
) -> list[str]:
    """Ensure that units have a pending job that is due, as related rows have changed.

    Returns those that are left, as ``enqueue`` leaves some.
    """
    kind = Job.Kind.RIPPLE
    return _add_free(ENQUEUE_RELATED, spec, source_pks, kind, priority, using)[1]


def _add_free(
    statement: str, spec: str, source_pks: Sequence[str], kind: str, priority: int, using: str
) -> tuple[int, list[str]]:
    """Add jobs where no open writer has locked one. Return how many, and the units left."""
    added = busy = 0
    left: list[str] = []
    pieces = [list(source_pks)] if source_pks else []
    while pieces and busy < MAX_BUSY:
        piece = pieces.pop()
        try:
            with database.giving_way(using, wait=database.BRIEFLY):
                added += _insert(statement, spec, piece, kind, priority, using)
        except database.Busy:
            busy += 1
            middle = len(piece) // 2
            if middle:
                pieces += [piece[middle:], piece[:middle]]
            else:
                left += piece
    return added, [*left, *chain.from_iterable(pieces)]


def enqueue_again(
    spec: str, source_pks: Sequence[str], *, kind: str, priority: int, using: str
) -> None:
    """Ensure that each unit has a pending job that is due now. Call it in a transaction."""
    _insert(ENQUEUE_AGAIN, spec, list(source_pks), kind, priority, using)


def enqueue_doubtful(spec: str, *, kind: str, priority: int, using: str) -> None:
    """Ensure that each unit with a running job or an unsettled failure has a pending one, too.

    Its row may have been written since, without a job for that. Call it in a transaction.
    """
    database.execute(
        using,
        ENQUEUE_DOUBTFUL,
        spec=spec,
        kind=kind,
        is_awaited=Job.Kind(kind).is_awaited,
        priority=Job.Kind(kind).priority(priority),
    )


def _insert(
    statement: str, spec: str, source_pks: list[str], kind: str, priority: int, using: str
) -> int:
    return database.execute(
        using,
        statement,
        spec=spec,
        source_pks=source_pks,
        kind=kind,
        is_awaited=Job.Kind(kind).is_awaited,
        priority=Job.Kind(kind).priority(priority),
    )
