"""What our migrations bring besides tables, where migrations are left out.

``pytest --nomigrations``, ``TEST = {"MIGRATE": False}`` and apps without migrations have
their tables made from the models.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader

from pgembed_django import specs, sql

IS_POSSIBLE = """
    SELECT conrelid IS NOT NULL
    FROM (SELECT to_regclass('pgembed_job')) AS job(oid)
    LEFT JOIN pg_constraint ON conrelid = job.oid AND conname = 'pgembed_job_is_possible'
    WHERE job.oid IS NOT NULL
"""


def before_migrate(sender: AppConfig, *, using: str, **_: Any) -> None:
    """Receive ``pre_migrate``: the tables of apps without migrations are made before all others."""
    if not _is_ours(sender, using):
        return
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    ours = {sender.label, *(spec.model._meta.app_label for spec in specs.all())}
    if loader.unmigrated_apps & ours:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT to_regtype('vector')")
            if cursor.fetchone() == (None,):
                cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")


def after_migrate(sender: AppConfig, *, using: str, **_: Any) -> None:
    """Receive ``post_migrate``: create the functions that the triggers call."""
    module = MigrationLoader.migrations_module(sender.label)[0]
    if module is not None or not _is_ours(sender, using):
        return
    with connections[using].cursor() as cursor:
        cursor.execute(IS_POSSIBLE)
        found = cursor.fetchone()
    if found is None:
        return
    with connections[using].schema_editor() as schema_editor:
        if not found[0]:
            schema_editor.execute(sql.text("job_is_possible_v1"), params=None)
        sql.install(apps, schema_editor)


def _is_ours(sender: AppConfig, using: str) -> bool:
    is_postgres = connections[using].vendor == "postgresql"
    return is_postgres and bool(router.allow_migrate(using, sender.label))
