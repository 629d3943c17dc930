"""The statements on a generated table, with its names filled in, and how all of them are sent."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from psycopg import sql

from pgembed_django import database, postgres
from pgembed_django.specs import Spec

# Reads the staged digests in the same round trip: they are few.
STORED = """
    SELECT
        source_id::text,
        space_id,
        chunk_digest,
        false AS is_staged,
        id,
        position,
        start_offset,
        end_offset,
        text_digest,
        embedding IS NOT NULL
    FROM {table}
    WHERE source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND space_id = ANY(%(space_ids)s::bigint[])
  UNION ALL
    SELECT source_pk, space_id, chunk_digest, true, NULL, NULL, NULL, NULL, NULL, NULL
    FROM pgembed_staging
    WHERE spec = %(spec)s
      AND source_pk = ANY(%(source_pks)b::text[])
"""

# A text has one digest, however many chunks it has.
TEXT_DIGESTS = """
    SELECT DISTINCT source_id::text, text_digest
    FROM {table}
    WHERE source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND space_id = ANY(%(space_ids)s::bigint[])
"""

# A chunk without a given vector takes that of a row with the same digest, or the one that an
# earlier run of the job staged. The statement sees the rows that it deletes until its end.
REPLACE = """
    WITH dropped AS (
        DELETE FROM {table}
        WHERE id = ANY(%(dropped)s::bigint[])
        RETURNING id
    )
    INSERT INTO {table} (
        source_id, space_id, position, start_offset, end_offset,
        passage, chunk_digest, text_digest, embedding, was_cut, fulltext
    )
    SELECT
        new.source_pk::{key},
        new.space_id,
        new.position,
        new.start_offset,
        new.end_offset,
        CASE WHEN %(store_text)s THEN new.passage END,
        new.chunk_digest,
        new.text_digest,
        COALESCE(new.embedding, reused.embedding),
        COALESCE(reused.was_cut, new.was_cut),
        to_tsvector(%(language)s::regconfig, new.passage)
    FROM unnest(
        %(source_pks)b::text[],
        %(space_ids)s::bigint[],
        %(positions)s::int[],
        %(starts)s::int[],
        %(ends)s::int[],
        %(passages)b::text[],
        %(chunk_digests)b::bytea[],
        %(text_digests)b::bytea[],
        %(embeddings)b::vector[],
        %(was_cut)s::bool[]
    ) AS new(
        source_pk, space_id, position, start_offset, end_offset,
        passage, chunk_digest, text_digest, embedding, was_cut
    )
    LEFT JOIN LATERAL (
        SELECT old.embedding, old.was_cut
        FROM {table} AS old
        WHERE %(reuse)s
          AND new.embedding IS NULL
          AND old.source_id = new.source_pk::{key}
          AND old.space_id = new.space_id
          AND old.chunk_digest = new.chunk_digest
          AND old.embedding IS NOT NULL
      UNION ALL
        SELECT staged.embedding, staged.was_cut
        FROM pgembed_staging AS staged
        WHERE %(reuse)s
          AND new.embedding IS NULL
          AND staged.spec = %(spec)s
          AND staged.source_pk = new.source_pk
          AND staged.space_id = new.space_id
          AND staged.chunk_digest = new.chunk_digest
        LIMIT 1
    ) AS reused ON true
    -- First all deletions: the copies of the deferred constraint that REINDEX CONCURRENTLY and
    -- pg_repack make are checked at once, row by row.
    WHERE (SELECT count(*) FROM dropped) IS NOT NULL
"""

KEEP = """
    UPDATE {table} AS kept
    SET
        start_offset = new.start_offset,
        end_offset = new.end_offset,
        text_digest = new.text_digest,
        passage = CASE WHEN %(store_text)s THEN new.passage END,
        fulltext = to_tsvector(%(language)s::regconfig, new.passage)
    FROM unnest(
        %(ids)b::bigint[],
        %(starts)b::int[],
        %(ends)b::int[],
        %(passages)b::text[],
        %(text_digests)b::bytea[]
    ) AS new(id, start_offset, end_offset, passage, text_digest)
    WHERE kept.id = new.id
      -- However the two are joined: the plan is kept.
      AND kept.id = ANY(%(ids)b::bigint[])
"""

# Deletes rows without a vector, which were written before the provider was asked.
DROP_WITHOUT_VECTOR = """
    DELETE FROM {table} AS waiting
    USING unnest(%(source_pks)b::text[], %(space_ids)s::bigint[]) AS unit(source_pk, space_id)
    WHERE waiting.source_id = unit.source_pk::{key}
      -- However the two are joined: the plan is kept.
      AND waiting.source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND waiting.space_id = unit.space_id
      AND waiting.embedding IS NULL
"""

# A collation may find another row's key equal to a former one.
FORGET = """
    DELETE FROM {table}
    WHERE source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND source_id::text COLLATE "C" = ANY(%(source_pks)b::text[])
"""

# No text has the digest '', so nothing is reused. Searches find the rows until they are replaced.
OUTDATE = """
    UPDATE {table}
    SET chunk_digest = ''
    WHERE source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND end_offset > start_offset
"""

# No text has these digests: '' for chunks that are searched meanwhile, 'hidden' for those of a
# space that is filled. Chunks of the same text, which are embedded anew, are not overtaken.
MARK_OVERTAKEN = """
    UPDATE {table} AS older
    SET text_digest = unit.mark
    FROM unnest(
        %(source_pks)b::text[],
        %(space_ids)s::bigint[],
        %(text_digests)b::bytea[],
        %(marks)b::bytea[]
    ) AS unit(source_pk, space_id, text_digest, mark)
    WHERE older.source_id = unit.source_pk::{key}
      -- However the two are joined: the plan is kept.
      AND older.source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND older.space_id = unit.space_id
      AND older.text_digest NOT IN ('hidden', unit.mark, unit.text_digest)
"""

# SKIP LOCKED: rows that an open transaction has locked are being deleted by that one.
PRUNE = """
    DELETE FROM {table}
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM {table}
        WHERE space_id = %(space)s
          AND id > %(after)s
          AND (position = 0 OR NOT %(first_only)s)
          -- Somebody may have reopened it: then it is being filled again.
          AND EXISTS (
              SELECT
              FROM pgembed_space
              WHERE pgembed_space.id = %(space)s
                AND state = 'retired'
              FOR SHARE
          )
        ORDER BY id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
"""


# Leaves rows as they are written before their vectors come. SKIP LOCKED: no writer waits.
TAKE_BACK = """
    UPDATE {table}
    SET embedding = NULL
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM {table}
        WHERE space_id = %(space)s
          AND created_at >= %(since)s
          AND embedding IS NOT NULL
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
"""

# Columns that must be filled, and that nobody declares.
DEMANDED = """
    SELECT attname
    FROM pg_attribute
    WHERE attrelid = to_regclass(%(table)s)
      AND attnum > 0
      AND attnotnull
      AND NOT attisdropped
      AND NOT atthasdef
      AND attidentity = ''
      AND attname <> ALL(%(declared)s)
"""


class Statements(NamedTuple):
    """The statements on one spec's generated table."""

    stored: str
    text_digests: str
    replace: str
    keep: str
    drop_without_vector: str
    forget: str
    prune: str
    outdate: str
    mark_overtaken: str
    take_back: str


@functools.cache
def of(spec: Spec, using: str) -> Statements:
    """Return the statements for a spec's table and its key's type."""
    source = spec.embedding_model._meta.get_field("source")
    key = source.db_type(connections[using])
    if key is None:
        raise ConnectionDoesNotExist(using)
    names = {
        "table": sql.SQL(postgres.quoted_table(spec.embedding_model)),
        "key": sql.SQL(key),
    }
    texts = (
        STORED,
        TEXT_DIGESTS,
        REPLACE,
        KEEP,
        DROP_WITHOUT_VECTOR,
        FORGET,
        PRUNE,
        OUTDATE,
        MARK_OVERTAKEN,
        TAKE_BACK,
    )
    return Statements(*(sql.SQL(text).format(**names).as_string(None) for text in texts))


def send(using: str, statement: str, **parameters: Any) -> database.Read[list[database.Row]]:
    """Send a statement with parameters that the server binds, so that vectors go as binary."""
    database.learn_vectors(using)
    # After learn_vectors(): a cursor only knows the types that were registered before it.
    return database.send(using, statement, **parameters)
