"""A spec has no table: nobody has migrated yet, or a newer code has, in the middle of a deploy."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from django.db import ProgrammingError, connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from pgembed_django import database, specs
from pgembed_django.specs import Spec


def without_table(worked_on: Iterable[Spec], *, using: str) -> list[Spec]:
    """Return the specs whose table of vectors is not in the database."""
    quoted = connections[using].ops.quote_name
    names = {spec: quoted(spec.embedding_model._meta.db_table) for spec in worked_on}
    found = {name for [name] in database.rows(using, specs.HAS_TABLE, names=list(names.values()))}
    return [spec for spec, name in names.items() if name not in found]


def newer_migration(spec: Spec, *, using: str) -> str:
    """Return the last migration of a spec's app, where this code does not have it. Else nothing.

    Only the last: those that were squashed are not in the code either. Nothing, too, where this
    role may not read which ones are applied.
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
