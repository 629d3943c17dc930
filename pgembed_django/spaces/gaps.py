"""Find gaps: source rows whose stored vectors do not match them in a live space.

Each function examines one page of keys, ``(after, up to]``, and returns the keys of units. It
looks up stored chunks and jobs by index, so a page costs the same however large the tables are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Model, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast, Now

from pgembed_django import sources
from pgembed_django.maintenance import stored
from pgembed_django.models import Space
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING, UNSETTLED
from pgembed_django.spaces import LookedUp, covering_chunk, jobs_of_row
from pgembed_django.specs import Spec

TEXTS_SECONDS = 1.0
"""How long one transaction makes texts at most: TRUNCATE and ALTER TABLE wait for its end."""

PARKED = UNSETTLED & Q(run_at__gt=Now())


def missing(spec: Spec, spaces: Sequence[Space], page: Q, *, using: str) -> list[str]:
    """Return rows that lack vectors in a space, have no unfinished job, and are not parked.

    Also returns rows that lack nothing but have an open failure: it may be of a space that is no
    longer live, and only a job settles it.
    """
    fresh = Q()
    for space in spaces:
        fresh &= Q(LookedUp(covering_chunk(spec, space)))
    fresh &= ~Q(LookedUp(jobs_of_row(spec, OPEN_FAILURE)))
    rows = spec.rows(using=using).filter(page).exclude(fresh)
    for status in (PENDING, RUNNING, PARKED):  # each has an index of its own
        rows = rows.exclude(LookedUp(jobs_of_row(spec, status)))
    return list(rows.values_list(Cast("pk", TextField()), flat=True))


def orphaned(spec: Spec, page: Q, *, using: str) -> QuerySet[Model, str]:
    """Return units with stored chunks whose row is gone or no longer matches the condition."""
    rows = spec.rows(using=using).filter(pk=OuterRef("source_id"))
    return (
        spec.embedding_model._base_manager.using(using)
        .filter(page)
        .exclude(LookedUp(rows))
        .values_list(Cast("source_id", TextField()), flat=True)
        .distinct()
    )


def stale(spec: Spec, spaces: Sequence[Space], page: Q, *, using: str) -> tuple[list[str], Any]:
    """Return rows whose text differs from the stored digest. Reads every text.

    The second value is the key after which it stopped early because text methods took too long,
    or None.
    """
    rows = spec.rows(using=using).filter(page).exclude(LookedUp(jobs_of_row(spec, PARKED)))
    # Rows whose text method raises are left out: jobs fail of that when such rows are written.
    texts, end = sources.digests(spec, rows, seconds=TEXTS_SECONDS)
    found = stored.text_digests(spec, list(texts), [space.pk for space in spaces], using=using)
    return sorted({key for key, digest in found if digest != texts[key]}), end


def text_page_end(spec: Spec, after: Any, *, size: int, using: str) -> Any:
    """Return the last key of a page whose texts fit in one read, or None on the last page."""
    rows = spec.all_rows(using=using)
    if after is not None:
        rows = rows.filter(pk__gt=after)
    keys = sources.fitting(spec, rows, most=size)
    is_cut = len(keys) == size or (keys and rows.filter(pk__gt=keys[-1]).exists())
    return keys[-1] if is_cut else None


def page_end(rows: QuerySet[Any], key: str, after: Any, *, size: int) -> Any:
    """Return the key that is ``size`` keys after ``after``, or None on the last page."""
    keys = rows.order_by(key).values_list(key, flat=True)
    if after is not None:
        keys = keys.filter(**{f"{key}__gt": after})
    return next(iter(keys[size - 1 : size]), None)
