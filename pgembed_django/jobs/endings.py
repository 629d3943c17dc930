"""How a running job ends: complete, retry, release, fail, reap.

Each is a compare-and-set on (id, running, claim token). A move back to pending can
meet a writer's pending job in the unique index: newer work supersedes it. Such moves
are one job a transaction and wait for nobody, so that no deadlock chooses a writer.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError
from django.utils.text import Truncator

from pgembed_django import database, signature
from pgembed_django.jobs import attempts as history
from pgembed_django.jobs.claims import Claim, claims
from pgembed_django.models import Attempt

MAX_ERROR_CHARACTERS = 2000
PARKING_SECONDS = 3600
MAX_PARKING_SECONDS = 7 * 86400

COMPLETE = """
    WITH done AS (
        SELECT *
        FROM unnest(%(ids)s::bigint[], %(items)s::int[]) AS done(id, items)
    ),
    settled AS (
        UPDATE pgembed_job AS failure
        SET settled_at = statement_timestamp()
        FROM pgembed_job AS job
        JOIN done USING (id)
        WHERE failure.spec = job.spec
          AND failure.source_pk = job.source_pk
          AND failure.status IN ('failed', 'dismissed')
          AND failure.settled_at IS NULL
    ),
    deleted AS (
        DELETE FROM pgembed_job AS job
        USING done
        WHERE job.id = done.id
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
        FROM done
        WHERE job.id = done.id
          AND %(keep)s
          AND kind NOT IN ('reconciler', 'backfill')
    )
    -- How long the writes have waited for their vectors, which commit in a moment.
    SELECT id, extract(epoch FROM statement_timestamp() - created_at)::float8
    FROM pgembed_job
    JOIN done USING (id)
    WHERE kind = 'write'
"""

# Back to pending, unless a newer pending job of the unit is there: that one supersedes it.
REQUEUE = """
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
    WHERE id = %(id)s
      AND claims = %(token)s
      AND status = 'running'
      AND NOT EXISTS (
          SELECT
          FROM pgembed_job AS newer
          WHERE newer.spec = job.spec
            AND newer.source_pk = job.source_pk
            AND newer.status = 'pending'
      )
    RETURNING id
"""

SUPERSEDE = """
    DELETE FROM pgembed_job
    WHERE id = %(id)s
      AND claims = %(token)s
      AND status = 'running'
    RETURNING id
"""

# The unit's older open failure, which gives way to this one: each unit is listed once.
FAIL = """
    WITH job AS (
        SELECT spec, source_pk
        FROM pgembed_job
        WHERE id = %(id)s
          AND claims = %(token)s
          AND status = 'running'
        FOR UPDATE
    )
    SELECT older.id, COALESCE(older.parkings + 1, 0)
    FROM job
    LEFT JOIN pgembed_job AS older
      ON older.spec = job.spec
     AND older.source_pk = job.source_pk
     AND older.status IN ('failed', 'dismissed')
     AND older.settled_at IS NULL
    WHERE NOT EXISTS (
        SELECT
        FROM pgembed_job AS newer
        WHERE newer.spec = job.spec
          AND newer.source_pk = job.source_pk
          AND newer.status = 'pending'
    )
"""

SETTLE = """
    UPDATE pgembed_job
    SET settled_at = statement_timestamp()
    WHERE id = ANY(%(ids)s)
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL
"""

PARK = """
    UPDATE pgembed_job
    SET
        status = 'failed',
        worker_id = NULL,
        lease_expires_at = NULL,
        finished_at = statement_timestamp(),
        attempts = attempts + %(attempts)s,
        crashes = crashes + %(crashes)s,
        parkings = %(parkings)s,
        last_error = %(error)s,
        signature = %(signature)s,
        -- Until then the reconciler leaves the unit alone.
        run_at = statement_timestamp() + %(parking)s * interval '1 second'
    WHERE id = %(id)s
      AND claims = %(token)s
"""

EXPIRED = """
    SELECT id, claims, spec, source_pk, kind, attempts, crashes, outages
    FROM pgembed_job
    WHERE status = 'running'
      AND lease_expires_at < statement_timestamp()
    ORDER BY id
    LIMIT %(limit)s
    -- Those that an open deleter has are gone soon, or here again.
    FOR UPDATE SKIP LOCKED
"""


def complete(items: dict[int, int], *, keep_seconds: float, using: str) -> dict[int, float]:
    """Finish held jobs, given as id -> chunks, and settle their units' open failures.

    To be called in the transaction that holds them and has stored their vectors. Returns
    for how many seconds each write has waited for that, by job id.
    """
    waited = database.rows(
        using, COMPLETE, ids=list(items), items=list(items.values()), keep=keep_seconds > 0
    )
    return dict(waited)


def retry(claim: Claim, error: str, *, max_attempts: int, delay_seconds: float, using: str) -> str:
    """Spend an attempt: back to pending after a backoff, or failed when it was the last."""
    if claim.attempts + 1 >= max_attempts:
        return fail(claim, error, using=using)
    return _requeue(claim, using, attempts=1, error=bounded(error), delay=delay_seconds)


def release(
    claim: Claim,
    *,
    using: str,
    delay_seconds: float = 0,
    reason: str | None = None,
    outages: int = 0,
) -> str:
    """Give the job back with no attempt spent."""
    error = bounded(reason) if reason else None
    return _requeue(claim, using, outages=outages, error=error, delay=delay_seconds)


def fail(claim: Claim, error: str, *, using: str, attempts: int = 1, crashes: int = 0) -> str:
    """End the job as an open failure, its unit parked, unless newer work supersedes it."""
    token = {"id": claim.id, "token": claim.token}
    try:
        with database.giving_way(using):
            found = database.rows(using, FAIL, **token)
            if not found:
                return "superseded" if database.rows(using, SUPERSEDE, **token) else "lost"
            [[older_id, parkings]] = found
            history.note(claim, Attempt.Outcome.FAILED, bounded(error), using=using)
            database.execute(using, SETTLE, ids=[older_id] if older_id else [])
            database.execute(
                using,
                PARK,
                error=bounded(error),
                signature=signature.of(error),
                attempts=attempts,
                crashes=crashes,
                parkings=parkings,
                parking=min(PARKING_SECONDS * 2**parkings, MAX_PARKING_SECONDS),
                **token,
            )
    except (database.Busy, IntegrityError):
        return "busy"  # IntegrityError: another job of the unit has failed since our look
    return "failed"


def reap(*, max_crashes: int, using: str, limit: int = 1000) -> list[tuple[Claim, str]]:
    """Take expired leases back and count a crash each. Returns what became of them."""
    return [
        (expired, reap_one(expired, max_crashes=max_crashes, using=using))
        for expired in claims(EXPIRED, using, limit=limit)
    ]


def bounded(error: str) -> str:
    """Return the error as it is stored: never empty, never long, no NUL."""
    text = error.replace("\x00", "").strip() or "unknown error"
    return Truncator(text).chars(MAX_ERROR_CHARACTERS)


def reap_one(expired: Claim, *, max_crashes: int, using: str) -> str:
    """Take one job from its worker and count a crash. Returns what became of it."""
    if expired.crashes + 1 >= max_crashes:
        return fail(expired, "worker lost", using=using, attempts=0, crashes=1)
    return _requeue(expired, using, crashes=1, error="worker lost")


def _outcome(attempts: int, crashes: int) -> str:
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
) -> str:
    """Move a running job back to pending: ``requeued``, ``superseded``, ``lost`` or ``busy``.

    ``busy``: a writer holds the unit's pending job. To be tried again.
    """
    token = {"id": claim.id, "token": claim.token}
    change: dict[str, Any] = {
        "attempts": attempts,
        "crashes": crashes,
        "outages": outages,
        "error": error,
        "delay": delay,
    }
    try:
        try:
            with database.giving_way(using):
                if attempts or crashes or outages:
                    history.note(claim, _outcome(attempts, crashes), error or "", using=using)
                if database.rows(using, REQUEUE, **change, **token):
                    return "requeued"
                # Nothing moved: newer work is pending, or the job is no longer ours.
                return "superseded" if database.rows(using, SUPERSEDE, **token) else "lost"
        except IntegrityError:
            # A writer's pending job was committed after our look: it supersedes this one.
            with database.giving_way(using):
                return "superseded" if database.rows(using, SUPERSEDE, **token) else "lost"
    except database.Busy:
        return "busy"
