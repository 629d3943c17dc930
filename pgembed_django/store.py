"""The verbs of the generated tables and of staging, and their only Python writers.

Call verbs that write units in a transaction that holds their jobs (``jobs.hold``).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, connections
from django.utils.connection import ConnectionDoesNotExist
from pgvector import Vector
from psycopg import sql

from pgembed_django.core import database, faults, languages, postgres
from pgembed_django.core.faults import Fault
from pgembed_django.declaration.specs import Spec

if TYPE_CHECKING:
    from pgembed_django.embedding.units import Part

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
        embedding IS NOT NULL,
        language
    FROM {table}
    WHERE source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND space_id = ANY(%(space_ids)s::bigint[])
  UNION ALL
    SELECT source_pk, space_id, chunk_digest, true, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM pgembed_staging
    WHERE spec = %(spec_key)s
      AND source_pk = ANY(%(source_pks)b::text[])
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
        passage, chunk_digest, text_digest, embedding, was_cut, fulltext, language
    )
    SELECT
        new.source_pk::{key},
        new.space_id,
        new.position,
        new.start_offset,
        new.end_offset,
        CASE WHEN %(stores_text)s THEN new.passage END,
        new.chunk_digest,
        new.text_digest,
        COALESCE(new.embedding, reused.embedding),
        COALESCE(reused.was_cut, new.was_cut),
        -- NULL if no words are stored.
        to_tsvector(new.language::regconfig, translate(new.passage, %(joints)s, %(gaps)s)),
        new.language
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
        %(was_cut)s::bool[],
        %(languages)b::text[]
    ) AS new(
        source_pk, space_id, position, start_offset, end_offset,
        passage, chunk_digest, text_digest, embedding, was_cut, language
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
          AND staged.spec = %(spec_key)s
          AND staged.source_pk = new.source_pk
          AND staged.space_id = new.space_id
          AND staged.chunk_digest = new.chunk_digest
        LIMIT 1
    ) AS reused ON true
    -- First all deletions: the copies of the deferred constraint that REINDEX CONCURRENTLY and
    -- pg_repack make are checked at once, row by row.
    WHERE (SELECT count(*) FROM dropped) IS NOT NULL
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

# Fails if the database does not have the configuration.
CONFIGURATION = "SELECT %(language)s::regconfig"

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

STAGE = """
    INSERT INTO pgembed_staging (
        spec, source_pk, space_id, chunk_digest, embedding, was_cut
    )
    SELECT %(spec_key)s, source_pk, space_id, chunk_digest, embedding, was_cut
    FROM unnest(
        %(source_pks)b::text[],
        %(space_ids)s::bigint[],
        %(chunk_digests)b::bytea[],
        %(embeddings)b::vector[],
        %(was_cut)s::bool[]
    ) AS staged(source_pk, space_id, chunk_digest, embedding, was_cut)
    ON CONFLICT DO NOTHING
"""

UNSTAGE = """
    DELETE FROM pgembed_staging
    WHERE spec = %(spec_key)s
      AND source_pk = ANY(%(source_pks)b::text[])
"""


class StoredChunk(NamedTuple):
    """A chunk as stored in the generated table."""

    id: int
    position: int
    start: int
    end: int
    digest: bytes
    text_digest: bytes
    has_vector: bool
    language: str | None
    """The full-text configuration of its words. None: they are not stored."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to embed: it has a vector, or the text is empty."""
        return self.has_vector or self.start == self.end


class Stored(NamedTuple):
    """The chunks of units, and the digests of staged vectors, by source_pk and space id."""

    chunks: Mapping[tuple[str, int], Sequence[StoredChunk]]
    staged: Mapping[tuple[str, int], Collection[bytes]]


def ask_stored(
    spec: Spec, source_pks: Sequence[str], space_ids: Sequence[int], *, using: str
) -> database.Read[Stored]:
    """Ask for the stored chunks and the staged digests of units in these spaces.

    Returns a function that reads the answer: see ``database.send``.
    """
    read = send(
        spec,
        STORED,
        using=using,
        spec_key=spec.key,
        source_pks=list(source_pks),
        space_ids=list(space_ids),
    )

    def stored() -> Stored:
        chunks: defaultdict[tuple[str, int], list[StoredChunk]] = defaultdict(list)
        staged: defaultdict[tuple[str, int], set[bytes]] = defaultdict(set)
        for source_pk, space_id, digest, is_staged, *row in read():
            if is_staged:
                staged[source_pk, space_id].add(digest)
            else:
                row_id, position, start, end, *others = row
                chunks[source_pk, space_id].append(
                    StoredChunk(row_id, position, start, end, digest, *others)
                )
        return Stored(chunks, staged)

    return stored


def apply(spec: Spec, parts: Collection[Part], *, using: str) -> None:
    """Change the stored chunks according to the units' plans, all of them or none."""
    if waiting := [part for part in parts if part.has_waiting_text]:
        send(spec, DROP_WITHOUT_VECTOR, using=using, **_units(waiting))
    _replace(spec, parts, using)


def apply_text(spec: Spec, parts: Collection[Part], *, using: str) -> None:
    """Store the text of units that have no rows yet, so that full-text search finds them.

    No vectors are used: ``apply`` recognizes these rows by their lack of one.
    """
    _replace(spec, parts, using, only_text=True)


def forget(spec: Spec, source_pks: Collection[str], *, using: str) -> None:
    """Delete all stored chunks of units whose rows are gone or no longer match the condition."""
    send(spec, FORGET, using=using, source_pks=list(source_pks))
    unstage(spec, source_pks, using=using)


def outdate(spec: Spec, source_pks: Collection[str], *, using: str) -> None:
    """Keep units' vectors from being reused. Searches find these until they are replaced."""
    send(spec, OUTDATE, using=using, source_pks=list(source_pks))
    unstage(spec, source_pks, using=using)


def mark_overtaken(
    spec: Spec, overtaken: Collection[Part], *, active: Collection[int], using: str
) -> None:
    """Mark chunks of a former text, of units that have the planned one in another space.

    In active spaces searches still find them. In others, searches that hide what is stale do not,
    once those are active.
    """
    send(
        spec,
        MARK_OVERTAKEN,
        using=using,
        **_units(overtaken),
        text_digests=[part.plan.text_digest for part in overtaken],
        marks=[b"" if part.space_id in active else b"hidden" for part in overtaken],
    )


def stage(spec: Spec, parts: Collection[Part], *, using: str) -> None:
    """Keep the vectors of units that need more batches, so that a retry need not repeat them."""
    vectors = [
        (part.source_pk, part.space_id, digest, embedded)
        for part in parts
        for digest, embedded in part.vectors.items()
    ]
    send(
        spec,
        STAGE,
        using=using,
        spec_key=spec.key,
        source_pks=[source_pk for source_pk, _, _, _ in vectors],
        space_ids=[space_id for _, space_id, _, _ in vectors],
        chunk_digests=[digest for _, _, digest, _ in vectors],
        embeddings=[Vector(embedded.vector) for _, _, _, embedded in vectors],
        was_cut=[embedded.was_cut for _, _, _, embedded in vectors],
    )


def unstage(spec: Spec, source_pks: Collection[str], *, using: str) -> None:
    """Delete the staged vectors of units that no longer need them."""
    send(spec, UNSTAGE, using=using, spec_key=spec.key, source_pks=list(source_pks))


def is_fit(spec: Spec, *, using: str) -> bool:
    """Return whether a spec's table fits its statements, by running each with no rows.

    Also whether the database has its full-text configuration.

    If it fits, an error was the fault of a row.
    """
    model = spec.embedding_model
    try:
        with database.giving_way(using):
            _replace(spec, [], using)
            send(spec, DROP_WITHOUT_VECTOR, using=using, **_units([]))
            send(spec, FORGET, using=using, source_pks=[])
            if spec.stores_words:
                database.rows(using, CONFIGURATION, language=spec.configuration)
            demanded = database.rows(
                using,
                DEMANDED,
                table=postgres.quoted_table(model),
                declared=[field.column for field in model._meta.concrete_fields],
            )
    except database.Busy:
        return False
    except DatabaseError as error:
        if faults.of(error) in {Fault.OUTAGE, Fault.OURS}:
            raise
        return False
    return not demanded


def _units(parts: Iterable[Part]) -> dict[str, list[Any]]:
    return {
        "source_pks": [part.source_pk for part in parts],
        "space_ids": [part.space_id for part in parts],
    }


def _replace(spec: Spec, parts: Collection[Part], using: str, *, only_text: bool = False) -> None:
    rows = [(part, chunk) for part in parts for chunk in part.plan.insert]
    embedded = [None if only_text else part.vectors.get(chunk.digest) for part, chunk in rows]
    send(
        spec,
        REPLACE,
        using=using,
        dropped=database.array([row_id for part in parts for row_id in part.plan.drop]),
        spec_key=spec.key,
        reuse=not only_text,
        stores_text=spec.store_text is True,
        source_pks=[part.source_pk for part, _ in rows],
        space_ids=database.array([part.space.pk for part, _ in rows]),
        positions=database.array([chunk.position for _, chunk in rows]),
        starts=database.array([chunk.start for _, chunk in rows]),
        ends=database.array([chunk.end for _, chunk in rows]),
        passages=[chunk.text for _, chunk in rows],
        chunk_digests=[chunk.digest for _, chunk in rows],
        text_digests=[part.plan.text_digest for part, _ in rows],
        embeddings=[found and Vector(found.vector) for found in embedded],
        was_cut=[found is not None and found.was_cut for found in embedded],
        languages=[part.plan.language for part, _ in rows],
        **languages.APART,
    )


def send(
    spec: Spec, statement: str, *, using: str, **parameters: Any
) -> database.Read[list[database.Row]]:
    """Send a statement with parameters that the server binds, so that vectors go as binary."""
    database.learn_vectors(using)
    # After learn_vectors(): a cursor only knows the types that were registered before it.
    return database.send(using, _of_table(spec, statement, using), **parameters)


@functools.cache
def _of_table(spec: Spec, statement: str, using: str) -> str:
    """Return a statement with the names of a spec's table and of its key's type."""
    key = spec.embedding_model._meta.get_field("source").db_type(connections[using])
    if key is None:
        raise ConnectionDoesNotExist(using)
    names = {
        "table": sql.SQL(postgres.quoted_table(spec.embedding_model)),
        "key": sql.SQL(key),
        "position": sql.SQL("position"),
    }
    return sql.SQL(statement).format(**names).as_string(None)
