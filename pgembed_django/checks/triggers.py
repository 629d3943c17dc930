"""Check the triggers. Without them only the reconciler finds a write, hours later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Warning  # noqa: A004
from django.db import ProgrammingError, transaction
from django.db.migrations.executor import MigrationExecutor

from pgembed_django import conditions, specs
from pgembed_django.specs import Spec
from pgembed_django.triggers import installed


def check_triggers(connection: Any) -> Iterator[CheckMessage]:
    """Yield a warning for each spec whose triggers are not as declared.

    Yields nothing while migrations have yet to run: they may install the triggers.
    """
    alias = connection.alias
    written = {spec.key: spec for spec in specs.written_to(alias) if _is_writable(spec)}
    try:
        with transaction.atomic(using=alias):
            found = installed.drifted(written, using=alias)
    except ProgrammingError:
        return  # this role has no access to a schema
    if not found or _has_migrations_to_run(connection):
        return
    for key, states in found.items():
        model = written[key].model._meta
        # A warning, as an error would block the migration that fixes it.
        yield Warning(
            f"{key}: {_told(states)}. What is written to {model.label} may not be embedded until "
            "the reconciler comes by.",
            hint=_remedy(states),
            id="pgembed.W006",
        )


def _is_writable(spec: Spec) -> bool:
    try:
        conditions.compiled(spec.when, model=spec.model, row="new")
    except conditions.UNWRITABLE:
        return False  # check_declarations reports it
    return True


def _told(states: Mapping[str, int]) -> str:
    return " and ".join(
        f"{count} trigger{'s are' if count > 1 else ' is'} {state}"
        for state, count in states.items()
    )


def _remedy(states: Mapping[str, int]) -> str:
    remedies = []
    if states.keys() & {"missing", "outdated"}:
        remedies.append(
            "Run manage.py makemigrations and migrate. If that does not help (a model was moved "
            "to another app, say, or a column took another's name while its table was locked): "
            "manage.py pgtrigger install, then pgtrigger prune"
        )
    if "disabled" in states:
        remedies.append("Run manage.py pgtrigger enable")
    remedies.append("What was written meanwhile is found by manage.py embed_reconcile --deep")
    return ". ".join(remedies) + "."


def _has_migrations_to_run(connection: Any) -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))
