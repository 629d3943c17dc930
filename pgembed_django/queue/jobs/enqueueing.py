"""Add jobs for gaps, and wake sleeping workers. The triggers do the same in SQL.

What people ask for is in ``triage``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgembed_django import database
from pgembed_django.queue.jobs.claims import priority_of

CHANNEL = "pgembed"

# As in the triggers: a transaction that notifies while the cluster's queue is full cannot commit.
NUDGE = """
    SELECT pg_notify(%(channel)s, '')
    WHERE pg_notification_queue_usage() < 0.5
"""


FREE = """
    SELECT source_pk
    FROM unnest(%(source_pks)s::text[]) AS unit(source_pk)
    WHERE NOT EXISTS (
        SELECT
        FROM pgembed_job AS job
        WHERE job.spec = %(spec)s
          AND job.source_pk = unit.source_pk
          AND job.status = 'pending'
    )
      AND NOT EXISTS (
        SELECT
        FROM pgembed_job AS job
        WHERE job.spec = %(spec)s
          AND job.source_pk = unit.source_pk
          AND job.status = 'running'
    )
      AND NOT EXISTS (
        SELECT
        FROM pgembed_job AS job
        WHERE job.spec = %(spec)s
          AND job.source_pk = unit.source_pk
          AND job.status IN ('failed', 'dismissed')
          AND job.settled_at IS NULL
          AND job.run_at > statement_timestamp()
    )
"""


def free(spec: str, source_pks: Sequence[str], *, using: str) -> list[str]:
    """Return the units without an unfinished job, whose failure is not parked."""
    found = database.rows(using, FREE, spec=spec, source_pks=list(source_pks))
    return [source_pk for [source_pk] in found]


def nudge(*, using: str) -> None:
    """Let workers look for jobs now rather than at their next poll."""
    database.rows(using, NUDGE, channel=CHANNEL)


MAX_BUSY = 20
"""How many brief waits for open writers ``enqueue`` makes before it leaves the rest.

It may run in a transaction, and then other writers wait for the jobs that it has added.
"""

# In key order, like every other writer of several jobs.
ENQUEUE = """
    INSERT INTO pgembed_job (spec, source_pk, kind, priority)
    SELECT %(spec)s, source_pk, %(kind)s, %(priority)s
    FROM unnest(%(source_pks)s::text[]) AS unit(source_pk)
    ORDER BY source_pk
    ON CONFLICT (spec, source_pk) WHERE status = 'pending'
    DO NOTHING
"""


def enqueue(spec: str, source_pks: Sequence[str], *, kind: str, priority: int, using: str) -> int:
    """Add jobs for units that have no pending one. Returns how many were added.

    A unit whose writer's transaction is open is left to that writer's job. If there are many
    such units, some of the others are left to the next call, too.
    """
    added = busy = 0
    pieces = [list(source_pks)] if source_pks else []
    while pieces and busy < MAX_BUSY:
        piece = pieces.pop()
        try:
            with database.giving_way(using, wait=database.BRIEFLY):
                added += database.execute(
                    using,
                    ENQUEUE,
                    spec=spec,
                    kind=kind,
                    priority=priority_of(kind, priority),
                    source_pks=piece,
                )
        except database.Busy:
            busy += 1
            middle = len(piece) // 2
            if middle:
                pieces += [piece[middle:], piece[:middle]]
    return added
