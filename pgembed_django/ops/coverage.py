"""Count how many rows of each spec its live spaces cover. Large tables are sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, Manager, Q, QuerySet, TextField, Value
from django.db.models.expressions import RawSQL
from psycopg import sql

from pgembed_django.core import database, postgres
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Space
from pgembed_django.spaces import Coverage, is_empty, is_found, words
from pgembed_django.triggers import installed

BUDGET = 20_000
"""How many source rows one overview reads, divided among the spaces."""

MAX_SAMPLE = 5000
MIN_SAMPLE = 500
ROWS_PER_PAGE = 40
"""Assumed for a table that was never analyzed."""

# pg_relation_size and pg_partition_tree wait while the whole table is locked, so they are not
# called for locked tables.
TABLES = """
    SELECT
        spec,
        statement_timestamp(),
        source IS NOT NULL AND embedding IS NOT NULL AS is_there,
        is_locked,
        COALESCE(bytes::float8 / current_setting('block_size')::int, 0) AS pages,
        rows_per_page,
        (
            SELECT count(*)
            FROM unnest(%(watched)s::text[], %(triggers)s::text[], %(tables)s::text[])
                AS declared(of_spec, name, rows)
            WHERE of_spec = spec
              AND NOT EXISTS (
                  SELECT
                  FROM pg_trigger
                  WHERE tgrelid = to_regclass(rows)
                    AND tgname = name
                    AND tgenabled::text = ANY(%(fires)s)
              )
        ) AS silent_triggers,
        (
            SELECT finished_recipe
            FROM pgembed_scancursor AS words
            WHERE words.spec = wanted.spec
              AND scan = 'words'
        ) AS words_recipe
    FROM (SELECT) AS one
    -- Without specs, one row that only has the time.
    LEFT JOIN LATERAL (
        SELECT spec, to_regclass(source) AS source, to_regclass(embedding) AS embedding
        FROM unnest(
            %(specs)s::text[], %(sources)s::text[], %(embeddings)s::text[]
        ) AS wanted(spec, source, embedding)
    ) AS wanted
      ON true
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT
            FROM pg_locks
            WHERE locktype = 'relation'
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND relation IN (source, embedding)
              AND mode = 'AccessExclusiveLock'
        ) AS is_locked
    ) AS locks
    CROSS JOIN LATERAL (
        SELECT
            sum(pg_relation_size(oid)) AS bytes,
            sum(reltuples) FILTER (WHERE is_analyzed)
                / sum(relpages) FILTER (WHERE is_analyzed) AS rows_per_page
        FROM (SELECT *, reltuples >= 0 AND relpages > 0 AS is_analyzed FROM pg_class) AS parts
        -- A partitioned table has no pages of its own: its partitions have.
        WHERE oid = ANY(
            CASE
                WHEN is_locked THEN '{}'
                ELSE ARRAY(SELECT relid::oid FROM pg_partition_tree(source)) || source::oid
            END
        )
    ) AS sized
"""

# REPEATABLE: the same sample each time, so that the count does not vary by chance.
SAMPLE = "SELECT {key} FROM {table} TABLESAMPLE SYSTEM (%s) REPEATABLE (0)"


class Table(NamedTuple):
    """A spec's source table. ``is_there`` is false if the spec's tables are not migrated.

    ``rows`` is an estimate by the planner's statistics, or a guess if there are none.
    ``silent_triggers`` counts the triggers that are missing or disabled. ``words_recipe`` is how
    the words of all texts were last made: None if no worker has started yet.
    """

    is_there: bool
    is_locked: bool
    rows: float
    has_statistics: bool
    silent_triggers: int
    words_recipe: str | None


COLUMNS = ("pgembed_first", "pgembed_second")
"""One column for the active space, and one for the space that is being built."""


def read_tables(specs: Sequence[Spec], *, using: str) -> tuple[datetime, dict[str, Table]]:
    """Return the database's time, and the specs' tables by spec key. Reads only the catalogue."""
    declared = installed.names([spec.key for spec in specs])
    found = database.rows(
        using,
        TABLES,
        watched=[key for key, _, _ in declared],
        triggers=[name for _, name, _ in declared],
        tables=[table for _, _, table in declared],
        fires=list(installed.FIRES),
        specs=[spec.key for spec in specs],
        sources=[postgres.quoted_table(spec.model) for spec in specs],
        embeddings=[postgres.quoted_table(spec.embedding_model) for spec in specs],
    )
    now: datetime = found[0][1]
    return now, {
        key: Table(
            is_there, is_locked, pages * (per_page or ROWS_PER_PAGE), bool(per_page), *others
        )
        for key, _, is_there, is_locked, pages, per_page, *others in found
        if key is not None
    }


def read_coverage(
    specs: Sequence[Spec],
    live: Mapping[str, Sequence[Space]],
    of: Mapping[str, Table],
    *,
    using: str,
    is_exact: bool = False,
) -> dict[int, Coverage]:
    """Return the coverage of the live spaces by their ids, in one query if possible.

    Spaces whose tables are missing or locked are left out.
    """
    spaces = {
        spec.key: list(live.get(spec.key, ()))
        for spec in specs
        if of[spec.key].is_there and not of[spec.key].is_locked
    }
    number = sum(len(some) for some in spaces.values())
    wanted = max(MIN_SAMPLE, min(MAX_SAMPLE, BUDGET // (number or 1)))
    shares = {
        key: 1.0 if is_exact or of[key].rows <= 2 * wanted else wanted / of[key].rows
        for key in spaces
    }
    queries = [
        _query(spec, spaces[spec.key], shares[spec.key], using=using)
        for spec in specs
        if spaces.get(spec.key)
    ]
    found: dict[int, Coverage] = {}
    for row in database.read_each(queries, using=using):
        key, looked_at = row["pgembed_spec"], row["pgembed_all"]
        if shares[key] < 1 and not looked_at:
            continue  # the sample is empty: nothing is known
        # Without statistics, the share of the pages that was read tells more than the guess.
        is_known = shares[key] < 1 and of[key].has_statistics
        factor = of[key].rows / looked_at if is_known else 1 / shares[key]
        for space, column in zip(spaces[key], COLUMNS, strict=False):
            found[space.pk] = Coverage(
                rows=round(row["pgembed_rows"] * factor),
                covered=round(row[column] * factor),
                is_estimated=shares[key] < 1,
            )
    return found


def read_words(specs: Sequence[Spec], of: Mapping[str, Table], *, using: str) -> dict[str, float]:
    """Return how far the words of texts follow a changed language, roughly, from 0 to 1.

    By spec key, without those that have followed it, and those whose tables are missing or locked.
    """
    found = {}
    for spec in specs:
        table = of[spec.key]
        is_behind = table.words_recipe not in {None, spec.words_recipe}
        if is_behind and table.is_there and not table.is_locked:
            with suppress(database.Busy), database.giving_way(using):
                found[spec.key] = words.share(spec, using=using)
    return found


def _query(
    spec: Spec, spaces: Sequence[Space], share: float, *, using: str
) -> QuerySet[Any, dict[str, Any]]:
    """Return a query that counts one spec's rows: one row, with a column per space.

    It reads only a sample of the table's pages, if ``share`` is less than 1.
    """
    rows = spec.model._base_manager.using(using).order_by()
    if type(spec.model._base_manager) is not Manager:  # its joins would count rows twice
        rows = QuerySet(spec.model, using=using).filter(pk__in=rows.values("pk")).order_by()
    if share < 1:
        meta: Any = spec.model._meta
        key, table = sql.Identifier(meta.pk.column), sql.SQL(postgres.quoted_table(spec.model))
        sample = sql.SQL(SAMPLE).format(key=key, table=table).as_string(None)
        rows = rows.filter(pk__in=RawSQL(sample, [100 * share]))  # noqa: S611 - quoted, bound
    when = spec.when or Q()
    counts: dict[str, Any] = {
        column: Count("pk", filter=when & is_found(spec, space))
        for space, column in zip(spaces, COLUMNS, strict=False)
    }
    for column in COLUMNS[len(spaces) :]:
        counts[column] = Value(0)
    counted: QuerySet[Any, dict[str, Any]] = rows.values(
        pgembed_spec=Value(spec.key, TextField())
    ).annotate(
        pgembed_all=Count("*"),
        pgembed_rows=Count("pk", filter=when & ~is_empty(spec, spaces)),
        **counts,
    )
    return counted
