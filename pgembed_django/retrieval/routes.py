"""Choose whether to read every vector of the rows, or the index: by what each would cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from pgembed_django import conf, database
from pgembed_django.retrieval.selects import Statement

SCANNED_PER_READ = 5
"""To visit a neighbour in an index costs as much as to read this many vectors (measured)."""

MOST_CANDIDATES = 1000

EXPLAIN = "EXPLAIN (FORMAT JSON) "


def is_exact(using: str, keys: Statement | None, *, chunks: float, taken: int) -> bool:
    """Return whether reading every vector of these rows is cheaper than the index.

    ``keys`` finds the rows, and is None for all. An index has the chunks of all rows: to return
    ``taken`` chunks of ``matching`` rows it visits about ``chunks * taken / matching``.
    """
    if keys is None:
        return False
    matching = estimate(using, keys)
    return matching * matching <= SCANNED_PER_READ * max(chunks, 1.0) * taken


def estimate(using: str, keys: Statement) -> int:
    """Return how many rows the planner expects, without running the statement."""
    with connections[using].cursor() as cursor:
        # Parameters are given even if empty, so that %% in the queryset's SQL becomes %.
        database.run(cursor, EXPLAIN + keys.text, keys.parameters)
        [[plan]] = cursor.fetchall()
    # A connection may read JSON as a string, or as what it holds.
    [explained] = json.loads(plan) if isinstance(plan, str) else plan
    return int(explained["Plan"]["Plan Rows"])


def candidates(taken: int) -> int:
    """Return the ``hnsw.ef_search`` to take that many chunks from the index."""
    return min(max(taken, conf.current().hnsw_ef_search), MOST_CANDIDATES)


@contextmanager
def leaving_no_settings(using: str) -> Iterator[None]:
    """Undo the settings that a statement makes, where it is part of the caller's transaction."""
    if not connections[using].in_atomic_block:
        yield
        return
    with transaction.atomic(using=using):
        yield
        # Releasing the savepoint would keep the settings; rolling back to it does not.
        transaction.set_rollback(True, using=using)
