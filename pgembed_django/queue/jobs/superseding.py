"""A newer pending job supersedes its unit's running one.

It will read the row anew, so the running one need neither come back nor fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgembed_django import database
from pgembed_django.models.job import Ending
from pgembed_django.queue.jobs.fencing import OURS, Claim, filled

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
