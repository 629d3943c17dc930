"""Where jobs are, what a claim is, and how a statement proves that it still holds its job.

Rows are locked with SKIP LOCKED: nothing here waits for anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import QuerySet

from pgembed_django.core import database, signature
from pgembed_django.models.job import Job


@dataclass(frozen=True, slots=True)
class Table:
    """A table of jobs. Its conditions compare ``job`` with another row of the table."""

    model: type[Any]
    newer: str = "newer.spec = job.spec AND newer.source_pk = job.source_pk"
    """What is true of the row that supersedes a job, if it is pending."""
    beside: str = "other.spec = job.spec AND other.source_pk = job.source_pk"
    """What is true of a row that must not run at the same time."""
    has_units: bool = True
    """Whether several rows may be about one unit, which has one open failure at most."""

    @property
    def name(self) -> str:
        """The table's name in the database."""
        return str(self.model._meta.db_table)

    def of(self, specs: Sequence[str], *, using: str) -> QuerySet[Any]:
        """Return the rows of some specs."""
        column = {field.column: field.name for field in self.model._meta.fields}["spec"]
        rows: QuerySet[Any] = self.model.objects.using(using)
        return rows.filter(**{f"{column}__in": specs})

    def signature(self, error: str) -> str:
        """Return what errors of one kind share. Those of tasks go on with a traceback."""
        return signature.of(error if self.has_units else error.partition("\n")[0])

    @functools.cache  # noqa: B019 - there are two tables, for ever
    def __call__(self, statement: str) -> str:
        """Return a statement that was written for ``pgembed_job``, for this table."""
        statement = statement.replace("{newer}", self.newer).replace("{beside}", self.beside)
        return statement.replace("pgembed_job", self.name)


JOBS = Table(Job)

# In the order of the fields of ``Claim``.
COLUMNS = """
        job.id,
        job.claims,
        job.started_at::text,
        job.spec,
        job.source_pk,
        job.kind,
        job.priority,
        -- Renamed, so that ORDER BY run_at sorts by time, not by text.
        job.run_at::text AS due,
        job.attempts,
        job.crashes,
        job.outages,
        job.traceparent
"""


class Claim(NamedTuple):
    """A job that a worker holds. ``token`` counts its claims, so a later claim has a higher one.

    ``started_at`` is part of the fence, too: after a TRUNCATE that restarts the ids, a later
    claim may have the same id and token.
    """

    id: int
    token: int
    started_at: str
    """As Postgres writes it, because it is only sent back. The same goes for ``run_at``."""
    spec: str
    source_pk: str
    kind: str
    priority: int
    run_at: str
    attempts: int
    crashes: int
    outages: int
    traceparent: str | None = None
    """The trace that the job belongs to, in W3C's form."""


class Held(NamedTuple):
    """The state of claims, as job ids: ours; ours, but locked by an open writer; lost."""

    ours: frozenset[int]
    locked: frozenset[int]
    lost: frozenset[int]


def claims(statement: str, *, using: str, table: Table = JOBS, **parameters: Any) -> list[Claim]:
    """Run a statement that returns the columns of a claim."""
    statement = table(statement.replace("{columns}", COLUMNS.strip()))
    return [*starmap(Claim, database.prepared(using, statement, **parameters))]


def unlocked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Lock rows without waiting, until the transaction ends. Return those that were free."""
    keys = list(rows.select_for_update(skip_locked=True).values_list("pk", flat=True))
    # By keys: a plan might run a subquery with a LIMIT again for each row.
    free: QuerySet[Any] = rows.model._base_manager.using(rows.db).filter(pk__in=keys)
    return free


# OFFSET 0 makes the plan, which is kept, look each job up by its id. A job with a lease is running;
# asking for the status instead would let Postgres walk the index of all running jobs.
FENCED = """
    SELECT held.id
    FROM unnest(
        %(ids)s::bigint[], %(tokens)s::int[], %(started_at)s::timestamptz[]
    ) AS held(id, token, started_at)
    CROSS JOIN LATERAL (
        SELECT
        FROM pgembed_job AS job
        WHERE job.id = held.id
          AND job.claims = held.token
          AND job.started_at = held.started_at
          AND job.lease_expires_at IS NOT NULL
        OFFSET 0
        {locked}
    ) AS job
"""
HOLD = FENCED.format(locked="FOR NO KEY UPDATE SKIP LOCKED")
HOLD_WAITING = FENCED.format(locked="FOR NO KEY UPDATE")
STILL_OURS = FENCED.format(locked="")


def hold(held: Collection[Claim], *, using: str, table: Table = JOBS, waits: bool = False) -> Held:
    """Lock the jobs that are still ours until the transaction ends.

    ``waits``: also for others that have locked them. Only where nothing else is locked yet.
    """
    fences = {
        "ids": database.array([claim.id for claim in held]),
        "tokens": database.array([claim.token for claim in held]),
        "started_at": database.array([claim.started_at for claim in held]),
    }
    every = frozenset({claim.id for claim in held})
    ours = frozenset(
        {
            row[0]
            for row in database.prepared(using, table(HOLD_WAITING if waits else HOLD), **fences)
        }
    )
    if ours == every:
        return Held(ours, frozenset(), frozenset())
    still = frozenset(row[0] for row in database.rows(using, table(STILL_OURS), **fences))
    return Held(ours, still - ours, every - still - ours)


HEARTBEAT = """
    UPDATE pgembed_job
    SET lease_expires_at = statement_timestamp() + %(lease)s * interval '1 second'
    WHERE id = ANY(%(ids)s)
"""


def heartbeat(
    held: Collection[Claim], *, lease_seconds: float, using: str, table: Table = JOBS
) -> Held:
    """Renew the leases. Jobs that an open writer has locked are left to the next heartbeat."""
    with transaction.atomic(using=using):
        found = hold(held, using=using, table=table)
        database.execute(using, table(HEARTBEAT), ids=list(found.ours), lease=lease_seconds)
    return found


PROGRESS = """
    UPDATE pgembed_job AS job
    SET items_done = now.done, items_total = now.total
    FROM unnest(%(ids)s::bigint[], %(done)s::int[], %(total)s::int[]) AS now(id, done, total)
    WHERE job.id = now.id
      AND job.id = ANY(%(ids)s::bigint[])
"""


def note_progress(progress: Mapping[int, tuple[int, int]], *, using: str) -> None:
    """Note how many items of how many are done, by job id. Call it where the jobs are held."""
    done, total = zip(*progress.values(), strict=True) if progress else ((), ())
    database.execute(using, PROGRESS, ids=list(progress), done=list(done), total=list(total))


# The reaper has noted the claim's own crash, if it counted one. SKIP LOCKED: a writer's pending
# job begins afresh anyway.
ABSOLVE = """
    WITH charged AS (
        SELECT job.id, job.spec, job.source_pk, held.started_at
        FROM unnest(%(ids)s::bigint[], %(started_at)s::timestamptz[]) AS held(id, started_at)
        JOIN pgembed_job AS job ON job.id = held.id
        WHERE job.status IN ('pending', 'running')
          AND job.crashes > 0
        FOR NO KEY UPDATE OF job SKIP LOCKED
    ),
    noted AS (
        DELETE FROM pgembed_attempt AS attempt
        USING charged
        WHERE attempt.spec = charged.spec
          AND attempt.source_pk = charged.source_pk
          AND attempt.started_at = charged.started_at
          AND attempt.outcome = 'crashed'
        RETURNING charged.id
    )
    UPDATE pgembed_job
    SET crashes = crashes - 1, last_error = ''
    WHERE id IN (SELECT id FROM noted)
"""


def absolve(lost: Collection[Claim], *, using: str, table: Table = JOBS) -> None:
    """Take back the crashes of jobs that were lost while the database was away.

    Their worker lives: it could not renew their leases. Only until they have ended.
    """
    database.execute(
        using,
        table(ABSOLVE),
        ids=[claim.id for claim in lost],
        started_at=database.array([claim.started_at for claim in lost]),
    )
