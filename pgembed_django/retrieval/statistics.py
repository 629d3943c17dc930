"""What ANALYZE knows of the stored chunks, as of some minutes ago at the most."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from pgembed_django import database

KEPT_SECONDS = 300.0

# n_distinct is a share of the table where it is negative, and 0 where nothing is known.
STATISTICS = """
    SELECT
        stats.attname::text,
        CASE
            WHEN stats.n_distinct < 0 THEN -1 / stats.n_distinct
            WHEN stats.n_distinct > 0 THEN class.reltuples / stats.n_distinct
        END,
        stats.most_common_elems::text::text[],
        stats.most_common_elem_freqs
    FROM pg_class AS class
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    JOIN pg_stats AS stats ON stats.schemaname = namespace.nspname
        AND stats.tablename = class.relname
        AND stats.attname IN ('fulltext', 'source_id')
    WHERE class.oid = to_regclass(%(table)s)
"""


class Statistics(NamedTuple):
    """What is known of one table.

    ``common`` has the share of chunks that a common word is in. ``chunks_per_row`` is
    infinite where nobody knows. It counts those of all spaces.
    """

    common: Mapping[str, float]
    chunks_per_row: float


_kept: dict[tuple[str, str], tuple[float, Statistics]] = {}


def of(using: str, table: str) -> Statistics:
    """Return the statistics of a table with chunks."""
    read_at, known = _kept.get((using, table), (-math.inf, None))
    if known is None or time.monotonic() - read_at > KEPT_SECONDS:
        known = _read(using, table)
        _kept[using, table] = time.monotonic(), known
    return known


def forget() -> None:
    """Read them anew when they are needed."""
    _kept.clear()


def _read(using: str, table: str) -> Statistics:
    columns = {column: told for column, *told in database.rows(using, STATISTICS, table=table)}
    _, words, shares = columns.get("fulltext", (None, None, None))
    chunks_per_row, _, _ = columns.get("source_id", (None, None, None))
    # The frequencies end with those of no word: the least, the most, and of none at all.
    return Statistics(
        common=dict(zip(words or (), shares or (), strict=False)),
        # Of a table that was emptied the one number may be newer than the other.
        chunks_per_row=max(1.0, chunks_per_row or math.inf),
    )
