"""All jobs of a spec, with their history: paused, renamed or deleted together.

Workers read what a person has paused every few seconds, and claim only other jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from pgembed_django import database
from pgembed_django.models.attempt import Attempt
from pgembed_django.models.job import Job
from pgembed_django.models.operations import Pause
from pgembed_django.queue.jobs.enqueueing import nudge

PAUSE = """
    INSERT INTO pgembed_pause (what, name, by)
    VALUES (%(what)s, %(name)s, %(by)s)
    ON CONFLICT (what, name) DO NOTHING
"""

RESUME = """
    DELETE FROM pgembed_pause
    WHERE what = %(what)s
      AND name = %(name)s
"""

PAUSED = """
    SELECT what, name, by
    FROM pgembed_pause
"""


class Paused(NamedTuple):
    """The paused specs, by key, and providers, by alias, each with the name of who paused it."""

    specs: dict[str, str]
    providers: dict[str, str]


def pause(what: str, name: str, *, by: str, using: str) -> bool:
    """Pause a spec or a provider. Returns False if it was paused already."""
    return database.execute(using, PAUSE, what=Pause.What(what), name=name, by=by) > 0


def resume(what: str, name: str, *, using: str) -> bool:
    """End the pause of a spec or a provider. Returns False if it was not paused."""
    is_resumed = database.execute(using, RESUME, what=Pause.What(what), name=name) > 0
    if is_resumed:
        nudge(using=using)  # a worker that is awake looks within seconds
    return is_resumed


def paused(*, using: str) -> Paused:
    """Return what is paused now."""
    found = Paused({}, {})
    for what, name, by in database.rows(using, PAUSED):
        (found.specs if what == Pause.What.SPEC else found.providers)[name] = by
    return found


BATCH = 5000
"""How many jobs of a spec that is gone are deleted in one transaction."""

# Running jobs, too: their workers still use the former name, whose table is gone.
MOVE = """
    WITH unfinished AS (
        DELETE FROM pgembed_job
        WHERE spec = %(old)s
          AND status IN ('pending', 'running')
        RETURNING *
    )
"""
COPY = """
    WITH unfinished AS (
        SELECT *
        FROM pgembed_job
        WHERE spec = %(old)s
          AND status IN ('pending', 'running')
    )
"""
# DO NOTHING: a pending job that a writer has left under the new name is newer.
ENQUEUE = """
    INSERT INTO pgembed_job (
        spec, source_pk, kind, priority, attempts, crashes, outages, parkings,
        last_error, run_at, created_at, traceparent
    )
    SELECT DISTINCT ON (source_pk)
        %(new)s, source_pk, kind, priority, attempts, crashes, outages, parkings,
        last_error, run_at, created_at, traceparent
    FROM unfinished
    ORDER BY source_pk, status
    ON CONFLICT (spec, source_pk) WHERE status = 'pending' DO NOTHING
"""

RENAME_FAILURES = """
    UPDATE pgembed_job AS failure
    SET spec = %(new)s
    WHERE spec = %(old)s
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL
      AND NOT EXISTS (
          SELECT
          FROM pgembed_job AS newer
          WHERE newer.spec = %(new)s
            AND newer.source_pk = failure.source_pk
            AND newer.status IN ('failed', 'dismissed')
            AND newer.settled_at IS NULL
      )
"""
SETTLE_OTHERS = """
    UPDATE pgembed_job
    SET settled_at = statement_timestamp()
    WHERE spec = %(old)s
      AND status IN ('failed', 'dismissed')
      AND settled_at IS NULL
"""
RENAME_ATTEMPTS = """
    UPDATE pgembed_attempt
    SET spec = %(new)s
    WHERE spec = %(old)s
"""
RENAME_PAUSE = """
    WITH former AS (
        DELETE FROM pgembed_pause
        WHERE what = 'spec'
          AND name = %(old)s
        RETURNING by, paused_at
    )
    INSERT INTO pgembed_pause (what, name, by, paused_at)
    SELECT 'spec', %(new)s, by, paused_at
    FROM former
    ON CONFLICT (what, name) DO NOTHING
"""


def rename(old: str, new: str, *, using: str) -> None:
    """Move a spec's jobs, their history and its pause to its new name."""
    for statement in (
        MOVE + ENQUEUE,
        RENAME_FAILURES,
        SETTLE_OTHERS,
        RENAME_ATTEMPTS,
        RENAME_PAUSE,
    ):
        database.execute(using, statement, old=old, new=new)


def share(old: str, new: str, *, using: str) -> None:
    """Copy a spec's unfinished jobs to another one, if the old name may stand for either."""
    database.execute(using, COPY + ENQUEUE, old=old, new=new)


def forget(spec: str, *, using: str) -> None:
    """Delete all jobs of a spec, their history and its pause, in small batches.

    Raises:
        database.Busy: an open transaction has locked some of them.
    """
    for model in (Job, Attempt):
        rows, after = model._base_manager.using(using).filter(spec=spec), 0
        # By the primary key, as no index covers the specs of all jobs: it would not pay.
        while found := list(
            rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:BATCH]
        ):
            with database.giving_way(using):
                rows.filter(pk__in=found).delete()
            after = found[-1]
    Pause.objects.using(using).filter(what=Pause.What.SPEC, name=spec).delete()
