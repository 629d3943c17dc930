"""The space that is searched, and what Postgres's full text makes of a query there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from django.db import connections
from psycopg import sql

from pgembed_django import conf, database
from pgembed_django import text as texts
from pgembed_django.models import Space
from pgembed_django.retrieval import statistics
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces import indexes
from pgembed_django.spaces.kinds import VectorIndex

MOST_CHARACTERS = 1000
"""What is read of a query. Whoever pastes a page is served by its meaning."""

MOST_MATCHES = 20_000
"""How many passages are ranked by their words before common words are left out."""

# A quoted phrase, or a word that is not to be there: somebody knows what to ask for.
OPERATORS = re.compile(r'"[^"]*\w[^"]*"|(?:^|\s)-\w')

# The active space, and what else has to be known of a query, at the price of one statement.
# reltuples is -1 where a table was never analyzed.
OPEN = """
    SELECT
        {space},
        tsvector_to_array(to_tsvector(%(language)s::regconfig, %(text)s)) AS query_words,
        websearch_to_tsquery(%(language)s::regconfig, %(text)s)::text AS query_written,
        querytree(websearch_to_tsquery(%(language)s::regconfig, %(text)s)) AS query_tree,
        (SELECT reltuples FROM pg_class WHERE oid = to_regclass(%(table)s)) AS stored_chunks,
        ARRAY(
            SELECT named.relname::text
            FROM pg_index
            JOIN pg_class AS named ON named.oid = indexrelid
            WHERE indrelid = to_regclass(%(table)s)
              AND indisvalid
        ) AS valid_indexes
    FROM pgembed_space AS space
    WHERE space.spec = %(spec)s
      AND space.state = 'active'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A query as full text: which passages it finds, and what ranks and marks them.

    Both are tsqueries, and empty where there is nothing to look for.
    """

    finding: str
    ranking: str

    def __bool__(self) -> bool:
        return bool(self.finding)


class Opened(NamedTuple):
    """The space that is searched, and what a query's words are there.

    ``vector_index`` is None where there is none, ``chunks`` about how many it would hold.
    ``chunks_per_row`` is infinite where nobody knows.
    """

    space: Space
    words: Words
    vector_index: VectorIndex | None = None
    chunks: float = 0.0
    chunks_per_row: float = math.inf


class Told(NamedTuple):
    """What ``OPEN`` tells beside the space."""

    words: list[str]
    written: str
    tree: str
    chunks: float
    valid_indexes: list[str]


def open_space(target: Target[Any], text: str) -> Opened | None:
    """Return the active space, or None before the first worker has started.

    Passages with any of the text's words are found. Those with more of them, more often,
    rank higher. With operators, quotes or a minus sign, only what matches as written.
    """
    read = texts.cut(text, MOST_CHARACTERS)
    parameters = {
        "language": conf.current().text_search_config,
        "text": read,
        "table": target.table,
        "spec": target.spec.key,
    }
    for row in database.rows(target.using, _open(), **parameters):
        width = len(Space._meta.concrete_fields)
        space = _space(target.using, row[:width])
        told = Told(*row[width:])
        known = statistics.of(target.using, target.table)
        words = _words(read, told, known.common)
        index = indexes.found_among(told.valid_indexes, space)
        return Opened(space, words, index, told.chunks, known.chunks_per_row)
    return None


@cache
def _open() -> str:
    columns = [sql.Identifier("space", str(field.column)) for field in Space._meta.concrete_fields]
    return sql.SQL(OPEN).format(space=sql.SQL(", ").join(columns)).as_string(None)


def _space(using: str, values: Sequence[Any]) -> Space:
    """Return the instance that a queryset would make of these values, and sooner."""
    connection = connections[using]
    fields = Space._meta.concrete_fields
    read = []
    for field, value in zip(fields, values, strict=True):
        for converter in field.get_db_converters(connection):
            value = converter(value, field, connection)
        read.append(value)
    return Space.from_db(using, [field.attname for field in fields], read)


def _words(read: str, told: Told, common: Mapping[str, float]) -> Words:
    if told.tree in ("", "T"):  # nothing, or only what is not to be there
        return Words(finding="", ranking="")
    if OPERATORS.search(read):
        return Words(finding=told.written, ranking=told.written)
    telling = told.words
    if told.chunks > MOST_MATCHES:
        telling = rarest(telling, common, most_matches=MOST_MATCHES, chunks=told.chunks)
    return Words(finding=any_of(telling), ranking=any_of(told.words))


def rarest(
    words: Sequence[str], common: Mapping[str, float], *, most_matches: float, chunks: float
) -> list[str]:
    """Return the words that find something new for a bounded price: always the rarest one.

    ``common`` has the share of chunks that a common word is in, as the statistics tell.
    """
    ordered = sorted(words, key=lambda word: common.get(word, 0.0))
    telling = ordered[:1]
    matches = common.get(ordered[0], 0.0) * chunks if ordered else 0.0
    for word in ordered[1:]:
        matches += common.get(word, 0.0) * chunks
        if matches > most_matches:
            break
        telling.append(word)
    return telling


def any_of(words: Sequence[str]) -> str:
    """Return the tsquery, as text, of passages with any of these lexemes."""
    quoted = (word.replace("\\", "\\\\").replace("'", "''") for word in words)
    return " | ".join(f"'{word}'" for word in quoted)
