"""How much of a spec a search in one space would find."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast

from pgembed_django import database
from pgembed_django.models import Job, Space
from pgembed_django.models.job import UNSETTLED
from pgembed_django.specs import Spec


class Coverage(NamedTuple):
    """Source rows in the spec's condition, and those of them with their vectors."""

    rows: int
    covered: int

    @property
    def ratio(self) -> float:
        """From 0 to 1. Nothing to cover is covered."""
        return self.covered / self.rows if self.rows else 1.0


def covered(spec: Spec, space: Space) -> QuerySet[Model]:
    """Return the stored first chunk of the outer row: its vector there, or its text empty.

    In a space that is being built it is also of the text that the active one holds: one
    that was retired for a while and is reopened may have fallen behind.
    """
    chunks = spec.embedding_model._base_manager.filter(
        Q(embedding__isnull=False) | Q(end_offset=F("start_offset")),
        source_id=OuterRef("pk"),
        space_id=space.pk,
        position=0,
    )
    if space.state == Space.State.BUILDING:
        of_active = spec.embedding_model._base_manager.filter(
            source_id=OuterRef("source_id"),
            position=0,
            embedding__isnull=False,
            space__spec=spec.key,
            space__state=Space.State.ACTIVE,
        )
        chunks = chunks.exclude(Exists(of_active.exclude(text_digest=OuterRef("text_digest"))))
    return chunks


def coverage(spec: Spec, space: Space, *, using: str) -> Coverage:
    """Count. Reads the whole table: for a person who asks, not for a page that refreshes."""
    rows = spec.rows(using)
    return Coverage(rows.count(), rows.filter(Exists(covered(spec, space))).count())


def has_gap(spec: Spec, space: Space, *, using: str) -> bool:
    """Tell whether any row still lacks its vectors in a space. Failed units do not count.

    Where a writer holds the whole table there may be one.
    """
    failed = Job.objects.filter(
        UNSETTLED, spec=spec.key, source_pk=Cast(OuterRef("pk"), TextField())
    )
    rows = spec.rows(using).exclude(Exists(covered(spec, space))).exclude(Exists(failed))
    try:
        with database.giving_way(using):
            return rows.exists()
    except database.Busy:
        return True
