"""Find out why a spec has no table: not migrated yet, or renamed by newer code."""

from __future__ import annotations

from operator import attrgetter

from django.db import ProgrammingError, connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from pgembed_django.specs import Spec


def newer_migration(spec: Spec, *, using: str) -> str:
    """Return the last applied migration of a spec's app if this code lacks it, else "".

    Earlier ones are not looked for: the code may lack them because they were squashed. Also
    returns "" if this role may not read which migrations are applied.
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
