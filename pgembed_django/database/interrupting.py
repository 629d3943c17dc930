"""Exceptions that interrupt a statement, such as a task runner's time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import DatabaseError, InterfaceError, connections
from psycopg.pq import TransactionStatus

OF_THE_DATABASE = (DatabaseError, InterfaceError, psycopg.Error)
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def is_halfway(using: str) -> bool:
    """Return whether the connection was left in the middle of a statement or transaction.

    It takes no other statement until the first has ended, and nobody ends the transaction.
    """
    wrapper = connections[using]
    if wrapper.connection is None:
        return False
    status = wrapper.connection.info.transaction_status
    return status is TransactionStatus.ACTIVE or (status in OPEN and not wrapper.in_atomic_block)


@contextmanager
def letting_through(using: str) -> Iterator[None]:
    """Raise what interrupted a commit, not the error that hides it.

    What ends the transaction after that fails, as the connection is still in the middle of it.
    That error would be taken for an outage, and be waited out.
    """
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        raise_what_is_behind(error, using=using)
        raise


def raise_what_is_behind(error: BaseException, *, using: str) -> None:
    """Raise what interrupted the connection and is hidden by the error, if anything."""
    behind = error.__context__
    while isinstance(behind, OF_THE_DATABASE):
        behind = behind.__context__
    if behind is not None and is_halfway(using):
        raise behind from None
