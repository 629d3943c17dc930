"""What maintenance does to the generated tables and to staging, in small batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from psycopg import sql

from pgembed_django import store
from pgembed_django.core import database
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import StagedVector

# A text has one digest, however many chunks it has.
TEXT_DIGESTS = """
    SELECT DISTINCT source_id::text, text_digest
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


def text_digests(
    spec: Spec, source_pks: Sequence[str], space_ids: Sequence[int], *, using: str
) -> Iterable[tuple[str, bytes]]:
    """Return the digests of the texts whose chunks are stored in these spaces, by source_pk."""
    wanted = {"source_pks": list(source_pks), "space_ids": list(space_ids)}
    return store.send(spec, TEXT_DIGESTS, using=using, **wanted)()


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
