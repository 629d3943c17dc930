"""Whether to read all the vectors there are to rank, or the index: by what each would cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet

from pgembed_django import conf

SCANNED_PER_READ = 5
"""An index visits a neighbour for the price of reading this many vectors one by one (ran)."""

MOST_CANDIDATES = 1000


def is_exact(keys: QuerySet[Any, Any] | None, *, chunks: float, taken: int) -> bool:
    """Tell whether reading every vector of these rows is cheaper than the index.

    ``keys`` is None for all rows. Among few rows an index of all of them has to go far: to
    find ``taken`` of ``matching`` rows it visits about ``chunks * taken / matching``.
    """
    if keys is None:
        return False
    matching = estimate(keys)
    return matching * matching <= SCANNED_PER_READ * max(chunks, 1.0) * taken


def estimate(rows: QuerySet[Any, Any]) -> int:
    """Return how many rows the planner expects, without running the query."""
    plan = rows.explain(format="JSON")
    if not plan:
        return 0  # a filter that nothing can pass
    return int(json.loads(plan)[0]["Plan"]["Plan Rows"])


def candidates(taken: int) -> int:
    """Return how many neighbours the index keeps in view to return that many."""
    return min(max(taken, conf.current().hnsw_ef_search), MOST_CANDIDATES)


@contextmanager
def leaving_no_settings(using: str) -> Iterator[None]:
    """Undo what a statement sets, where it is part of somebody's transaction."""
    if not connections[using].in_atomic_block:
        yield
        return
    with transaction.atomic(using=using):
        yield
        # Releasing a savepoint keeps what was set since; going back to it does not.
        transaction.set_rollback(True, using=using)
