"""Whether to read all the vectors there are to rank, or the index: by what each would cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet

from pgembed_django import database

SCANNED_PER_READ = 5
"""An index visits a neighbour for the price of reading this many vectors one by one (ran)."""

LEAST_CANDIDATES = 100
MOST_CANDIDATES = 1000

# Out of order within a few: what comes out is sorted anyway, and more of it is found.
SCAN = """
    SELECT
        set_config('hnsw.iterative_scan', 'relaxed_order', true),
        set_config('hnsw.ef_search', %(candidates)s::text, true)
"""


def is_exact(keys: QuerySet[Any, Any] | None, *, indexed_chunks: float | None, taken: int) -> bool:
    """Tell whether reading every vector of these rows is cheaper than the index.

    ``keys`` is None for all rows. Among few rows an index of all of them has to go far: to
    find ``taken`` of ``matching`` rows it visits about ``chunks * taken / matching``.
    """
    if indexed_chunks is None:
        return True
    if keys is None:
        return False
    matching = estimate(keys)
    return matching * matching <= SCANNED_PER_READ * max(indexed_chunks, 1.0) * taken


def estimate(rows: QuerySet[Any, Any]) -> int:
    """Return how many rows the planner expects, without running the query."""
    plan = rows.explain(format="JSON")
    if not plan:
        return 0  # a filter that nothing can pass
    return int(json.loads(plan)[0]["Plan"]["Plan Rows"])


@contextmanager
def scanning(using: str, *, taken: int) -> Iterator[None]:
    """Let the index go on until it has found enough rows that pass the filter.

    What is set holds for this one statement: within somebody's transaction it is undone.
    """
    candidates = min(max(taken, LEAST_CANDIDATES), MOST_CANDIDATES)
    is_nested = connections[using].in_atomic_block
    with transaction.atomic(using=using, savepoint=True):
        database.rows(using, SCAN, candidates=candidates)
        yield
        if is_nested:
            # Releasing a savepoint keeps what SET LOCAL has set; going back to it does not.
            transaction.set_rollback(True, using=using)
