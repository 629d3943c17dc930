"""Check that conditions do not fail. In a trigger, a failure is that of the row's write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from django.core.checks import CheckMessage, Error
from django.db import DataError, NotSupportedError, ProgrammingError, transaction

from pgembed_django import conditions, database, specs

FAILURES = (psycopg.DataError, psycopg.NotSupportedError, psycopg.errors.IndeterminateCollation)
"""What a write may fail with. All else ends the migration, or is yet to be created by it."""


def check_conditions(connection: Any) -> Iterator[CheckMessage]:
    """Yield an error for each spec with a comparison that fails on whatever row is written."""
    alias = connection.alias
    for spec in specs.written_to(alias):
        try:
            trials = list(conditions.trials(spec.when, model=spec.model))
        except conditions.UNWRITABLE:
            continue  # check_declarations reports it
        for trial in trials:
            try:
                with transaction.atomic(using=alias):
                    database.rows(alias, trial)
            except (DataError, NotSupportedError, ProgrammingError) as error:
                if not isinstance(error.__cause__, FAILURES):
                    continue
                yield Error(
                    f"{spec}: its condition fails, and each write would fail with it: {error}",
                    hint="Correct it, then run makemigrations and migrate.",
                    id="pgembed.E022",
                )
