"""A spec is gone for good: its jobs go, with their history and its pause."""

from __future__ import annotations

from pgembed_django import database
from pgembed_django.models import Pause

BATCH = 5000

# By the primary key: there is no index on the specs of all jobs, and one is not worth having.
FORGET_JOBS = """
    DELETE FROM pgembed_job
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_job
        WHERE spec = %(spec)s
          AND id > %(after)s
        ORDER BY id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
"""

FORGET_ATTEMPTS = """
    DELETE FROM pgembed_attempt
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_attempt
        WHERE spec = %(spec)s
          AND id > %(after)s
        ORDER BY id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
"""


def forget(spec: str, *, using: str) -> None:
    """Delete whatever jobs a spec has, in small batches. Those that somebody has locked stay."""
    for statement in (FORGET_JOBS, FORGET_ATTEMPTS):
        after = 0
        while found := database.rows(using, statement, spec=spec, after=after, limit=BATCH):
            after = max(row_id for [row_id] in found)
    Pause.objects.using(using).filter(what=Pause.What.SPEC, name=spec).delete()
