"""Advisory locks, of a session or of a transaction. Only the shared one is ever waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from pgembed_django.core import database

SHARE = "SELECT pg_advisory_xact_lock_shared(hashtextextended(%(name)s, %(number)s))"
TRY = "SELECT pg_try_advisory_lock(hashtextextended(%(name)s, %(number)s))"
TRY_IN_TRANSACTION = "SELECT pg_try_advisory_xact_lock(hashtextextended(%(name)s, %(number)s))"
UNLOCK = "SELECT pg_advisory_unlock(hashtextextended(%(name)s, %(number)s))"


def share(name: str, number: int = 0, *, using: str) -> None:
    """Take a lock until the end of the transaction, shared with others that do the same.

    While another transaction holds it (``transaction_lock``), this waits as for a row's lock, as
    long as ``giving_way`` lets it.
    """
    database.send(using, SHARE, name=name, number=number)


@contextmanager
def transaction_lock(name: str, number: int = 0, *, using: str) -> Iterator[bool]:
    """Take a lock until the end of a transaction, and yield whether it was free.

    Unlike a session's lock, that of a worker which is frozen ends with its transaction.
    """
    with transaction.atomic(using=using):
        [[is_ours]] = database.rows(using, TRY_IN_TRANSACTION, name=name, number=number)
        yield is_ours


@contextmanager
def session_lock(name: str, number: int = 0, *, using: str) -> Iterator[bool]:
    """Take a lock until the end of ``with``, and yield whether it was free."""
    [[is_ours]] = database.rows(using, TRY, name=name, number=number)
    try:
        yield is_ours
    finally:
        # A lost connection has lost the lock too, and its error is the one to be raised. The same
        # goes for one in the middle of an interrupted statement, which is closed soon.
        if is_ours and not (database.is_lost(using) or database.is_halfway(using)):
            database.rows(using, UNLOCK, name=name, number=number)
