"""A model was renamed: what its spec had under the former name is the new one's."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, connections

from pgembed_django import database, events, faults, jobs, spaces, specs, store
from pgembed_django.maintenance import reconcile
from pgembed_django.models import Space

IS_MIGRATED = "SELECT to_regclass('pgembed_space') IS NOT NULL"
TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('pgembed_renaming', 0))"


def follow(*, using: str) -> bool:
    """Let specs keep their spaces, jobs and failures whose models have another name now.

    A migration renames the tables, and Postgres knows no models. Tables that are not as
    declared are left to the next time. Tells whether it was done, rather than put off: a job is
    locked, or another process is at it.
    """
    if not Space.objects.using(using).exists():
        return True  # nothing was ever embedded here
    try:
        with database.giving_way(using):
            if database.rows(using, TRY_LOCK) != [(True,)]:
                return False
            _follow(using=using)
    except database.Busy:
        return False
    except DatabaseError as error:
        if not faults.goes_in_fewer_rows(error):
            raise
        return False  # it took longer than a time-out allows
    return True


def after_migrate(sender: object, *, using: str, **_: Any) -> None:
    """Receive ``post_migrate``: searches find by meaning before any worker has been started."""
    if connections[using].vendor == "postgresql" and database.rows(using, IS_MIGRATED) == [(True,)]:
        follow(using=using)


def _follow(*, using: str) -> None:
    adopted = spaces.adopt(specs.on(using), using=using)
    for old, new in sorted({(space.spec, key) for space, key in adopted.items()}):
        if specs.get(old):
            jobs.share(old, new, using=using)
        else:
            jobs.rename(old, new, using=using)
            store.rename(old, new, using=using)
            reconcile.rename(old, new, using=using)
        events.tell(events.SPEC_RENAMED, spec=new, former=old)
