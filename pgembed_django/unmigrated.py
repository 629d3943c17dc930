"""If our migrations do not run, create what they create besides tables.

``pytest --nomigrations``, ``TEST = {"MIGRATE": False}`` and apps without migrations create their
tables from the models. Also, ``PGTRIGGER_SCHEMA`` may change after our migration has run.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader

from pgembed_django.declaration import specs
from pgembed_django.triggers import installed, sql


def before_migrate(sender: AppConfig, *, using: str, **_: Any) -> None:
    """On ``pre_migrate``, create the extension and functions that tables and triggers need.

    ``post_migrate`` would be too late: migrate first creates the tables of apps without
    migrations, with their triggers, and another receiver may write to them before ours runs.
    """
    if not _is_ours(sender, using):
        return
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    ours = {sender.label, *(spec.model._meta.app_label for spec in specs.all())}
    if loader.unmigrated_apps & ours:
        with connections[using].cursor() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
    tables = sql.schema_of_tables_alone(using)
    if _is_unmigrated(sender) or tables:
        with connections[using].schema_editor() as schema_editor:
            sql.install(apps, schema_editor, tables=tables)


def after_migrate(sender: AppConfig, *, using: str, **_: Any) -> None:
    """On ``post_migrate``, create what needs several tables: a constraint, and some triggers."""
    if not _is_ours(sender, using):
        return
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    known = [spec for spec in specs.on(using) if spec.relations.links]
    installed.install_missing(
        [spec.key for spec in known if spec.model._meta.app_label in loader.unmigrated_apps],
        using=using,
    )
    if not _is_unmigrated(sender):
        return
    for table in ("pgembed_job", "pgembed_task"):
        with connections[using].cursor() as cursor:
            found = connections[using].introspection.get_constraints(cursor, table)
        if found and f"{table}_is_possible" not in found:
            with connections[using].schema_editor() as schema_editor:
                statement = sql.text("job_is_possible_v1").replace("pgembed_job", table)
                schema_editor.execute(statement, params=None)
    with connections[using].schema_editor() as schema_editor:
        sql.watch_tasks(schema_editor)


def _is_unmigrated(sender: AppConfig) -> bool:
    return MigrationLoader.migrations_module(sender.label)[0] is None


def _is_ours(sender: AppConfig, using: str) -> bool:
    is_postgres = connections[using].vendor == "postgresql"
    return is_postgres and bool(router.allow_migrate(using, sender.label))
