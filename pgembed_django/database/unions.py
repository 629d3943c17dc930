"""Read several of the application's tables in one statement, without a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from django.db.models import QuerySet

from pgembed_django import database

R = TypeVar("R")


def read(
    queries: Sequence[QuerySet[Any, R]], *, using: str, wait: str = database.SHORTLY
) -> list[R]:
    """Return the rows of all queries, except those whose table is locked now.

    The statement holds one table while it waits for the next: a deadlock with a migration or a
    TRUNCATE that locks them in another order. So it gives way, and then each query runs alone,
    and gives way as well: in a caller's transaction the tables read so far stay locked.
    """
    if not queries:
        return []
    rows = queries[0].union(*queries[1:], all=True) if len(queries) > 1 else queries[0]
    try:
        with database.giving_way(using, wait=wait):
            return list(rows.order_by())  # the first model's own would be the union's
    except database.Busy:
        alone = [[query] for query in queries] if len(queries) > 1 else []
        briefly = partial(read, using=using, wait=database.BRIEFLY)
        return [*chain.from_iterable(map(briefly, alone))]
