"""Find out why a spec has no table: it is not migrated yet, or newer code has renamed it."""

from __future__ import annotations

from operator import attrgetter

from django.db import ProgrammingError, connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from pgembed_django.specs import Spec


def newer_migration(spec: Spec, *, using: str) -> str:
    """Return the last applied migration of a spec's app if this code does not have it, else "".

    Only the last one is looked for, as squashed ones are not in the code either. Returns "" as
    well where this role may not read which migrations are applied.
    """
    label = spec.embedding_model._meta.app_label
    try:
        with transaction.atomic(using=using):
            applied = MigrationRecorder(connections[using]).applied_migrations().values()
    except ProgrammingError:
        return ""
    of_app = [one for one in applied if one.app == label]
    if not of_app:
        return ""
    last = max(of_app, key=attrgetter("pk")).name
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return "" if (label, last) in loader.disk_migrations else f"{label}.{last}"
