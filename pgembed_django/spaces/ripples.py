"""Expand ripples: enqueue the units whose texts are made of changed rows of other tables.

Each step takes some ripples of one spec and path, locked with SKIP LOCKED, finds their units in key
order, and enqueues one page of them. In the same transaction it deletes the ripples, or notes where
to go on. Equal ones collapse. Nothing is lost. A unit that is linked in the snapshot of that query
gets a job after the change is visible, and whatever moves a row has a ripple, or a job, of its own.

A unit whose job an open writer has locked becomes a ripple of its own: that writer may roll back.
From the change until its expansion, a text is stale though no job says so: ``stale="hide"`` serves
it. From then on it is hidden, as after a write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.db.models import F, TextField
from django.db.models.functions import Cast, Now

from pgembed_django.core import database
from pgembed_django.core.adapting import AdaptiveSize, doubled
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Ripple
from pgembed_django.queue import jobs

PAGE_UNITS = 1000
MOST_RIPPLES = 1000

UNIT = "pk"
"""The path of a ripple of one unit, whether its row matches the condition or not."""

BUSY_SECONDS = 0.05
MAX_BUSY_SECONDS = 1.0
"""How long to leave ripples alone when an open writer has locked jobs of their units."""

KEPT = timedelta(days=7)
"""How long to keep ripples of paths that are not declared here: another version may run too."""

WAITING = """
    SELECT spec
    FROM pgembed_ripple
    WHERE (spec, path) IN (SELECT * FROM unnest(%(specs)s::text[], %(paths)s::text[]))
    ORDER BY id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
"""
# Those with the same cursor as the oldest one: they go on together.
TAKE = """
    WITH oldest AS (
        SELECT path, cursor
        FROM pgembed_ripple
        WHERE spec = %(spec)s
          AND path = ANY(%(paths)s::text[])
        ORDER BY id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
    SELECT ripple.id, ripple.path, ripple.key, ripple.cursor, ripple.created_at
    FROM pgembed_ripple AS ripple, oldest
    WHERE ripple.spec = %(spec)s
      AND ripple.path = oldest.path
      AND ripple.cursor IS NOT DISTINCT FROM oldest.cursor
    ORDER BY ripple.id
    LIMIT %(limit)s
    FOR UPDATE OF ripple SKIP LOCKED
"""


class Taken(NamedTuple):
    """A locked ripple."""

    id: int
    path: str
    key: str
    cursor: str | None
    created_at: datetime


class Expander:
    """Expands the ripples of some specs, a page each step."""

    def __init__(
        self,
        specs: Iterable[Spec],
        *,
        using: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = {spec: _paths(spec) for spec in specs}
        self.due_at = float("inf")
        """When to look again at what an open writer has locked, by the clock."""
        self._using = using
        self._clock = clock
        self._size = AdaptiveSize(PAGE_UNITS, most=PAGE_UNITS)
        self._busy_seconds = 0.0
        self._behind: set[Spec] = set()
        """Those that could not be expanded: all others go first, and then these again."""

    def next_spec(self, left_alone: Iterable[Spec] = ()) -> Spec | None:
        """Return the spec whose ripples come next, if there are any."""
        if self._clock() < self.due_at < float("inf"):
            return None
        specs = self._paths.keys() - set(left_alone)
        found = self._oldest(specs - self._behind)
        if found is None and self._behind:
            self._behind.clear()
            found = self._oldest(specs)
        if found is None:
            self._busy_seconds, self.due_at = 0.0, float("inf")
        return found

    def _oldest(self, specs: Iterable[Spec]) -> Spec | None:
        """Return the spec of the oldest ripple."""
        known = [(spec, path) for spec in specs for path in self._paths[spec]]
        found = database.prepared(
            self._using,
            WAITING,
            specs=[spec.key for spec, _ in known],
            paths=[path for _, path in known],
        )
        return next((spec for spec, _ in known if [(spec.key,)] == found), None)

    def expand(self, spec: Spec) -> bool:
        """Expand a page of a spec's ripples. Return whether anything moved.

        Raises:
            DatabaseError: the statement was canceled, or the spec's tables are not as declared.
        """
        started = time.perf_counter()
        try:
            with database.giving_way(self._using):
                units, busy = self._page(spec)
        except database.Busy:
            units, busy = 0, 1  # the whole table is locked
            self._behind.add(spec)
        except DatabaseError:
            self._behind.add(spec)
            self._size.failed(self._size.size)
            raise
        if units:
            self._size.took(time.perf_counter() - started, units)
        if busy:
            self._busy_seconds = doubled(
                self._busy_seconds, first=BUSY_SECONDS, most=MAX_BUSY_SECONDS
            )
            self.due_at = self._clock() + self._busy_seconds
        return busy < max(units, 1)

    def _page(self, spec: Spec) -> tuple[int, int]:
        """Return how many units the page has, and how many of them are busy."""
        rows = database.rows(
            self._using, TAKE, spec=spec.key, paths=self._paths[spec], limit=MOST_RIPPLES
        )
        if not rows:
            return 0, 1  # another worker has just taken them
        taken = [Taken(*row) for row in rows]
        ids = {one.key: one.id for one in reversed(taken)}
        size = max(1, self._size.size)
        found = self._units(spec, taken[0], list(ids), size + 1)
        page = found[:size]
        busy = jobs.enqueue_related(
            spec.key, [unit for _, unit in page], priority=spec.priority, using=self._using
        )
        ripples = Ripple.objects.using(self._using)
        kept = ids.values() if len(found) > size else ()
        ripples.filter(pk__in=kept).update(
            cursor=page[-1][1] if page else None, units=F("units") + len(page)
        )
        database.delete(ripples.filter(pk__in={one.id for one in taken}.difference(kept)))
        since = min(one.created_at for one in taken)
        ripples.bulk_create(
            [Ripple(spec=spec.key, path=UNIT, key=unit, created_at=since) for unit in busy]
        )
        return len(page), len(busy)

    def _units(
        self, spec: Spec, first: Taken, keys: Sequence[str], most: int
    ) -> list[tuple[Any, str]]:
        """Return the next units of ripples of one path and cursor, each with its key.

        Of all rows, if a trigger does not test the condition, or the ripple names the unit: a row
        may no longer match.
        """
        rows = spec.all_rows(using=self._using)
        if spec.when and not spec.when_spans_tables and first.path != UNIT:
            rows = rows.filter(spec.when)
        if first.path:
            compared = spec.relations.compared.get(first.path, spec.model._meta.pk)
            values = []
            for key in keys:
                # A generic relation may have the key of another model.
                with suppress(ValidationError, ValueError):
                    values.append(compared.to_python(key))
            rows = rows.filter(**{f"{first.path}__in": values})
        if (after := spec.parse_cursor(first.cursor)) is not None:
            rows = rows.filter(pk__gt=after)
        units = rows.order_by("pk").values_list("pk", Cast("pk", TextField())).distinct()
        return list(units[:most])


def prune(spec: Spec, *, using: str) -> None:
    """Delete old ripples of paths that are no longer declared."""
    ripples = Ripple.objects.using(using).filter(spec=spec.key, created_at__lt=Now() - KEPT)
    database.delete(ripples.exclude(path__in=_paths(spec)))


def _paths(spec: Spec) -> list[str]:
    return ["", UNIT, *spec.relations.compared]
