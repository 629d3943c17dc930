"""Read several of the application's tables in one statement, without a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeVar

from django.db.models import QuerySet

from pgembed_django.database import Busy, giving_way

R = TypeVar("R")


def read(queries: Sequence[QuerySet[Any, R]], *, using: str) -> list[R]:
    """Return the rows of all queries, without those whose table is locked just now.

    The statement holds one table while it waits for the next: a deadlock with a migration or a
    TRUNCATE that locks them in another order. So it gives way, and then each query runs alone.
    """
    if not queries:
        return []
    rows = queries[0].union(*queries[1:], all=True) if len(queries) > 1 else queries[0]
    try:
        with giving_way(using):
            return list(rows.order_by())  # the first model's own would be the union's
    except Busy:
        alone = [[query] for query in queries] if len(queries) > 1 else []
        return [*chain.from_iterable(read(one, using=using) for one in alone)]
