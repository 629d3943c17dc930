"""The partial indexes of a space, built and dropped ``CONCURRENTLY``: writers need not wait.

A space has an HNSW index for nearest neighbours, on an expression with the vectors' width, and a
GIN index for full text. Below ``PGEMBED_INDEX_ROWS`` chunks it has none: then reading all vectors
is fast, and exact.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from django.db import OperationalError, ProgrammingError, connections
from psycopg import sql

from pgembed_django import conf, events
from pgembed_django.core import database, faults, locks, postgres
from pgembed_django.declaration.specs import Spec
from pgembed_django.events import LogOnce
from pgembed_django.models import Space

AUTO = "auto"

# Only one worker at a time builds indexes: two builds on one table wait for each other. Only ever
# try the lock: a session that waited for it would hold a snapshot, and the builder would wait for
# that.
LOCK = "pgembed_index_builder"

# No time-out may end a build or a drop: they wait for older transactions, however long it takes.
# ``transaction_timeout`` exists since PostgreSQL 17.
TAKE_TIME = """
    SELECT set_config(name, '0', false)
    FROM pg_settings
    WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')
"""
HELPERS = "SELECT set_config('max_parallel_maintenance_workers', %(workers)s, false)"

# By the table, not by search_path: with a schema per tenant, other schemas have an index of the
# same name.
PRESENT = """
    SELECT relname::text, indexrelid::regclass::text, indisvalid AND indisready
    FROM pg_index
    JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = %(table)s::regclass
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

CREATE = """
    CREATE INDEX CONCURRENTLY {name}
    ON {table}
    USING {method}
    WHERE space_id = {space}
"""
FULLTEXT = "gin (fulltext)"
NEAREST = "hnsw (({expression}) {operators}) WITH (m = {m}, ef_construction = {ef_construction})"

# Searches rank by how rare a word is. Of a full-text column, Postgres keeps the shares of ten times
# as many words as this target: by default, which is 100, of 1,000.
STATISTICS_TARGET = 1_000
ADD_STATISTICS = """
    ALTER TABLE {table} ALTER COLUMN fulltext SET STATISTICS {target};
    ANALYZE {table} (fulltext, source_id, space_id)
"""

DROP = "DROP INDEX CONCURRENTLY IF EXISTS {name}"

_told = LogOnce()
"""Keyed by index and database. Refused builds are tried again: the role may get the privilege."""


class Kind(NamedTuple):
    """A kind of HNSW index. ``widest``: the most dimensions that pgvector can index with it."""

    name: str
    widest: int
    expression: str
    operators: str
    distance: str
    """The operator that the index is ordered by."""
    spread: int
    """How many times as many chunks to fetch from the index as are wanted.

    If an index stores less than the full vectors, its order is approximate. So chunks from it are
    ranked again by exact distance.
    """


KINDS = (
    Kind("vector", 2000, "{column}::vector({width})", "vector_cosine_ops", "<=>", 1),
    Kind("halfvec", 4000, "{column}::halfvec({width})", "halfvec_cosine_ops", "<=>", 2),
    Kind(
        "binary",
        64_000,
        "binary_quantize({column}::vector({width}))::bit({width})",
        "bit_hamming_ops",
        "<~>",
        8,
    ),
)


class VectorIndex(NamedTuple):
    """How the vectors of one width are indexed."""

    kind: Kind
    width: int

    def of(self, column: str) -> str:
        """Return the indexed expression, as SQL."""
        return self.kind.expression.format(column=column, width=self.width)

    @property
    def wanted(self) -> str:
        """What to compare the expression with, as SQL: the query's vector, or its signs."""
        return self.of("%(vector)s") if self.kind.distance == "<~>" else "%(vector)s"


def vector_index(width: int, *, chosen: str = AUTO) -> VectorIndex:
    """Return the index for vectors of this width: of the chosen kind, if the width allows it.

    Otherwise vectors are indexed as they are up to 2,000 dimensions, in half precision up to
    4,000, and above that by their signs.
    """
    fitting = [kind for kind in KINDS if width <= kind.widest]
    return VectorIndex(next((one for one in fitting if one.name == chosen), fitting[0]), width)


def vector_name(space: Space, kind: str = "") -> str:
    """Return the name of a space's vector index of a kind. By default, of the chosen kind."""
    return f"pgembed_{space.pk}_{kind or _chosen(space).kind.name}"


def fulltext_name(space: Space) -> str:
    """Return the name of a space's full-text index."""
    return f"pgembed_{space.pk}_fulltext"


def found_among(names: Collection[str], space: Space) -> VectorIndex | None:
    """Return the space's vector index among these names, or None.

    An index of the chosen kind is preferred. While it is being built, there may be one of the
    kind that was chosen before.
    """
    for kind in (_chosen(space).kind, *KINDS):
        if vector_name(space, kind.name) in names:
            return VectorIndex(kind, space.dimensions)
    return None


def is_complete(spec: Spec, space: Space, *, using: str) -> bool:
    """Return whether the space has the indexes that its number of rows calls for."""
    return not _missing(spec, space, using=using)


def build(spec: Spec, space: Space, *, using: str) -> int:
    """Build the missing indexes, and return how many. Only one worker builds at a time.

    Call it outside a transaction. An index that a crash left invalid is built again. Vector indexes
    of other kinds are dropped once the one of the chosen kind is valid.
    """
    built = 0
    for name in _missing(spec, space, using=using):
        with _as_builder(using) as is_builder:
            if is_builder:
                with _told_if_refused(spec, name, using=using):
                    built += _build_one(spec, space, name, using=using)
    present = _present(spec, using=using)
    others = {vector_name(space, kind.name) for kind in KINDS} - {vector_name(space)}
    is_valid = vector_name(space) in present and present[vector_name(space)].is_valid
    if is_valid and others & present.keys():
        _drop(spec, others, using=using)
    return built


def drop(spec: Spec, space: Space, *, using: str) -> bool:
    """Drop the indexes of a space that is no longer searched. Return whether this was done.

    It is not done while another worker builds or drops an index.
    """
    names = {fulltext_name(space), *(vector_name(space, kind.name) for kind in KINDS)}
    return _drop(spec, names, using=using)


class _Present(NamedTuple):
    """An index in the database, by its name qualified as this session needs it."""

    qualified: str
    is_valid: bool


def _present(spec: Spec, *, using: str) -> dict[str, _Present]:
    found = database.rows(using, PRESENT, table=postgres.quoted_table(spec.embedding_model))
    return {name: _Present(*rest) for name, *rest in found}


def _missing(spec: Spec, space: Space, *, using: str) -> list[str]:
    """Return the names of the indexes that the space lacks. With too few rows it needs none."""
    present = _present(spec, using=using)
    wanted = [fulltext_name(space)] * spec.stores_words + [vector_name(space)]
    missing = [name for name in wanted if not (name in present and present[name].is_valid)]
    least = conf.current().index_rows
    if missing and least:  # count rows last, because this reads the table
        statement = sql.SQL(HAS_ROWS).format(table=_table(spec)).as_string(None)
        if database.rows(using, statement, rows=least, space=space.pk) == [(True,)]:
            return missing
    return []


def _build_one(spec: Spec, space: Space, name: str, *, using: str) -> bool:
    """Build an index, unless another worker has. Return whether it was built."""
    before = _present(spec, using=using).get(name)
    if before and before.is_valid:
        return False
    settings = conf.current()
    index = _chosen(space)
    method = sql.SQL(FULLTEXT if name == fulltext_name(space) else NEAREST).format(
        expression=sql.SQL(index.of("embedding")),
        operators=sql.SQL(index.kind.operators),
        m=sql.Literal(settings.hnsw_m),
        ef_construction=sql.Literal(settings.hnsw_ef_construction),
    )
    statement = sql.SQL(CREATE).format(
        name=sql.Identifier(name), table=_table(spec), method=method, space=sql.Literal(space.pk)
    )
    database.execute(using, HELPERS, workers=str(settings.index_workers))
    if before:
        _run(using, DROP.format(name=before.qualified))
    events.tell(events.INDEX_STARTED, spec=spec.key, index=name)
    started = time.monotonic()
    _run(using, statement.as_string(None))
    if name == fulltext_name(space):
        more = sql.SQL(ADD_STATISTICS).format(
            table=_table(spec), target=sql.Literal(STATISTICS_TARGET)
        )
        _run(using, more.as_string(None))
    seconds = time.monotonic() - started
    events.tell(events.INDEX_BUILT, spec=spec.key, index=name, seconds=seconds)
    return True


def _drop(spec: Spec, names: Collection[str], *, using: str) -> bool:
    is_done = False
    with _as_builder(using) as is_builder:
        if is_builder:
            for name, index in _present(spec, using=using).items():
                if name in names:
                    with _told_if_refused(spec, name, using=using):
                        _run(using, DROP.format(name=index.qualified))
            is_done = True
    return is_done


@contextmanager
def _as_builder(using: str) -> Iterator[bool]:
    """Try the builders' lock, and yield whether it was free.

    If Postgres ends a build because of a deadlock, this logs it: the build is tried again later.
    """
    try:
        with locks.session_lock(LOCK, using=using) as is_builder:
            if is_builder:
                database.rows(using, TAKE_TIME)
            yield is_builder
    except OperationalError as error:
        # A VACUUM or another CREATE INDEX on the same table: Postgres ended our build.
        if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise
        events.tell(events.INDEX_POSTPONED, error=str(error).strip())


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


def _run(using: str, statement: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)


def _chosen(space: Space) -> VectorIndex:
    return vector_index(space.dimensions, chosen=conf.current().index_type)


def _table(spec: Spec) -> sql.Composable:
    return sql.SQL(postgres.quoted_table(spec.embedding_model))
