"""How a running job ends: complete, retry, release, fail, reap.

``complete`` relies on ``hold``, called before it in the same transaction. Each other end is a
compare-and-set on (id, running, claim token and time), in a transaction of its own that waits for
nobody, so that no writer can become the victim of a deadlock.

If the unit has a newer pending job, that one supersedes the running one, which need neither come
back nor fail: the newer one will read the row anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models.functions import Now
from django.utils.text import Truncator

from pgembed_django.core import database, postgres, signature, text
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import UNSETTLED, Ending, Job
from pgembed_django.queue.jobs.claims import Lease
from pgembed_django.queue.jobs.leases import JOBS, Claim, Table, claims

COMPLETE = """
    WITH settled AS (
        UPDATE pgembed_job
        SET settled_at = statement_timestamp()
        WHERE settled_at IS NULL
          -- The status is tested inside, where the index of all open failures is no help.
          AND id = ANY(ARRAY(
              SELECT failure.id
              FROM unnest(%(ids)s::bigint[]) AS done(id)
              CROSS JOIN LATERAL (
                  SELECT spec, source_pk FROM pgembed_job WHERE id = done.id OFFSET 0
              ) AS unit
              CROSS JOIN LATERAL (
                  SELECT id
                  FROM pgembed_job
                  WHERE spec = unit.spec
                    AND source_pk = unit.source_pk
                    AND status IN ('failed', 'dismissed')
                    AND settled_at IS NULL
                  OFFSET 0
              ) AS failure
          ))
    ),
    deleted AS (
        DELETE FROM pgembed_job
        WHERE id = ANY(%(ids)s::bigint[])
          AND NOT (%(keep)s AND is_awaited)
    ),
    kept AS (
        UPDATE pgembed_job AS job
        SET
            status = 'succeeded',
            worker_id = NULL,
            lease_expires_at = NULL,
            finished_at = statement_timestamp(),
            last_error = '',
            items_done = done.items,
            items_total = done.items
        FROM unnest(%(ids)s::bigint[], %(items)s::int[]) AS done(id, items)
        WHERE job.id = done.id
          -- However the two are joined: the plan is kept.
          AND job.id = ANY(%(ids)s::bigint[])
          AND %(keep)s
          AND is_awaited
    )
    -- How long those who wait have waited for the results, which commit in a moment.
    SELECT id, extract(epoch FROM statement_timestamp() - created_at)::float8
    FROM pgembed_job
    WHERE id = ANY(%(ids)s::bigint[])
      AND is_awaited
"""


def complete(
    items: dict[int, int], *, keep_seconds: float, using: str
) -> database.Read[dict[int, float]]:
    """Finish held jobs, given as id -> items, and settle their units' open failures.

    Call it in the transaction that holds the jobs and has stored their results. Returns a
    function that reads how many seconds each awaited job has waited for its result, by id.
    """
    read = database.send_prepared(
        using,
        COMPLETE,
        ids=database.array(items),
        items=database.array(items.values()),
        keep=keep_seconds > 0,
    )
    return lambda: dict(read())


# Proves that a job still belongs to the claim.
OURS = """
        job.id = %(id)s
    AND job.claims = %(token)s
    AND job.started_at = %(started_at)s::timestamptz
    AND job.status = 'running'
    -- The lease may have been renewed since the reaper's look.
    AND (NOT %(is_expired)s OR job.lease_expires_at < statement_timestamp())
"""

# Rows are looked up by id, or by unit: a join may be planned to read all pending jobs.
SUPERSEDE = """
    WITH job AS MATERIALIZED (
        SELECT job.*, newer.id AS newer_id
        FROM pgembed_job AS job
        CROSS JOIN LATERAL (
            SELECT id
            FROM pgembed_job AS newer
            WHERE {newer}
              AND newer.status = 'pending'
            OFFSET 0
        ) AS newer
        WHERE {which}
        FOR UPDATE OF job
    ),
    -- A gap's job, which the reconciler or a backfill has added meanwhile, becomes the write's.
    raised AS (
        UPDATE pgembed_job AS newer
        SET
            kind = job.kind,
            is_awaited = job.is_awaited,
            priority = GREATEST(newer.priority, job.priority),
            created_at = LEAST(newer.created_at, job.created_at)
        FROM job
        WHERE newer.id = job.newer_id
          AND newer.id = ANY(ARRAY(SELECT newer_id FROM job))
          AND newer.is_awaited <= job.is_awaited
          AND (newer.priority < job.priority OR newer.is_awaited < job.is_awaited)
    )
    DELETE FROM pgembed_job
    WHERE id = ANY(ARRAY(SELECT id FROM job))
    RETURNING id
"""
SUPERSEDE_OURS = SUPERSEDE.replace("{which}", OURS.strip())
SUPERSEDE_RUNNING = SUPERSEDE.replace(
    "{which}",
    "job.spec = %(spec)s AND job.source_pk = ANY(%(source_pks)s) AND job.status = 'running'",
)

# Before the job changes, while it still has its worker. Locks the job.
NOTE = """
    INSERT INTO pgembed_attempt (spec, source_pk, outcome, started_at, worker, error)
    SELECT
        job.spec,
        job.source_pk,
        %(outcome)s,
        COALESCE(job.started_at, job.created_at),
        COALESCE(worker.host || ':' || worker.pid, '#' || job.worker_id),
        %(error)s
    FROM pgembed_job AS job
    LEFT JOIN pgembed_worker AS worker
      ON worker.id = job.worker_id
    WHERE {ours}
    FOR UPDATE OF job
""".replace("{ours}", OURS.strip())

END = """
    UPDATE pgembed_job AS job
    SET
        status = %(status)s,
        worker_id = NULL,
        lease_expires_at = NULL,
        finished_at = CASE WHEN %(status)s = 'failed' THEN statement_timestamp() END,
        attempts = attempts + %(attempts)s,
        crashes = crashes + %(crashes)s,
        outages = outages + %(outages)s,
        parkings = COALESCE(%(parkings)s, parkings),
        -- A gap of a row whose write has failed: searches with stale="hide" go on hiding it.
        is_awaited = is_awaited OR %(is_awaited)s,
        last_error = COALESCE(%(error)s, last_error),
        signature = %(signature)s,
        -- Of a failure: until then the reconciler leaves the unit alone.
        run_at = statement_timestamp() + %(delay)s * interval '1 second'
    WHERE {ours}
""".replace("{ours}", OURS.strip())

MAX_ERROR_CHARACTERS = 2000
PARKING_SECONDS = 3600
MAX_PARKING_SECONDS = 7 * 86400


def retry(
    claim: Claim,
    error: str,
    *,
    max_attempts: int,
    delay_seconds: float,
    using: str,
    table: Table = JOBS,
    also: Callable[[], object] | None = None,
) -> Ending:
    """Spend an attempt. The job is due again after a backoff, or fails if it was the last one."""
    if claim.attempts + 1 >= max_attempts:
        return fail(claim, error, using=using, table=table, also=also)
    outcome, delay = Attempt.Outcome.RETRIED, delay_seconds
    return _end(claim, error, using=using, outcome=outcome, attempts=1, delay=delay, table=table)


def release(
    claim: Claim,
    *,
    using: str,
    delay_seconds: float = 0,
    reason: str | None = None,
    outages: int = 0,
    table: Table = JOBS,
) -> Ending:
    """Move the job back to pending without spending an attempt."""
    outcome = Attempt.Outcome.OUTAGE if outages else None
    return _end(
        claim,
        reason or None,
        using=using,
        outcome=outcome,
        outages=outages,
        delay=delay_seconds,
        table=table,
    )


def fail(
    claim: Claim,
    error: str,
    *,
    using: str,
    table: Table = JOBS,
    also: Callable[[], object] | None = None,
) -> Ending:
    """Turn the job into an open failure and park its unit, unless newer work supersedes it."""
    outcome = Attempt.Outcome.FAILED
    return _end(claim, error, using=using, outcome=outcome, attempts=1, table=table, also=also)


EXPIRED = """
    SELECT {columns}
    FROM pgembed_job AS job
    WHERE status = 'running'
      AND lease_expires_at < statement_timestamp()
      -- The worker that asks runs, so it renews its own: after its machine has slept, say.
      AND (
          worker_id IS DISTINCT FROM %(own)s
          OR lease_expires_at < statement_timestamp() - %(lease)s * interval '1 second'
      )
    ORDER BY id
    LIMIT %(limit)s
    -- Jobs that an open delete has locked will soon be gone, or free again.
    FOR UPDATE SKIP LOCKED
"""


def reap(
    *,
    max_crashes: int,
    using: str,
    limit: int = 1000,
    own: Lease | None = None,
    table: Table = JOBS,
) -> list[tuple[Claim, Ending]]:
    """Take jobs with expired leases back, and count a crash of each. Returns how each ended.

    A worker that was frozen may be back meanwhile: it keeps those that it renews first. ``own``:
    the lease of the worker that asks, whose own jobs are taken back a whole lease later.
    """
    expired = claims(
        EXPIRED,
        using=using,
        table=table,
        limit=limit,
        own=own and own.worker_id,
        lease=own.seconds if own else 0,
    )
    return [
        (one, reap_one(one, max_crashes=max_crashes, using=using, is_expired=True, table=table))
        for one in expired
    ]


def reap_one(
    claim: Claim,
    error: str = "worker lost",
    *,
    max_crashes: int,
    using: str,
    is_expired: bool = False,
    table: Table = JOBS,
    also: Callable[[], object] | None = None,
) -> Ending:
    """Take one job from its worker, and count a crash. Returns how it ended."""
    is_last = claim.crashes + 1 >= max_crashes
    return _end(
        claim,
        error,
        using=using,
        outcome=Attempt.Outcome.FAILED if is_last else Attempt.Outcome.CRASHED,
        crashes=1,
        # An open writer may have locked hundreds, and each costs a wait.
        wait=database.BRIEFLY,
        is_expired=is_expired,
        table=table,
        also=also,
    )


def supersede_running(spec: str, source_pks: Sequence[str], *, using: str) -> None:
    """Take units from their workers. Each has a pending job, which the caller has locked."""
    database.execute(using, JOBS(SUPERSEDE_RUNNING), spec=spec, source_pks=list(source_pks))


def _end(
    claim: Claim,
    error: str | None,
    *,
    using: str,
    outcome: Attempt.Outcome | None,
    attempts: int = 0,
    crashes: int = 0,
    outages: int = 0,
    delay: float = 0,
    wait: str = database.SHORTLY,
    is_expired: bool = False,
    table: Table = JOBS,
    also: Callable[[], object] | None = None,
) -> Ending:
    """Move a running job back to pending, or let it fail. An ``outcome`` is noted as an attempt.

    ``also``: what belongs to a failure, in the same transaction.
    """
    is_failed = outcome is Attempt.Outcome.FAILED
    fence = {
        "id": claim.id,
        "token": claim.token,
        "started_at": claim.started_at,
        "is_expired": is_expired,
    }
    change: dict[str, Any] = {
        "status": Job.Status.FAILED if is_failed else Job.Status.PENDING,
        "attempts": attempts,
        "crashes": crashes,
        "outages": outages,
        "error": None if error is None else _storable(error, using=using),
        "signature": _storable(signature.of(error or ""), using=using) if is_failed else "",
        "parkings": None,
        "is_awaited": False,
        "delay": delay,
    }
    for _ in range(2):
        try:
            with database.giving_way(using, wait=wait):
                if database.rows(using, table(SUPERSEDE_OURS), **fence):
                    return Ending.SUPERSEDED
                noted = {"outcome": outcome, "error": change["error"] or "", **fence}
                if outcome and not database.execute(using, table(NOTE), **noted):
                    return Ending.LOST
                if is_failed and table.has_units:
                    change |= _settle_older(claim, using=using)
                if not database.execute(using, table(END), **change, **fence):
                    return Ending.LOST
                if is_failed and also is not None:
                    also()
                return Ending.FAILED if is_failed else Ending.REQUEUED
        except IntegrityError:
            continue  # a writer has just committed a pending job, or one of the unit has failed
        except database.Busy:
            break
    return Ending.BUSY


def _settle_older(claim: Claim, *, using: str) -> dict[str, Any]:
    """Settle the unit's open failure: it has one at most. Return what the next one takes over."""
    unit = Job.objects.using(using).filter(spec=claim.spec, source_pk=claim.source_pk)
    parkings, is_awaited = 0, False
    for parked, was_awaited in unit.filter(UNSETTLED).values_list("parkings", "is_awaited"):
        parkings, is_awaited = parked + 1, was_awaited
        unit.filter(UNSETTLED).update(settled_at=Now())
    delay = min(PARKING_SECONDS * 2**parkings, MAX_PARKING_SECONDS)
    return {"parkings": parkings, "is_awaited": is_awaited, "delay": delay}


def _storable(said: str, *, using: str) -> str:
    """Return the text in characters that the database can store, so that storing it cannot fail.

    An error may quote anything: a file name that is not UTF-8, or what a server sent.
    """
    cut = Truncator(text.clean(said) or "unknown error").chars(MAX_ERROR_CHARACTERS)
    return text.encodable(cut, postgres.encoding(using))
