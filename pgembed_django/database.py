"""Run our statements: named parameters, and transactions that give way to the application's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connections, transaction

# Well under deadlock_timeout (1 s by default), so that we lose, never the writer.
GIVE_WAY = "SET LOCAL lock_timeout = '100ms'"


class Busy(Exception):  # noqa: N818 - not an error: a writer is at it, look again later
    """An open transaction of the application holds what we need. To be tried again."""


def rows(using: str, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters or None)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def execute(using: str, statement: str, **parameters: Any) -> int:
    """Run a statement and return how many rows it touched."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return int(cursor.rowcount)


@contextmanager
def giving_way(using: str) -> Iterator[None]:
    """Run a transaction that waits for no writer: raises ``Busy`` instead."""
    try:
        with transaction.atomic(using=using):
            execute(using, GIVE_WAY)
            yield
    except OperationalError as error:
        # lock_not_available, deadlock_detected
        if getattr(error.__cause__, "sqlstate", None) in {"55P03", "40P01"}:
            raise Busy from error
        raise
