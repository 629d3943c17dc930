"""Embed units anew though their text is the same, as a person asked: after a mended provider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast

from pgembed_django import database, jobs, store
from pgembed_django.models import Job
from pgembed_django.specs import Spec


class Reembedded(NamedTuple):
    """How many units have a job now, and which ones were being written just then."""

    enqueued: int
    busy: Sequence[str]


def reembed(
    spec: Spec,
    source_pks: Iterable[str],
    *,
    using: str,
    kind: str = Job.Kind.MANUAL_RETRY,
    wait: str = "100ms",
) -> Reembedded:
    """Let units be embedded anew. What is stored of them is found until then.

    ``wait``: for how long at most, for each that an open writer has.
    """
    enqueued, busy = 0, []
    for source_pk in source_pks:
        try:
            with database.giving_way(using, wait=wait):
                # First the pending job, like a deleter, so that nobody starts meanwhile.
                jobs.enqueue_again(spec, source_pk, kind=kind, using=using)
                store.outdate(spec, [source_pk], using=using)
        except database.Busy:
            busy.append(source_pk)
        else:
            enqueued += 1
    if enqueued:
        jobs.nudge(using=using)
    return Reembedded(enqueued, busy)


def next_page(spec: Spec, *, after: str | None, limit: int, using: str) -> list[str]:
    """Return the keys of the next rows of a spec, in the order of the primary key."""
    rows = spec.rows(using).order_by("pk")
    if after is not None:
        rows = rows.filter(pk__gt=spec.parse_pk(after))
    return list(rows.values_list(Cast("pk", TextField()), flat=True)[:limit])
