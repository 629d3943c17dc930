"""A model was renamed: what its spec had under the former name is the new one's."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, connections

from pgembed_django import database, events, faults, jobs, spaces, specs, store
from pgembed_django.maintenance import reconcile
from pgembed_django.models import Space
from pgembed_django.specs import Spec

IS_MIGRATED = "SELECT to_regclass('pgembed_space') IS NOT NULL"


def follow(*, using: str) -> None:
    """Let specs keep their spaces, jobs and failures whose models have another name now.

    A migration renames the tables, and Postgres knows no models. Tables that are not as
    declared are left to the next time.
    """
    if not Space.objects.using(using).exists():
        return  # nothing was ever embedded here
    for spec in specs.on(using):
        try:
            with database.giving_way(using):
                _follow(spec, using=using)
        except database.Busy:
            pass
        except DatabaseError as error:
            if not faults.is_of_schema(error):
                raise


def after_migrate(sender: object, *, using: str, **_: Any) -> None:
    """Receive ``post_migrate``: searches find by meaning before any worker has been started."""
    if connections[using].vendor == "postgresql" and database.rows(using, IS_MIGRATED) == [(True,)]:
        follow(using=using)


def _follow(spec: Spec, *, using: str) -> None:
    for old in sorted(spaces.adopt(spec, using=using)):
        if specs.get(old):
            jobs.share(old, spec.key, using=using)
        else:
            jobs.rename(old, spec.key, using=using)
            store.rename(old, spec.key, using=using)
            reconcile.rename(old, spec.key, using=using)
        events.tell(events.SPEC_RENAMED, spec=spec.key, former=old)
