"""What a search reads before it ranks: the active space, statistics, and the query's words."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.translation import get_language
from psycopg import sql

from pgembed_django.chunking import truncate
from pgembed_django.core import database, languages, postgres
from pgembed_django.core import text as texts
from pgembed_django.exceptions import SearchError
from pgembed_django.models import Space
from pgembed_django.retrieval import bm25
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces.indexes import VectorIndex, found_among

MOST_CHARACTERS = 4000
"""How much of a query is searched by words. For the rest of a longer text, meaning is enough."""

# One statement reads the active space and everything else that a query needs.
# reltuples is -1 if the table was never analyzed.
SURVEY = """
    SELECT
        {space},
        ARRAY(SELECT lexeme FROM unnest(query.words)) AS query_lexemes,
        ARRAY(SELECT cardinality(positions) FROM unnest(query.words)) AS query_times,
        query.required::text AS query_required,
        -- T: it has nothing but exclusions.
        querytree(query.required) NOT IN ('', 'T') AS query_is_narrow,
        stored.oid AS table_oid,
        stored.reltuples AS stored_chunks,
        ARRAY(
            SELECT named.relname::text
            FROM pg_index
            JOIN pg_class AS named ON named.oid = indexrelid
            WHERE indrelid = stored.oid
              AND indisvalid
        ) AS valid_indexes,
        words.finished_recipe AS words_recipe
    FROM pgembed_space AS space
    CROSS JOIN (
        SELECT
            to_tsvector(%(language)s::regconfig, %(text)s),
            websearch_to_tsquery(%(language)s::regconfig, %(operators)s)
    ) AS query (words, required)
    LEFT JOIN pg_class AS stored ON stored.oid = to_regclass(%(table)s)
    LEFT JOIN pgembed_scancursor AS words
      ON words.spec = space.spec
     AND words.scan = 'words'
    WHERE space.spec = %(spec)s
      AND space.state = 'active'
"""

KEPT_SECONDS = 300.0
MOST_KEPT = 128
"""How many tables' statistics to cache. With a schema per tenant there may be thousands."""

# A negative n_distinct is minus the share of distinct values among the rows. 0 means unknown.
CHUNKS_PER_ROW = """
    SELECT
        CASE
            WHEN stats.n_distinct < 0 THEN -1 / stats.n_distinct
            WHEN stats.n_distinct > 0 THEN class.reltuples / stats.n_distinct
        END
    FROM pg_class AS class
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    JOIN pg_stats AS stats ON stats.schemaname = namespace.nspname
        AND stats.tablename = class.relname
        AND stats.attname = 'source_id'
    WHERE class.oid = %(table_oid)s::oid
"""

MOST_WITH_OPERATORS = 12
"""In a query of more words, quotes and dashes are those of a text, and no operators."""

OPERATOR = re.compile(r'-?"[^"]*\w[^"]*"|(?<!\S)-\w\S*')
"""A quoted phrase, or an excluded word or phrase."""

QUOTE = '"'

EITHER = re.compile(r"\sor\s", re.IGNORECASE)

# websearch_to_tsquery reads every dash before a word, however far before it, as a NOT, and fails
# if more than 32 of them are nested. A dash that excludes nothing is a rule, a bullet or an arrow.
IDLE_DASHES = re.compile(r'(?<!\w)(?:-{2,}|-(?![\w"]))')

# A lexeme of more than 2046 bytes is an error in a tsquery. In lower case, some letters are longer.
LONGEST_WORD = re.compile(r"\S{500}")


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a query, as Postgres has them: how often the query has each lexeme.

    ``language`` is the full-text configuration that they were made with. ``required`` is the
    tsquery that passages must match besides, as text, or empty. ``is_narrow``: it requires a phrase
    or a word, and does not only exclude some.
    """

    times: Mapping[str, int]
    language: str
    required: str = ""
    is_narrow: bool = False

    def __bool__(self) -> bool:
        return bool(self.times)

    @property
    def any(self) -> str:
        """The tsquery, as text, that finds passages with any of the words."""
        return bm25.any_of(self.times)


class Survey(NamedTuple):
    """The active space, and the query's words for it.

    ``vector_index`` is None if the space has none. ``chunks`` is the approximate number of chunks
    in the table, and negative if unknown. ``chunks_per_row`` is infinite if unknown.
    ``is_of_other_language``: the texts were stored with another full-text configuration, and not
    all of them are mended yet.
    """

    space: Space
    words: Words
    table_oid: int = 0
    vector_index: VectorIndex | None = None
    chunks: float = 0.0
    chunks_per_row: float = math.inf
    is_of_other_language: bool = False


class _Row(NamedTuple):
    """The columns of ``SURVEY`` after those of the space."""

    lexemes: list[str]
    times: list[int]
    required: str
    is_narrow: bool
    table_oid: int
    chunks: float
    valid_indexes: list[str]
    words_recipe: str | None
    """With what all words were made when a scan last ended. None: no worker has started yet."""


def survey(target: Target[Any], text: str, *, language: str | None = None) -> Survey | None:
    """Return the survey for a query, or None if no space is active: no worker has started yet.

    ``language`` is as in ``search``. Raises what ``language_of`` does.
    """
    # Characters that the database's encoding cannot hold are in no passage: they match nothing.
    encoding = postgres.encoding(target.using)
    language = language_of(target, language)
    beginning = prepared(text)
    if len(beginning) > MOST_CHARACTERS:
        beginning = truncate(beginning, MOST_CHARACTERS)
    words, operators = parted(texts.encodable(beginning, encoding, errors="replace"))
    parameters = {
        "language": language,
        "text": words,
        "operators": operators,
        "table": target.table,
        "spec": target.spec.key,
    }
    width = len(_fields())
    for values in database.rows(target.using, _survey(), **parameters):
        space = _space(target.using, values[:width])
        row = _Row(*values[width:])
        times = dict(zip(row.lexemes, row.times, strict=True))
        index = found_among(row.valid_indexes, space)
        return Survey(
            space,
            Words(times, language, row.required, row.is_narrow),
            row.table_oid,
            index,
            row.chunks,
            chunks_per_row(target.using, table_oid=row.table_oid),
            row.words_recipe not in {None, target.spec.words_recipe},
        )
    return None


def language_of(target: Target[Any], language: str | None) -> str:
    """Return the full-text configuration for a query.

    Without ``language``, it is that of the texts. Where each row has its own, it is that of the
    active language.

    Raises:
        SearchError: the database does not have that of ``language``.
        ImproperlyConfigured: nor that of the declaration or the settings.
    """
    spec, using = target.spec, target.using
    if language is not None and not (isinstance(language, str) and language):
        raise SearchError(
            f"language is {language!r}. Give a full-text configuration, or a language code."
        )
    active = get_language() if spec.language_column else None
    name = languages.configuration(language or active or spec.configuration)
    try:
        postgres.require_language(using, name)
    except LookupError as error:
        if language is not None:
            raise SearchError(f"language is {language!r}, {error}") from None
        if active is not None:
            return languages.FALLBACK
        what = "PGEMBED_TEXT_SEARCH_CONFIG"
        if spec.language and not spec.language_column:
            what = f"@embeddable on {spec.model.__name__}: language"
        raise ImproperlyConfigured(f"{what} is {name!r}, {error}") from None
    return name


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


def chunks_per_row(using: str, *, table_oid: int) -> float:
    """Return how many chunks of all spaces a table has for each row. Infinite if unknown.

    It takes the oid because, with a schema per tenant, a name means different tables depending on
    ``search_path``.
    """
    return _chunks_per_row(using, table_oid, int(time.monotonic() // KEPT_SECONDS))


def forget() -> None:
    """Forget all statistics, so that they are read again."""
    _chunks_per_row.cache_clear()


@lru_cache(maxsize=MOST_KEPT)
def _chunks_per_row(using: str, table_oid: int, moment: int) -> float:
    # ``moment`` is only part of the cache's key. It changes every KEPT_SECONDS.
    found = database.rows(using, CHUNKS_PER_ROW, table_oid=table_oid)
    [[per_row]] = found or [(None,)]
    # After a table was emptied, reltuples may be newer than n_distinct: the ratio is below 1.
    return max(1.0, per_row or math.inf)


def prepared(text: str) -> str:
    """Return a query's text as websearch_to_tsquery takes it: no text makes it fail."""
    return LONGEST_WORD.sub(r"\g<0> ", IDLE_DASHES.sub(" ", text))


def parted(text: str) -> tuple[str, str]:
    """Return the words to look for in a query's text, and what it requires besides.

    Any of the words is enough. A quoted phrase must be there as it is, and what follows a minus
    sign must not. With an ``or`` between them, the query as a whole is required.
    """
    operators = [_operator(found) for found in OPERATOR.findall(text)]
    if not operators or len(text.split()) > MOST_WITH_OPERATORS:
        return languages.apart(text), ""
    others = [languages.apart(between) for between in OPERATOR.split(text)]
    words = " ".join([*others, *(one for one in operators if not one.startswith("-"))])
    whole = "".join(map("".join, zip_longest(others, operators, fillvalue="")))
    return words, whole if EITHER.search(whole) else " ".join(operators)


def _operator(text: str) -> str:
    """Return a phrase or an exclusion, whose words Postgres takes one by one."""
    sign = "-" if text.startswith("-") else ""
    return f'{sign}"{languages.apart(text).replace(QUOTE, " ").strip()}"'
