"""The verbs of the generated tables and of staging, and their only Python writers.

Call verbs that write units in a transaction that holds their jobs (``jobs.hold``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError
from pgvector import Vector

from pgembed_django import conf, database, faults, postgres
from pgembed_django.faults import Fault
from pgembed_django.models import StagedVector
from pgembed_django.plan import Plan, StoredChunk
from pgembed_django.providers.base import Embedded
from pgembed_django.specs import Spec
from pgembed_django.store import statements
from pgembed_django.store.staged import prune_staged as prune_staged
from pgembed_django.store.staged import rename as rename
from pgembed_django.store.staged import stage as stage
from pgembed_django.store.staged import unstage as unstage
from pgembed_django.store.staged import unstage_all as unstage_all
from pgembed_django.store.statements import send

UnitSpace = tuple[str, int]
"""(source_pk, space id): what a plan is for."""


@dataclass(frozen=True, slots=True)
class Change:
    """One unit's plan in one space, with the vectors it asked for, by chunk digest."""

    source_pk: str
    space_id: int
    plan: Plan
    vectors: dict[bytes, Embedded] = field(default_factory=dict)
    has_waiting_text: bool = False
    """Its text was stored early, by ``apply_text``: the new rows replace those."""


class Stored(NamedTuple):
    """The chunks of units, and the digests of the vectors that an earlier run staged."""

    chunks: Mapping[UnitSpace, Sequence[StoredChunk]]
    staged: Mapping[UnitSpace, Collection[bytes]]


def stored(
    spec: Spec, source_pks: Sequence[str], space_ids: Sequence[int], *, using: str
) -> Stored:
    """Return the stored chunks and the staged digests of units in these spaces."""
    return ask_stored(spec, source_pks, space_ids, using=using)()


def ask_stored(
    spec: Spec, source_pks: Sequence[str], space_ids: Sequence[int], *, using: str
) -> database.Read[Stored]:
    """Send the query of ``stored``, and return a function that reads it: see ``database.send``."""
    read = send(
        using,
        statements.of(spec, using).stored,
        spec=spec.key,
        source_pks=list(source_pks),
        space_ids=list(space_ids),
    )
    return lambda: _stored(read())


def text_digests(
    spec: Spec, source_pks: Sequence[str], space_ids: Sequence[int], *, using: str
) -> Iterable[tuple[str, bytes]]:
    """Return the digests of the texts whose chunks are stored in these spaces, by source_pk."""
    return send(
        using,
        statements.of(spec, using).text_digests,
        source_pks=list(source_pks),
        space_ids=list(space_ids),
    )()


def _stored(rows: Iterable[tuple[Any, ...]]) -> Stored:
    chunks: defaultdict[UnitSpace, list[StoredChunk]] = defaultdict(list)
    staged: defaultdict[UnitSpace, set[bytes]] = defaultdict(set)
    for source_pk, space_id, digest, is_staged, *row in rows:
        if is_staged:
            staged[source_pk, space_id].add(digest)
        else:
            row_id, position, start, end, text_digest, has_vector = row
            chunks[source_pk, space_id].append(
                StoredChunk(row_id, position, start, end, digest, text_digest, has_vector)
            )
    return Stored(chunks, staged)


def apply(spec: Spec, changes: Collection[Change], *, using: str) -> None:
    """Change the stored chunks according to the units' plans, all of them or none."""
    of_spec = statements.of(spec, using)
    if waiting := [change for change in changes if change.has_waiting_text]:
        send(
            using,
            of_spec.drop_without_vector,
            source_pks=[change.source_pk for change in waiting],
            space_ids=[change.space_id for change in waiting],
        )
    if any(change.plan.insert or change.plan.drop for change in changes):
        _replace(spec, changes, using, reuse=True)
    if any(change.plan.keep for change in changes):
        _keep(spec, changes, using)


def apply_text(spec: Spec, changes: Collection[Change], *, using: str) -> None:
    """Store the text of units that have no rows yet, so that full-text search finds them.

    Staged vectors are not used: ``apply`` recognizes these rows by their lack of a vector.
    """
    _replace(spec, changes, using, reuse=False)


def forget(spec: Spec, source_pks: Collection[str], *, using: str) -> None:
    """Delete all stored chunks of units whose rows are gone or no longer match the condition."""
    send(using, statements.of(spec, using).forget, source_pks=list(source_pks))
    unstage(spec, source_pks, using=using)


def outdate(spec: Spec, source_pks: Collection[str], *, using: str) -> None:
    """Keep units' vectors from being reused. Searches find these until they are replaced."""
    send(using, statements.of(spec, using).outdate, source_pks=list(source_pks))
    unstage(spec, source_pks, using=using)


def mark_overtaken(
    spec: Spec, overtaken: Collection[Change], *, active: Collection[int], using: str
) -> None:
    """Mark chunks of a former text, of units that have the planned one in another space.

    In active spaces searches still find them. In others, searches that hide what is stale do not,
    once those are active.
    """
    send(
        using,
        statements.of(spec, using).mark_overtaken,
        source_pks=[change.source_pk for change in overtaken],
        space_ids=[change.space_id for change in overtaken],
        text_digests=[change.plan.text_digest for change in overtaken],
        marks=[b"" if change.space_id in active else b"hidden" for change in overtaken],
    )


def prune(
    spec: Spec, space_id: int, *, after: int, limit: int, first_only: bool, using: str
) -> int | None:
    """Delete a small batch of a retired space's chunks. Returns the last id, None at the end.

    ``first_only``: each row's first chunk only.
    """
    deleted = send(
        using,
        statements.of(spec, using).prune,
        space=space_id,
        after=after,
        limit=limit,
        first_only=first_only,
    )
    return max((row_id for [row_id] in deleted()), default=None)


def take_back(spec: Spec, space_id: int, *, since: datetime, limit: int, using: str) -> bool:
    """Delete some vectors of a space that were stored since then, and what is staged of them.

    Returns whether there were any. The texts stay, to be embedded anew.
    """
    StagedVector.objects.using(using).filter(space=space_id, created_at__gte=since).delete()
    taken = send(
        using,
        statements.of(spec, using).take_back,
        space=space_id,
        since=since,
        limit=limit,
    )
    return bool(taken())


def is_to_be_taken_back(spec: Spec, space_id: int, *, since: datetime, using: str) -> bool:
    """Return whether ``take_back`` has left any vectors, because others had locked them."""
    stored = spec.embedding_model._base_manager.using(using).filter(space=space_id)
    return stored.filter(created_at__gte=since, embedding__isnull=False).exists()


def is_fit(spec: Spec, *, using: str) -> bool:
    """Return whether a spec's table fits its statements, by running each with no rows.

    If it fits, an error was the fault of a row.
    """
    of_spec = statements.of(spec, using)
    model = spec.embedding_model
    try:
        with database.giving_way(using):
            _replace(spec, [], using, reuse=True)
            _keep(spec, [], using)
            send(using, of_spec.drop_without_vector, source_pks=[], space_ids=[])
            send(using, of_spec.forget, source_pks=[])
            demanded = database.rows(
                using,
                statements.DEMANDED,
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


def _replace(spec: Spec, changes: Collection[Change], using: str, *, reuse: bool) -> None:
    rows = [(change, chunk) for change in changes for chunk in change.plan.insert]
    embedded = [change.vectors.get(chunk.digest) for change, chunk in rows]
    send(
        using,
        statements.of(spec, using).replace,
        dropped=database.array(row_id for change in changes for row_id in change.plan.drop),
        spec=spec.key,
        reuse=reuse,
        store_text=spec.store_text,
        language=conf.current().text_search_config,
        source_pks=[change.source_pk for change, _ in rows],
        space_ids=database.array(change.space_id for change, _ in rows),
        positions=database.array(chunk.position for _, chunk in rows),
        starts=database.array(chunk.start for _, chunk in rows),
        ends=database.array(chunk.end for _, chunk in rows),
        passages=[chunk.text for _, chunk in rows],
        chunk_digests=[chunk.digest for _, chunk in rows],
        text_digests=[change.plan.text_digest for change, _ in rows],
        embeddings=[found and Vector(found.vector) for found in embedded],
        was_cut=[found is not None and found.was_cut for found in embedded],
    )


def _keep(spec: Spec, changes: Collection[Change], using: str) -> None:
    rows = [
        (row_id, chunk, change.plan.text_digest)
        for change in changes
        for row_id, chunk in change.plan.keep.items()
    ]
    send(
        using,
        statements.of(spec, using).keep,
        store_text=spec.store_text,
        language=conf.current().text_search_config,
        ids=[row_id for row_id, _, _ in rows],
        starts=[chunk.start for _, chunk, _ in rows],
        ends=[chunk.end for _, chunk, _ in rows],
        passages=[chunk.text for _, chunk, _ in rows],
        text_digests=[text_digest for _, _, text_digest in rows],
    )
