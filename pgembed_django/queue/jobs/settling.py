"""How a running job ends: complete, retry, release, reap. How it fails is in ``failing``.

``complete`` relies on ``hold``, called before it in the same transaction. Each of the others
is a compare-and-set on (id, running, claim token and time). A move back to pending may conflict
with a writer's pending job in the unique index: that newer work supersedes it. Each such move is a
transaction of its own and waits for nobody, so that no writer can become the victim of a deadlock.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError

from pgembed_django import database
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import Ending
from pgembed_django.queue.jobs.claims import Lease
from pgembed_django.queue.jobs.failing import (
    bounded,
    fail,
    note_attempt,
    supersede,
    unless_superseded,
)
from pgembed_django.queue.jobs.leases import Claim, Expired, claims, filled

WORKER_LOST = "worker lost"

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
          AND (NOT %(keep)s OR kind IN ('reconciler', 'backfill'))
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
          AND kind NOT IN ('reconciler', 'backfill')
    )
    -- How long the writes waited for their vectors, which commit in a moment.
    SELECT id, extract(epoch FROM statement_timestamp() - created_at)::float8
    FROM pgembed_job
    WHERE id = ANY(%(ids)s::bigint[])
      AND kind = 'write'
"""

# Back to pending, unless the unit has a newer pending job: that one supersedes it.
REQUEUE = unless_superseded("""
    UPDATE pgembed_job AS job
    SET
        status = 'pending',
        worker_id = NULL,
        lease_expires_at = NULL,
        attempts = attempts + %(attempts)s,
        crashes = crashes + %(crashes)s,
        outages = outages + %(outages)s,
        last_error = COALESCE(%(error)s, last_error),
        run_at = statement_timestamp() + %(delay)s * interval '1 second'
    WHERE {ours}
      AND {no_newer}
    RETURNING id
""")

EXPIRED = filled("""
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
""")


def complete(
    items: dict[int, int], *, keep_seconds: float, using: str
) -> database.Read[dict[int, float]]:
    """Finish held jobs, given as id -> items, and settle their units' open failures.

    Call it in the transaction that holds the jobs and has stored their vectors. Returns a
    function that reads how many seconds each write has waited for its vectors, by job id.
    """
    read = database.send_prepared(
        using,
        COMPLETE,
        ids=database.array(items),
        items=database.array(items.values()),
        keep=keep_seconds > 0,
    )
    return lambda: dict(read())


def retry(
    claim: Claim, error: str, *, max_attempts: int, delay_seconds: float, using: str
) -> Ending:
    """Spend an attempt. The job is due again after a backoff, or fails if it was the last one."""
    if claim.attempts + 1 >= max_attempts:
        return fail(claim, error, using=using)
    return _requeue(
        claim, using, attempts=1, error=bounded(error, using=using), delay=delay_seconds
    )


def release(
    claim: Claim,
    *,
    using: str,
    delay_seconds: float = 0,
    reason: str | None = None,
    outages: int = 0,
) -> Ending:
    """Move the job back to pending without spending an attempt."""
    error = bounded(reason, using=using) if reason else None
    return _requeue(claim, using, outages=outages, error=error, delay=delay_seconds)


def reap(
    *, max_crashes: int, using: str, limit: int = 1000, own: Lease | None = None
) -> list[tuple[Claim, Ending]]:
    """Take jobs with expired leases back, and count a crash of each. Returns how each ended.

    A worker that was frozen may be back meanwhile: it keeps those that it renews first. ``own``:
    the lease of the worker that asks, whose own jobs are taken back a whole lease later.
    """
    found = claims(
        EXPIRED,
        using=using,
        limit=limit,
        own=own and own.worker_id,
        lease=own.seconds if own else 0,
    )
    expired = [Expired(*claim) for claim in found]
    return [(one, reap_one(one, max_crashes=max_crashes, using=using)) for one in expired]


def reap_one(claim: Claim, error: str = WORKER_LOST, *, max_crashes: int, using: str) -> Ending:
    """Take one job from its worker, and count a crash. Returns how it ended."""
    if claim.crashes + 1 >= max_crashes:
        return fail(claim, error, using=using, attempts=0, crashes=1)
    # An open writer may have locked hundreds, and each costs a wait.
    return _requeue(claim, using, crashes=1, error=error, wait=database.BRIEFLY)


def _outcome(attempts: int, crashes: int) -> Attempt.Outcome:
    if attempts:
        return Attempt.Outcome.RETRIED
    return Attempt.Outcome.CRASHED if crashes else Attempt.Outcome.OUTAGE


def _requeue(
    claim: Claim,
    using: str,
    *,
    attempts: int = 0,
    crashes: int = 0,
    outages: int = 0,
    error: str | None = None,
    delay: float = 0,
    wait: str = database.SHORTLY,
) -> Ending:
    """Move a running job back to pending."""
    change: dict[str, Any] = {
        "attempts": attempts,
        "crashes": crashes,
        "outages": outages,
        "error": error,
        "delay": delay,
    }
    try:
        try:
            with database.giving_way(using, wait=wait):
                if attempts or crashes or outages:
                    note_attempt(claim, _outcome(attempts, crashes), error or "", using=using)
                if database.rows(using, REQUEUE, **change, **claim.fence):
                    return Ending.REQUEUED
                # Nothing moved: newer work is pending, or the job is no longer ours.
                return supersede(claim, using=using)
        except IntegrityError:
            # A writer has just committed a pending job: it supersedes this one.
            with database.giving_way(using, wait=wait):
                return supersede(claim, using=using)
    except database.Busy:
        return Ending.BUSY
