"""What Postgres's full text makes of a query, and what its words cost to look for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pgembed_django import conf, database
from pgembed_django import text as texts
from pgembed_django.models import Space
from pgembed_django.retrieval.targets import Target
from pgembed_django.spaces import indexes
from pgembed_django.spaces.kinds import VectorIndex

MOST_CHARACTERS = 1000
"""What is read of a query. Whoever pastes a page is served by its meaning."""

MOST_MATCHES = 20_000
"""How many passages are ranked by their words before common words are left out."""

STATISTICS_SECONDS = 300.0

# A quoted phrase, or a word that is not to be there: somebody knows what to ask for.
OPERATORS = re.compile(r'"[^"]*\w[^"]*"|(?:^|\s)-\w')

# The active space, and what else has to be known of a query, at the price of one statement.
# reltuples is -1 where a table was never analyzed.
OPEN = """
    SELECT
        space.*,
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

TOLD = ("query_words", "query_written", "query_tree", "stored_chunks", "valid_indexes")

COMMON = """
    SELECT common.word, common.frequency
    FROM pg_class AS class
    JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace
    JOIN pg_stats AS stats ON stats.schemaname = namespace.nspname
        AND stats.tablename = class.relname
        AND stats.attname = 'fulltext'
    CROSS JOIN unnest(
        stats.most_common_elems::text::text[],
        stats.most_common_elem_freqs
    ) AS common(word, frequency)
    WHERE class.oid = to_regclass(%(table)s)
      AND common.word IS NOT NULL
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
    """

    space: Space
    words: Words
    vector_index: VectorIndex | None = None
    chunks: float = 0.0


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
    for space in Space.objects.using(target.using).raw(OPEN, parameters):
        told = {name: vars(space).pop(name) for name in TOLD}
        index = indexes.found_among(told["valid_indexes"], space)
        words = _words(target.using, target.table, read, told)
        return Opened(space, words, index, told["stored_chunks"])
    return None


def _words(using: str, table: str, read: str, told: dict[str, Any]) -> Words:
    if told["query_tree"] in ("", "T"):  # nothing, or only what is not to be there
        return Words(finding="", ranking="")
    if OPERATORS.search(read):
        return Words(finding=told["query_written"], ranking=told["query_written"])
    telling = told["query_words"]
    if told["stored_chunks"] > MOST_MATCHES:
        telling = rarest(
            telling,
            _common(using, table),
            most_matches=MOST_MATCHES,
            chunks=told["stored_chunks"],
        )
    return Words(finding=any_of(telling), ranking=any_of(told["query_words"]))


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


_statistics: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}


def _common(using: str, table: str) -> dict[str, float]:
    """Return the shares of a table's common words, as of some minutes ago at the most."""
    read_at, common = _statistics.get((using, table), (float("-inf"), {}))
    if time.monotonic() - read_at > STATISTICS_SECONDS:
        common = dict(database.rows(using, COMMON, table=table))
        _statistics[using, table] = time.monotonic(), common
    return common
