"""What maintenance does to the generated tables and to staging, in small batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg import sql

from pgembed_django import store
from pgembed_django.core import database
from pgembed_django.core.languages import APART
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import StagedVector

# A text has one digest and one language, however many chunks it has.
TEXTS = """
    SELECT DISTINCT source_id::text, text_digest, language
    FROM {table}
    WHERE source_id = ANY(%(source_pks)b::text[]::{key}[])
      AND space_id = ANY(%(space_ids)s::bigint[])
"""

# SKIP LOCKED: rows that an open transaction has locked are being deleted by that one.
PRUNE = """
    DELETE FROM {table}
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM {table}
        WHERE space_id = %(space)s
          AND id > %(after)s
          AND ({position} = 0 OR NOT %(first_only)s)
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

WORDS = """
    SELECT id, source_id::text, space_id, language, passage IS NOT NULL
    FROM {table}
    WHERE id > %(after)s
    ORDER BY id
    LIMIT %(limit)s
"""

# Words are made from the passage beside them. SKIP LOCKED: rows that an open transaction has
# locked are being replaced or deleted by that one.
MEND = """
    UPDATE {table} AS chunk
    SET
        fulltext = to_tsvector(
            mended.language::regconfig, translate(chunk.passage, %(joints)s, %(gaps)s)
        ),
        language = mended.language
    FROM unnest(%(ids)s::bigint[], %(languages)s::text[]) AS mended(id, language)
    WHERE chunk.id = mended.id
      AND chunk.id = ANY(ARRAY(
        SELECT id
        FROM {table}
        WHERE id = ANY(%(ids)s::bigint[])
        FOR UPDATE SKIP LOCKED
      ))
    RETURNING chunk.id
"""

ENDS = """
    SELECT min(id), max(id)
    FROM {table}
"""

RENAME_STAGED = """
    WITH former AS (
        DELETE FROM pgembed_staging
        WHERE spec = %(old)s
        RETURNING source_pk, space_id, chunk_digest, embedding, was_cut
    )
    INSERT INTO pgembed_staging (spec, source_pk, space_id, chunk_digest, embedding, was_cut)
    SELECT %(new)s, source_pk, space_id, chunk_digest, embedding, was_cut
    FROM former
    ON CONFLICT DO NOTHING
"""


class Words(NamedTuple):
    """Of a stored chunk, what its words are made of and with. No ``language``: it has none."""

    id: int
    source_pk: str
    space_id: int
    language: str | None
    has_passage: bool


def texts(
    spec: Spec, source_pks: Sequence[str], space_ids: Sequence[int], *, using: str
) -> Iterable[tuple[str, bytes, str | None]]:
    """Return source_pk, digest and language of the texts whose chunks are in these spaces."""
    wanted = {"source_pks": list(source_pks), "space_ids": list(space_ids)}
    return store.send(spec, TEXTS, using=using, **wanted)()


def words(spec: Spec, *, after: int, limit: int, using: str) -> list[Words]:
    """Return the next chunks in the order of their ids, of all spaces."""
    found = store.send(spec, WORDS, using=using, after=after, limit=limit)
    return [Words(*row) for row in found()]


def mend(spec: Spec, languages: Mapping[int, str | None], *, using: str) -> int:
    """Make the words of chunks again with these configurations. Return of how many.

    Those that others have locked are left.
    """
    wanted = {"ids": [*languages], "languages": [*languages.values()]}
    return len(store.send(spec, MEND, using=using, **wanted, **APART)())


def ends(spec: Spec, *, using: str) -> tuple[int, int] | None:
    """Return the lowest and the highest id of the chunks, or None if there are none."""
    [[first, last]] = store.send(spec, ENDS, using=using)()
    return None if first is None else (first, last)


def unstage_all(spec: str, *, using: str) -> None:
    """Delete the staged vectors of a spec that is gone."""
    StagedVector.objects.using(using).filter(spec=spec).delete()


def rename(old: str, new: str, *, using: str) -> None:
    """Move a spec's staged vectors to its new name."""
    database.execute(using, RENAME_STAGED, old=old, new=new)


def prune(
    spec: Spec, space_id: int, *, after: int, limit: int, first_only: bool, using: str
) -> int | None:
    """Delete a small batch of a retired space's chunks. Returns the last id, None at the end.

    ``first_only``: each row's first chunk only.
    """
    wanted = {"space": space_id, "after": after, "limit": limit, "first_only": first_only}
    deleted = store.send(spec, PRUNE, using=using, **wanted)
    return max((row_id for [row_id] in deleted()), default=None)


def prune_staged(space_id: int, *, limit: int, using: str) -> bool:
    """Delete a small batch of what is staged for a retired space. Return whether any was left."""
    staging = {"table": sql.Identifier("pgembed_staging"), "position": sql.Literal(0)}
    prune = sql.SQL(PRUNE).format(**staging).as_string(None)
    wanted = {"space": space_id, "after": 0, "limit": limit, "first_only": False}
    return bool(database.rows(using, prune, **wanted))


def take_back(spec: Spec, space_id: int, *, since: datetime, limit: int, using: str) -> bool:
    """Delete some vectors of a space that were stored since then, and what is staged of them.

    Returns whether there were any. The texts stay, to be embedded anew.
    """
    StagedVector.objects.using(using).filter(space=space_id, created_at__gte=since).delete()
    wanted = {"space": space_id, "since": since, "limit": limit}
    return bool(store.send(spec, TAKE_BACK, using=using, **wanted)())


def is_to_be_taken_back(spec: Spec, space_id: int, *, since: datetime, using: str) -> bool:
    """Return whether ``take_back`` has left any vectors, because others had locked them."""
    stored = spec.embedding_model._base_manager.using(using).filter(space=space_id)
    return stored.filter(created_at__gte=since, embedding__isnull=False).exists()
