"""What a search reads before it ranks: the active space, statistics, and the query's words."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from django.db import connections
from psycopg import sql

from pgembed_django import conf, spaces
from pgembed_django.chunking import truncate
from pgembed_django.core import database, postgres
from pgembed_django.core import text as texts
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Space
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces.indexes import VectorIndex, found_among

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

MOST_MATCHES = 20_000
"""If a query's words match more passages than this, its most common words are left out."""

MOST_WORDS = 32
"""A query of more words is a pasted text: only its rarest words find, and it has no operators.

Each word costs time for each passage that any of them matches.
"""

# A quoted phrase or an excluded word: a query with either is taken as written.
OPERATORS = re.compile(r'"[^"]*\w[^"]*"|(?:^|\s)-\w')

# websearch_to_tsquery reads every dash before a word, however far before it, as a NOT, and fails
# if more than 32 of them are nested. A dash that excludes nothing is a rule, a bullet or an arrow.
IDLE_DASHES = re.compile(r'(?<!\w)(?:-{2,}|-(?![\w"]))')

# A lexeme of more than 2046 bytes is an error in a tsquery. In lower case, some letters are longer.
LONGEST_WORD = re.compile(r"\S{500}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A full-text query: ``finding`` selects passages, ``ranking`` ranks and marks them.

    Both are tsqueries as text, and empty if there is nothing to search for.
    """

    finding: str
    ranking: str

    def __bool__(self) -> bool:
        return bool(self.finding)


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


class Statistics(NamedTuple):
    """The statistics of one table.

    ``common`` has the share of chunks that contain each common word. ``chunks_per_row`` counts
    the chunks of all spaces, and is infinite if unknown. ``is_of_other_language`` is as in
    ``spaces.Coverage``.
    """

    common: Mapping[str, float]
    chunks_per_row: float
    is_of_other_language: bool


def survey(target: Target[Any], text: str) -> Survey | None:
    """Return the survey for a query, or None if no space is active: no worker has started yet."""
    # Characters that the database's encoding cannot hold are in no passage: they match nothing.
    encoding = postgres.encoding(target.using)
    language = conf.current().text_search_config
    postgres.require_language(target.using, language)
    beginning = prepared(text)
    if len(beginning) > MOST_CHARACTERS:
        beginning = truncate(beginning, MOST_CHARACTERS)
    query = texts.encodable(beginning, encoding, errors="replace")
    parameters = {
        "language": language,
        "text": query,
        "table": target.table,
        "spec": target.spec.key,
    }
    width = len(_fields())
    for values in database.rows(target.using, _survey(), **parameters):
        space = _space(target.using, values[:width])
        row = _Row(*values[width:])
        known = statistics_of(target.using, target.spec, space, table_oid=row.table_oid)
        words = words_of(
            query,
            lexemes=row.lexemes,
            written=row.written,
            tree=row.tree,
            common=known.common,
            chunks=row.chunks,
        )
        index = found_among(row.valid_indexes, space)
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


def statistics_of(using: str, spec: Spec, space: Space, *, table_oid: int) -> Statistics:
    """Return the statistics of a spec's table of chunks, and whether a space is of its language.

    It takes the oid because, with a schema per tenant, a name means different tables depending on
    ``search_path``.
    """
    language = conf.current().text_search_config
    moment = int(time.monotonic() // KEPT_SECONDS)
    return _statistics(using, spec, space, table_oid, language, moment)


def forget() -> None:
    """Forget all statistics, so that they are read again."""
    _statistics.cache_clear()


@lru_cache(maxsize=MOST_KEPT)
def _statistics(
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


def prepared(text: str) -> str:
    """Return a query's text as websearch_to_tsquery takes it: no text makes it fail."""
    return LONGEST_WORD.sub(r"\g<0> ", IDLE_DASHES.sub(" ", text))


def words_of(
    text: str,
    *,
    lexemes: Sequence[str],
    written: str,
    tree: str,
    common: Mapping[str, float],
    chunks: float,
) -> Words:
    """Return the tsqueries of a query in a table of about ``chunks`` chunks.

    ``written`` is what ``websearch_to_tsquery`` makes of the text, ``tree`` its ``querytree``,
    ``common`` as in ``rarest``. A passage with any of the words is found, and ranks higher the
    more of them it has, and the more often. A query with quotes or a minus sign finds only
    passages that match it as written, unless it has more than ``MOST_WORDS``.
    """
    if len(lexemes) <= MOST_WORDS and OPERATORS.search(text):
        if tree in ("", "T"):  # no words, or only excluded ones
            return Words(finding="", ranking="")
        return Words(finding=written, ranking=written)
    telling = lexemes
    if chunks > MOST_MATCHES:
        telling = rarest(lexemes, common, most_matches=MOST_MATCHES, chunks=chunks)
    return Words(finding=any_of(telling), ranking=any_of(lexemes))


def rarest(
    words: Sequence[str], common: Mapping[str, float], *, most_matches: float, chunks: float
) -> list[str]:
    """Return the rarest words that together match at most ``most_matches`` chunks, at least one.

    At most ``MOST_WORDS``, because it is unknown how many chunks an uncommon word matches.
    ``common`` has the share of chunks that contain each common word, from the statistics.
    """
    ordered = sorted(words, key=lambda word: common.get(word, 0.0))
    telling = ordered[:1]
    matches = common.get(ordered[0], 0.0) * chunks if ordered else 0.0
    for word in ordered[1:MOST_WORDS]:
        matches += common.get(word, 0.0) * chunks
        if matches > most_matches:
            break
        telling.append(word)
    return telling


def any_of(words: Sequence[str]) -> str:
    """Return a tsquery, as text, that matches passages with any of these lexemes."""
    quoted = (word.replace("\\", "\\\\").replace("'", "''") for word in words)
    return " | ".join(f"'{word}'" for word in quoted)
