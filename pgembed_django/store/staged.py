"""Stage vectors of units that are not complete yet, and delete them once they are."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pgvector import Vector

from pgembed_django.specs import Spec
from pgembed_django.store.statements import send

if TYPE_CHECKING:
    from pgembed_django.store import Change

STAGE = """
    INSERT INTO pgembed_staging (
        spec, source_pk, space_id, chunk_digest, embedding, was_cut
    )
    SELECT %(spec)s, source_pk, space_id, chunk_digest, embedding, was_cut
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
    WHERE spec = %(spec)s
      AND source_pk = ANY(%(source_pks)b::text[])
"""

UNSTAGE_ALL = """
    DELETE FROM pgembed_staging
    WHERE spec = %(spec)s
"""

# SKIP LOCKED: rows that an open transaction has locked are being deleted by that one.
PRUNE_STAGED = """
    DELETE FROM pgembed_staging
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM pgembed_staging
        WHERE spec = %(spec)s
          AND space_id = %(space)s
          -- Somebody may have reopened it: then it is being filled again.
          AND EXISTS (
              SELECT
              FROM pgembed_space
              WHERE pgembed_space.id = %(space)s
                AND state = 'retired'
              FOR SHARE
          )
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


def stage(spec: Spec, changes: Collection[Change], *, using: str) -> None:
    """Keep the vectors of units that need more batches, so that a retry need not repeat them."""
    vectors = [
        (change.source_pk, change.space_id, digest, embedded)
        for change in changes
        for digest, embedded in change.vectors.items()
    ]
    send(
        using,
        STAGE,
        spec=spec.key,
        source_pks=[source_pk for source_pk, _, _, _ in vectors],
        space_ids=[space_id for _, space_id, _, _ in vectors],
        chunk_digests=[digest for _, _, digest, _ in vectors],
        embeddings=[Vector(embedded.vector) for _, _, _, embedded in vectors],
        was_cut=[embedded.was_cut for _, _, _, embedded in vectors],
    )


def unstage(spec: Spec, source_pks: Collection[str], *, using: str) -> None:
    """Delete the staged vectors of units that no longer need them."""
    send(using, UNSTAGE, spec=spec.key, source_pks=list(source_pks))


def unstage_all(spec: str, *, using: str) -> None:
    """Delete the staged vectors of a spec that is gone."""
    send(using, UNSTAGE_ALL, spec=spec)


def prune_staged(spec: Spec, space_id: int, *, limit: int, using: str) -> bool:
    """Delete a small batch of what is staged for a retired space. Return whether any was left."""
    return bool(send(using, PRUNE_STAGED, spec=spec.key, space=space_id, limit=limit)())


def rename(old: str, new: str, *, using: str) -> None:
    """Move a spec's staged vectors to its new name."""
    send(using, RENAME_STAGED, old=old, new=new)
