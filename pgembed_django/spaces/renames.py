"""After a model was renamed, move its spec's spaces, jobs and failures to the new name."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, connections

from pgembed_django import database, events, faults, spaces, specs
from pgembed_django import database, events, faults, spaces, specs, store
from pgembed_django.models import Space
from pgembed_django.queue import jobs
from pgembed_django.spaces import laps

IS_MIGRATED = "SELECT to_regclass('pgembed_space') IS NOT NULL"
# Keyed by the table, because several schemas of one database may be migrated side by side.
TRY_LOCK = """
    SELECT pg_try_advisory_xact_lock(
        hashtextextended('pgembed_renaming', 'pgembed_space'::regclass::oid::bigint)
    )
"""


def follow(*, using: str) -> bool:
    """Move the spaces, jobs and failures of specs whose models were renamed to the new names.

    The migration only renames the tables. A spec whose tables are not as declared is left to the
    next call. Returns False if it has to be tried again: a job is locked, another process is doing
    the same, or it took too long.
    """
    if not Space.objects.using(using).exists():
        return True  # nothing has been embedded in this database yet
    try:
        with database.giving_way(using):
            if database.rows(using, TRY_LOCK) != [(True,)]:
                return False
            _follow(using=using)
    except database.Busy:
        return False
    except DatabaseError as error:
        if not faults.may_pass(error):
            raise
        return False  # a statement timed out
    return True


def after_migrate(sender: object, *, using: str, **_: Any) -> None:
    """Receive ``post_migrate``, so that searches find vectors before a worker is started."""
    if connections[using].vendor == "postgresql" and database.rows(using, IS_MIGRATED) == [(True,)]:
        follow(using=using)


def _follow(*, using: str) -> None:
    adopted = spaces.adopt(specs.on(using), using=using)
    for old, new in sorted({(space.spec, key) for space, key in adopted.items()}):
        if specs.get(old):
            jobs.share(old, new, using=using)
        else:
            jobs.rename(old, new, using=using)
            stored.rename(old, new, using=using)
            laps.rename(old, new, using=using)
        events.tell(events.SPEC_RENAMED, spec=new, former=old)
