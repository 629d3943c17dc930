"""Read what ANALYZE knows about the stored chunks, and cache it for some minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from pgembed_django import conf, database, spaces
from pgembed_django.models import Space
from pgembed_django.specs import Spec

KEPT_SECONDS = 300.0
MOST_KEPT = 128
"""How many tables' statistics to cache. With a schema per tenant there may be thousands."""

# A negative n_distinct is minus the share of distinct values among the rows. 0 means unknown.
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
    WHERE class.oid = %(table_oid)s::oid
"""


class Statistics(NamedTuple):
    """The statistics of one table.

    ``common`` has the share of chunks that contain each common word. ``chunks_per_row`` counts
    the chunks of all spaces, and is infinite if unknown. ``is_of_other_language`` is as in
    ``spaces.Coverage``.
    """

    common: Mapping[str, float]
    chunks_per_row: float
    is_of_other_language: bool


def of(using: str, spec: Spec, space: Space, *, table_oid: int) -> Statistics:
    """Return the statistics of a spec's table of chunks, and whether a space is of its language.

    It takes the oid because, with a schema per tenant, a name means different tables depending on
    ``search_path``.
    """
    language = conf.current().text_search_config
    moment = int(time.monotonic() // KEPT_SECONDS)
    return _read(using, spec, space, table_oid, language, moment)


def forget() -> None:
    """Forget all statistics, so that they are read again."""
    _read.cache_clear()


@lru_cache(maxsize=MOST_KEPT)
def _read(
    using: str, spec: Spec, space: Space, table_oid: int, language: str, moment: int
) -> Statistics:
    # The last two are only part of the cache's key. ``moment`` changes every KEPT_SECONDS.
    found = database.rows(using, STATISTICS, table_oid=table_oid)
    columns = {column: told for column, *told in found}
    _, words, shares = columns.get("fulltext", (None, None, None))
    chunks_per_row, _, _ = columns.get("source_id", (None, None, None))
    # Three more frequencies follow those of the words: the minimum, the maximum, that of NULL.
    return Statistics(
        common=dict(zip(words or (), shares or (), strict=False)),
        # After a table was emptied, reltuples may be newer than n_distinct: the ratio is below 1.
        chunks_per_row=max(1.0, chunks_per_row or math.inf),
        is_of_other_language=spaces.of_other_language(spec, space).using(using).exists(),
    )
