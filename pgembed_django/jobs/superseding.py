"""A newer pending job supersedes its unit's running one.

It will read the row anew, so the running one need neither come back nor fail.
"""

from __future__ import annotations

from pgembed_django import database
from pgembed_django.jobs.fencing import Claim, filled
from pgembed_django.models import Ending

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
RAISE = filled("""
    UPDATE pgembed_job AS newer
    SET
        kind = job.kind,
        priority = job.priority,
        created_at = LEAST(newer.created_at, job.created_at)
    FROM pgembed_job AS job
    WHERE {ours}
      AND newer.spec = job.spec
      AND newer.source_pk = job.source_pk
      AND newer.status = 'pending'
      AND newer.priority < job.priority
""")

SUPERSEDE = filled("""
    DELETE FROM pgembed_job AS job
    WHERE {ours}
    RETURNING id
""")


def unless_superseded(statement: str) -> str:
    """Return a statement about one ``job`` with its ``{no_newer}``, and what ``filled`` fills."""
    return filled(statement).replace("{no_newer}", NO_NEWER.strip())


def supersede(claim: Claim, *, using: str) -> Ending:
    """Delete the job in favour of newer work, if it is still ours."""
    database.execute(using, RAISE, **claim.fence)
    superseded = database.rows(using, SUPERSEDE, **claim.fence)
    return Ending.SUPERSEDED if superseded else Ending.LOST
