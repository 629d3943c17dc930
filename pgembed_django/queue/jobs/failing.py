"""How a job fails: it becomes an open failure, and its unit is parked, longer each time.

A newer pending job supersedes its unit's running one instead: it will read the row anew, so the
running one need neither come back nor fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import IntegrityError
from django.utils.text import Truncator

from pgembed_django import database, postgres, signature, text
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import Ending
from pgembed_django.queue.jobs.leases import OURS, Claim, filled

NO_NEWER = """
    NOT EXISTS (
        SELECT
        FROM pgembed_job AS newer
        WHERE newer.spec = job.spec
          AND newer.source_pk = job.source_pk
          AND newer.status = 'pending'
        -- Looked up: a join may be planned to read all pending jobs.
        OFFSET 0
    )
"""

# A gap's job, which the reconciler or a backfill has added meanwhile, becomes the write's.
RAISE = """
    UPDATE pgembed_job AS newer
    SET
        kind = job.kind,
        priority = job.priority,
        created_at = LEAST(newer.created_at, job.created_at)
    FROM pgembed_job AS job
    WHERE {which}
      AND newer.spec = job.spec
      AND newer.source_pk = job.source_pk
      AND newer.status = 'pending'
      AND newer.priority < job.priority
"""

SUPERSEDE = """
    DELETE FROM pgembed_job AS job
    WHERE {which}
    RETURNING id
"""

RUNNING = """
        job.spec = %(spec)s
    AND job.source_pk = ANY(%(source_pks)s)
    AND job.status = 'running'
"""
RAISE_OURS, SUPERSEDE_OURS = (each.replace("{which}", OURS.strip()) for each in (RAISE, SUPERSEDE))
RAISE_RUNNING, SUPERSEDE_RUNNING = (
    each.replace("{which}", RUNNING.strip()) for each in (RAISE, SUPERSEDE)
)


def unless_superseded(statement: str) -> str:
    """Return a statement about one ``job`` with its ``{no_newer}``, and what ``filled`` fills."""
    return filled(statement).replace("{no_newer}", NO_NEWER.strip())


def supersede(claim: Claim, *, using: str) -> Ending:
    """Delete the job in favour of newer work, if it is still ours."""
    database.execute(using, RAISE_OURS, **claim.fence)
    superseded = database.rows(using, SUPERSEDE_OURS, **claim.fence)
    return Ending.SUPERSEDED if superseded else Ending.LOST


def supersede_running(spec: str, source_pks: Sequence[str], *, using: str) -> None:
    """Take units from their workers. Each has a pending job, which the caller has locked."""
    database.execute(using, RAISE_RUNNING, spec=spec, source_pks=list(source_pks))
    database.execute(using, SUPERSEDE_RUNNING, spec=spec, source_pks=list(source_pks))


# Before the job changes, while it still has its worker. Locks the job.
NOTE = filled("""
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
""")


def note_attempt(claim: Claim, outcome: Attempt.Outcome, error: str, *, using: str) -> None:
    """Record how a claim ends, if it is still ours. Call it in the transaction that ends it."""
    database.execute(using, NOTE, **claim.fence, outcome=outcome, error=error)


MAX_ERROR_CHARACTERS = 2000
PARKING_SECONDS = 3600
MAX_PARKING_SECONDS = 7 * 86400

# Settles the unit's older open failure: each unit has one open failure at most.
OLDER_FAILURE = unless_superseded("""
    WITH job AS (
        SELECT spec, source_pk
        FROM pgembed_job AS job
        WHERE {ours}
        FOR UPDATE
    )
    SELECT older.id, COALESCE(older.parkings + 1, 0), older.kind
    FROM job
    LEFT JOIN LATERAL (
        SELECT id, parkings, kind
        FROM pgembed_job
        WHERE spec = job.spec
          AND source_pk = job.source_pk
          AND status IN ('failed', 'dismissed')
          AND settled_at IS NULL
        OFFSET 0
    ) AS older ON true
    WHERE {no_newer}
""")

SETTLE = """
    UPDATE pgembed_job
    SET settled_at = statement_timestamp()
    WHERE id = ANY(%(ids)s)
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL
"""

FAIL = filled("""
    UPDATE pgembed_job AS job
    SET
        status = 'failed',
        -- A gap of a row whose write has failed: searches with stale="hide" go on hiding it.
        kind = CASE
            WHEN %(older_kind)s IN ('write', 'manual_retry') THEN %(older_kind)s
            ELSE kind
        END,
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
    WHERE {ours}
""")


def fail(claim: Claim, error: str, *, using: str, attempts: int = 1, crashes: int = 0) -> Ending:
    """Turn the job into an open failure and park its unit, unless newer work supersedes it."""
    try:
        with database.giving_way(using):
            found = database.rows(using, OLDER_FAILURE, **claim.fence)
            if not found:
                return supersede(claim, using=using)
            [[older_id, parkings, kind]] = found
            note_attempt(claim, Attempt.Outcome.FAILED, bounded(error, using=using), using=using)
            database.execute(using, SETTLE, ids=[older_id] if older_id else [])
            database.execute(
                using,
                FAIL,
                error=bounded(error, using=using),
                signature=_encodable(signature.of(text.clean(error)), using=using),
                attempts=attempts,
                crashes=crashes,
                parkings=parkings,
                older_kind=kind or "",
                parking=min(PARKING_SECONDS * 2**parkings, MAX_PARKING_SECONDS),
                **claim.fence,
            )
    except (database.Busy, IntegrityError):
        return Ending.BUSY  # IntegrityError: another job of the unit just failed
    return Ending.FAILED


def bounded(error: str, *, using: str) -> str:
    """Return the error as it is stored: not empty, bounded in length, and clean.

    An error may quote anything: a file name that is not UTF-8, or what a server sent.
    """
    cut = Truncator(text.clean(error) or "unknown error").chars(MAX_ERROR_CHARACTERS)
    return _encodable(cut, using=using)


def _encodable(said: str, *, using: str) -> str:
    """Return the text in characters that the database can store, so that storing it cannot fail."""
    return text.encodable(said, postgres.encoding(using))
