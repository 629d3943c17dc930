"""Build and drop the partial indexes of a space, ``CONCURRENTLY``: writers need not wait.

A space has an HNSW index for nearest neighbours, on an expression with the vectors' width, and a
GIN index for full text. Below ``PGEMBED_INDEX_ROWS`` chunks it has none: then reading all vectors
is fast, and exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from django.db import ProgrammingError, connections
from psycopg import sql

from pgembed_django import conf, database, events, faults, postgres
from pgembed_django.models import Space
from pgembed_django.once import Told
from pgembed_django.spaces.builder import as_builder
from pgembed_django.spaces.index_kinds import KINDS, chosen_index, vector_name
from pgembed_django.specs import Spec

STATE = """
    SELECT indisvalid AND indisready
    FROM pg_index
    WHERE indexrelid = to_regclass(%(name)s)
"""

# Not by search_path: with a schema per tenant, other schemas have an index of the same name.
SCHEMA = """
    SELECT nspname::text
    FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = %(table)s::regclass
"""

# Stops counting at the bound.
HAS_ROWS = """
    SELECT count(*) >= %(rows)s
    FROM (
        SELECT
        FROM {table}
        WHERE space_id = %(space)s
        LIMIT %(rows)s
    ) AS counted
"""

CREATE_VECTOR = """
    CREATE INDEX CONCURRENTLY {name}
    ON {table}
    USING hnsw (({expression}) {operators})
    WITH (m = {m}, ef_construction = {ef_construction})
    WHERE space_id = {space}
"""

CREATE_FULLTEXT = """
    CREATE INDEX CONCURRENTLY {name}
    ON {table}
    USING gin (fulltext)
    WHERE space_id = {space}
"""

HELPERS = "SELECT set_config('max_parallel_maintenance_workers', %(workers)s, false)"

DROP = "DROP INDEX CONCURRENTLY IF EXISTS {name}"


class _Index(NamedTuple):
    """An index that a space should have, and the statement that creates it."""

    name: str
    create: sql.Composed


_told = Told()
"""Keyed by index and database. Refused builds are tried again: the role may get the privilege."""


def fulltext_name(space: Space) -> str:
    """Return the name of a space's full-text index."""
    return f"pgembed_{space.pk}_fulltext"


def is_complete(spec: Spec, space: Space, *, using: str) -> bool:
    """Return whether the space has the indexes that its number of rows calls for."""
    return not _missing(spec, space, using=using)


def build(spec: Spec, space: Space, *, using: str) -> int:
    """Build the missing indexes, and return how many. Only one worker builds at a time.

    Call it outside a transaction. An index that a crash left invalid is built again.
    """
    built = 0
    for index in _missing(spec, space, using=using):
        with as_builder(using) as is_builder:
            if is_builder:
                with _told_if_refused(spec, index.name, using=using):
                    built += _build_one(spec, index, using=using)
    _drop_other_kinds(spec, space, using=using)
    return built


def drop(spec: Spec, space: Space, *, using: str) -> bool:
    """Drop the indexes of a space that is no longer searched. Return whether this was done.

    It is not done while another worker builds or drops an index.
    """
    is_done = False
    with as_builder(using) as is_builder:
        if is_builder:
            for name in (*(vector_name(space, kind) for kind in KINDS), fulltext_name(space)):
                with _told_if_refused(spec, name, using=using):
                    _run(using, DROP, name=_qualified(spec, name, using=using))
            is_done = True
    return is_done


@contextmanager
def _told_if_refused(spec: Spec, name: str, *, using: str) -> Iterator[None]:
    """Log a refusal once and go on: only the table's owner may build, and no search needs it."""
    try:
        yield
        _told.clear((name, using))
    except ProgrammingError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        if _told.is_new((name, using), faults.said(error)):
            events.tell(events.INDEX_REFUSED, spec=spec.key, index=name, error=str(error).strip())


def _drop_other_kinds(spec: Spec, space: Space, *, using: str) -> None:
    """Drop vector indexes of other kinds, once the index of the chosen kind is valid."""
    if not _is_valid(spec, vector_name(space), using=using):
        return
    for name in {vector_name(space, kind) for kind in KINDS} - {vector_name(space)}:
        if database.rows(using, STATE, name=_qualified(spec, name, using=using).as_string(None)):
            with as_builder(using) as is_builder:
                if not is_builder:
                    continue
                with _told_if_refused(spec, name, using=using):
                    _run(using, DROP, name=_qualified(spec, name, using=using))


def _missing(spec: Spec, space: Space, *, using: str) -> list[_Index]:
    """Return the indexes that the space lacks. With too few rows it needs none."""
    least = conf.current().index_rows
    missing = [one for one in _wanted(spec, space) if not _is_valid(spec, one.name, using=using)]
    # Count rows last, because this reads the table.
    return missing if missing and least and _has_rows(spec, space, least, using=using) else []


def _wanted(spec: Spec, space: Space) -> list[_Index]:
    """Return the indexes of a space that has enough rows for them."""
    settings = conf.current()
    index = chosen_index(space)
    names: dict[str, Any] = {"table": _table(spec), "space": sql.Literal(space.pk)}
    return [
        _Index(
            fulltext_name(space),
            sql.SQL(CREATE_FULLTEXT).format(name=sql.Identifier(fulltext_name(space)), **names),
        ),
        _Index(
            vector_name(space),
            sql.SQL(CREATE_VECTOR).format(
                name=sql.Identifier(vector_name(space)),
                expression=sql.SQL(index.of("embedding")),
                operators=sql.SQL(index.kind.operators),
                m=sql.Literal(settings.hnsw_m),
                ef_construction=sql.Literal(settings.hnsw_ef_construction),
                **names,
            ),
        ),
    ]


def _build_one(spec: Spec, index: _Index, *, using: str) -> bool:
    """Build an index, unless another worker has. Return whether it was built."""
    if _is_valid(spec, index.name, using=using):
        return False
    database.execute(using, HELPERS, workers=str(conf.current().index_workers))
    _run(using, DROP, name=_qualified(spec, index.name, using=using))
    events.tell(events.INDEX_STARTED, spec=spec.key, index=index.name)
    started = time.monotonic()
    _run(using, index.create)
    seconds = time.monotonic() - started
    events.tell(events.INDEX_BUILT, spec=spec.key, index=index.name, seconds=seconds)
    return True


def _has_rows(spec: Spec, space: Space, rows: int, *, using: str) -> bool:
    statement = sql.SQL(HAS_ROWS).format(table=_table(spec)).as_string(None)
    [[has]] = database.rows(using, statement, rows=rows, space=space.pk)
    return bool(has)


def _is_valid(spec: Spec, name: str, *, using: str) -> bool:
    found = database.rows(using, STATE, name=_qualified(spec, name, using=using).as_string(None))
    return bool(found and found[0][0])


def _run(using: str, statement: str | sql.Composed, **names: sql.Composable) -> None:
    composed = sql.SQL(statement).format(**names) if isinstance(statement, str) else statement
    with connections[using].cursor() as cursor:
        cursor.execute(composed.as_string(None))


def _table(spec: Spec) -> sql.Composable:
    return sql.SQL(postgres.quoted_table(spec.embedding_model))


def _qualified(spec: Spec, name: str, *, using: str) -> sql.Composable:
    """Return an index's name qualified with the schema of its table. The table must exist."""
    [[schema]] = database.rows(using, SCHEMA, table=postgres.quoted_table(spec.embedding_model))
    return sql.Identifier(schema, name)
