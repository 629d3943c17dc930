"""Choose the cheaper plan: read every vector of the rows, or read the vector index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from pgembed_django import conf, database
from pgembed_django.retrieval.selects import Statement

SCANNED_PER_READ = 5
"""Visiting one neighbour in an index costs as much as reading this many vectors (measured)."""

MOST_CANDIDATES = 1000

EXPLAIN = "EXPLAIN (FORMAT JSON) "


def is_exact(using: str, keys: Statement | None, *, chunks: float, taken: int) -> bool:
    """Return whether reading every vector of these rows is cheaper than reading the index.

    ``keys`` selects the rows. None: all. The index has the ``chunks`` chunks of all rows, so to
    return ``taken`` of those that match it visits about ``chunks * taken / matching``.
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
    # A connection may return JSON as a string, or already parsed.
    [explained] = json.loads(plan) if isinstance(plan, str) else plan
    return int(explained["Plan"]["Plan Rows"])


def candidates(taken: int) -> int:
    """Return the ``hnsw.ef_search`` with which the index returns that many chunks."""
    least: int = conf.usable("hnsw_ef_search")
    return min(max(taken, least), MOST_CANDIDATES)


@contextmanager
def leaving_no_settings(using: str) -> Iterator[None]:
    """Undo the settings that a statement makes inside the caller's transaction."""
    if connections[using].get_autocommit():
        yield
        return
    with transaction.atomic(using=using):
        yield
        # Releasing the savepoint would keep the settings; rolling back to it does not.
        transaction.set_rollback(True, using=using)
