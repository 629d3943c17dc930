"""Measure how many of a spec's rows a search in one space would find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast

from pgembed_django.core import database
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job, Space
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING, UNSETTLED
from pgembed_django.spaces.live import active

FOUND = Q(position=0) & (Q(embedding__isnull=False) | Q(end_offset=F("start_offset")))
"""Matches the first chunk of a covered row: it has a vector, or the row's text is empty."""

FEW = 0.01
"""The share of the rows that a switch may lose because they have failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many ``rows`` match the spec's condition, and how many of them a search would find.

    Rows whose text is empty are not counted: there is nothing to find. ``is_estimated``: counted
    in a sample of the table's pages, which is the same every time.
    """

    rows: int
    covered: int
    is_estimated: bool = False

    @property
    def ratio(self) -> float:
        """The covered share, from 0 to 1. It is 1 if there are no rows."""
        return self.covered / self.rows if self.rows else 1.0

    @property
    def missing(self) -> int:
        """How many rows a search would not find."""
        return self.rows - self.covered

    @property
    def percent(self) -> float:
        """The covered share in percent, with one decimal, never rounded up to 100."""
        return int(self.ratio * 1000) / 10

    def __str__(self) -> str:
        about = "about " if self.is_estimated else ""
        return f"{about}{self.percent:g} % of {about}{self.rows:,} rows"


class LookedUp(Exists):
    """An EXISTS that Postgres looks up in an index, row by row, and never plans as a join.

    While a space is being filled, the planner has no statistics on it. A join might then compare
    every row with every other: seconds for 20,000 rows, minutes for more. The OFFSET prevents it.
    """

    template = "EXISTS(%(subquery)s OFFSET 0)"


def covering_chunk(spec: Spec, space: Space) -> QuerySet[Model]:
    """Return the outer row's first chunk in a space if it covers the row (``FOUND``).

    In a building space it must also be of the same text as in the active space, or a newer one:
    a reopened space may have fallen behind while it was retired.
    """
    chunks = spec.embedding_model._base_manager.filter(
        FOUND, source_id=OuterRef("pk"), space_id=space.pk
    )
    if space.state == Space.State.BUILDING:
        of_active = spec.embedding_model._base_manager.filter(
            FOUND,
            source_id=OuterRef("source_id"),
            space__spec=spec.key,
            space__state=Space.State.ACTIVE,
        )
        # Chunks that are marked as overtaken: then the active space is the one behind.
        same = Q(text_digest=OuterRef("text_digest")) | Q(text_digest__in=(b"", b"hidden"))
        chunks = chunks.exclude(LookedUp(of_active.exclude(same)))
    return chunks


def jobs_of_row(spec: Spec, status: Q) -> QuerySet[Job]:
    """Return the outer row's jobs that have a status."""
    return Job.objects.filter(status, spec=spec.key, source_pk=Cast(OuterRef("pk"), TextField()))


def is_found(spec: Spec, space: Space) -> Q:
    """Return the condition that a search in a space finds the outer row by its meaning.

    In a space that is being built, stale rows count even if the spec hides them: how far it is
    filled does not depend on them.
    """
    chunks = covering_chunk(spec, space).filter(embedding__isnull=False)
    if spec.stale == "serve" or space.state == Space.State.BUILDING:
        return Q(LookedUp(chunks))
    return Q(LookedUp(chunks.exclude(text_digest=b"hidden"))) & _is_unchanged(spec)


def is_empty(spec: Spec, spaces: Sequence[Space]) -> Q:
    """Return the condition that the outer row's text is empty: there is nothing to find.

    Not if one of the spaces still has vectors of a former text: they are found.
    """
    chunks = spec.embedding_model._base_manager.filter(
        FOUND, source_id=OuterRef("pk"), space__in=spaces
    )
    is_empty = Q(LookedUp(chunks.filter(embedding=None)))
    is_empty &= ~Q(LookedUp(chunks.filter(embedding__isnull=False)))
    return is_empty & _is_unchanged(spec)


def _is_unchanged(spec: Spec) -> Q:
    """Return the condition that no change of the outer row has yet to be embedded."""
    # Three lookups, not one: each status has its own partial index.
    is_unchanged = Q()
    for status in (PENDING, RUNNING, UNSETTLED):
        is_unchanged &= ~Q(LookedUp(jobs_of_row(spec, status & Q(is_awaited=True))))
    return is_unchanged


def last_gap(spec: Spec, space: Space, *, within: Q | None = None, using: str) -> Any | None:
    """Return the key of the last row that lacks its vectors in a space, or None.

    Failed units do not count. In a building space, rows that were just written do not count
    either: the active space lacks them too. Spaces are filled in key order, so until the end is
    reached, searching from the end finds a gap at once. ``within``: search these rows only.

    Raises:
        Busy: a writer has locked the whole table.
    """
    rows = (
        spec.rows(using=using)
        .filter(within or Q())
        .exclude(LookedUp(covering_chunk(spec, space)))
        .exclude(LookedUp(jobs_of_row(spec, UNSETTLED)))
    )
    searched = active(spec, using=using) if space.state == Space.State.BUILDING else None
    if searched:
        is_searched = Q(LookedUp(covering_chunk(spec, searched)))
        for status in (PENDING, RUNNING):  # each has an index of its own
            rows = rows.filter(is_searched | ~Q(LookedUp(jobs_of_row(spec, status))))
    with database.giving_way(using):
        return rows.order_by("-pk").values_list("pk", flat=True).first()


def lost_by_switching(spec: Spec, space: Space, *, using: str) -> int:
    """Count the rows that the active space covers but a full one does not: they have failed.

    Returns 0 if they ``are_few``. Dismissed failures do not count.

    Raises:
        Busy: a writer has locked the whole table.
    """
    searched = active(spec, using=using)
    if searched is None:
        return 0
    rows = spec.rows(using=using)
    failed = rows.filter(LookedUp(jobs_of_row(spec, OPEN_FAILURE)))
    lost = failed.filter(LookedUp(covering_chunk(spec, searched))).exclude(
        LookedUp(covering_chunk(spec, space))
    )
    with database.giving_way(using):
        number, every = lost.count(), rows.count()
    return 0 if are_few(number, of=every) else number


def are_few(lost: int, *, of: int) -> bool:
    """Return whether a switch may lose so many rows. A single one it may always."""
    return lost <= max(FEW * of, 1)
