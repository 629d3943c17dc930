"""Read what a search needs first: the active space, its index, the query's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import connections
from psycopg import sql

from pgembed_django import database, language, postgres
from pgembed_django import text as texts
from pgembed_django.models import Space
from pgembed_django.retrieval import statistics
from pgembed_django.retrieval import words as words_of
from pgembed_django.retrieval.targets import Target
from pgembed_django.retrieval.words import Words
from pgembed_django.spaces import indexes
from pgembed_django.spaces.index_kinds import VectorIndex

MOST_CHARACTERS = 1000
"""How much of a query is searched by words. For the rest of a longer text, meaning is enough."""

# One statement reads the active space and everything else that a query needs.
# reltuples is -1 if the table was never analyzed.
SURVEY = """
    SELECT
        {space},
        tsvector_to_array(to_tsvector(%(language)s::regconfig, %(text)s)) AS query_lexemes,
        websearch_to_tsquery(%(language)s::regconfig, %(text)s)::text AS query_written,
        querytree(websearch_to_tsquery(%(language)s::regconfig, %(text)s)) AS query_tree,
        stored.oid AS table_oid,
        stored.reltuples AS stored_chunks,
        ARRAY(
            SELECT named.relname::text
            FROM pg_index
            JOIN pg_class AS named ON named.oid = indexrelid
            WHERE indrelid = stored.oid
              AND indisvalid
        ) AS valid_indexes
    FROM pgembed_space AS space
    LEFT JOIN pg_class AS stored ON stored.oid = to_regclass(%(table)s)
    WHERE space.spec = %(spec)s
      AND space.state = 'active'
"""


class Survey(NamedTuple):
    """The active space, and the query's words for it.

    ``vector_index`` is None if the space has none. ``chunks`` is the approximate number of chunks
    in the table. ``chunks_per_row`` is infinite if unknown.
    """

    space: Space
    words: Words
    vector_index: VectorIndex | None = None
    chunks: float = 0.0
    chunks_per_row: float = math.inf
    is_of_other_language: bool = False


class _Row(NamedTuple):
    """The columns of ``SURVEY`` after those of the space."""

    lexemes: list[str]
    written: str
    tree: str
    table_oid: int
    chunks: float
    valid_indexes: list[str]


def survey(target: Target[Any], text: str) -> Survey | None:
    """Return the survey for a query, or None if no space is active: no worker has started yet."""
    # Characters that the database's encoding cannot hold are in no passage: they match nothing.
    encoding = postgres.encoding(target.using)
    beginning = texts.cut(words_of.prepared(text), MOST_CHARACTERS)
    read = texts.encodable(beginning, encoding, errors="replace")
    parameters = {
        "language": language.of(target.using),
        "text": read,
        "table": target.table,
        "spec": target.spec.key,
    }
    width = len(_fields())
    for values in database.rows(target.using, _survey(), **parameters):
        space = _space(target.using, values[:width])
        row = _Row(*values[width:])
        known = statistics.of(target.using, target.spec, space, table_oid=row.table_oid)
        words = words_of.of(
            read,
            lexemes=row.lexemes,
            written=row.written,
            tree=row.tree,
            common=known.common,
            chunks=row.chunks,
        )
        index = indexes.found_among(row.valid_indexes, space)
        return Survey(
            space,
            words,
            index,
            row.chunks,
            known.chunks_per_row,
            known.is_of_other_language,
        )
    return None


@cache
def _fields() -> list[Any]:
    """Return the fields to read: not the canary, which may be as long as some vectors."""
    return [field for field in Space._meta.concrete_fields if field.name != "canary"]


@cache
def _survey() -> str:
    columns = [sql.Identifier("space", str(field.column)) for field in _fields()]
    return sql.SQL(SURVEY).format(space=sql.SQL(", ").join(columns)).as_string(None)


def _space(using: str, values: Sequence[Any]) -> Space:
    """Return the instance that a queryset would make from these values, but faster."""
    connection = connections[using]
    fields = _fields()
    read = []
    for field, value in zip(fields, values, strict=True):
        for converter in field.get_db_converters(connection):
            value = converter(value, field, connection)
        read.append(value)
    return Space.from_db(using, [field.attname for field in fields], read)
