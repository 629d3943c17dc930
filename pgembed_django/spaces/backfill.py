"""Enqueue many rows at a person's request: at the lowest priority, and up to a bound.

A backfill walks a table in key order. The database keeps its cursor, so the same backfill resumes
there, even after a kill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast, Now

from pgembed_django import providers, sources, spaces
from pgembed_django.core import database
from pgembed_django.core.user_code import Failed, UserCode
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job, ScanCursor, Space
from pgembed_django.models.job import READY
from pgembed_django.queue import jobs
from pgembed_django.spaces import reconcile
from pgembed_django.spaces.reembedding import Reembedded, reembed

PAGE_ROWS = 500

MAX_LEFT = 10_000
"""How many locked rows ``force`` skips at most before it comes back to them."""

TRIES = 20
"""How often in a row a run retries locked rows in vain before it gives up on them."""


class Step(NamedTuple):
    """The result of one page: rows looked at, jobs added, and whether it was the last page.

    With no rows, the step was a retry of rows that were skipped before.
    """

    rows: int
    enqueued: int
    is_last: bool

    @property
    def is_in_vain(self) -> bool:
        """Whether it retried skipped rows, and all of them are still locked by writers."""
        return not (self.rows or self.enqueued or self.is_last)


class Estimate(NamedTuple):
    """What a backfill would embed in one space.

    ``errors`` counts the rows whose text method raises.
    """

    model: str
    rows: int
    chunks: int
    tokens: int
    errors: int


class Backfill:
    """One spec's backfill of the rows without vectors, or with ``force`` of all rows.

    ``where``: (lookup, value) pairs as for ``filter``. All of them must match.
    ``resumed_from``: the key after which it goes on, or None if it starts from the beginning.
    ``left``: the keys that ``force`` skipped because open writers had locked their rows.
    ``ended``: when the last run ended, as text. Empty: a run is under way, or there was none.
    """

    def __init__(
        self, spec: Spec, *, using: str, where: Sequence[tuple[str, Any]], force: bool = False
    ) -> None:
        self.spec = spec
        self.using = using
        # One Q, so that lookups across a relation must match in the same related row.
        self._where = Q(*where)
        self._force = force
        self._is: dict[str, Any] = {
            "spec": spec.key,
            "scan": ScanCursor.Scan.BACKFILL,
            # Other lookups make it another backfill, but another order of the same ones does not.
            "selection": json.dumps({"force": force, "where": sorted(where, key=str)}, default=str),
        }
        cursor = ScanCursor.objects.using(using).filter(**self._is).first() or ScanCursor()
        self._cursor = self.resumed_from = cursor.cursor
        self.left: Sequence[str] = cursor.passed
        self.ended = str(cursor.finished_at or "")

    @property
    def rows(self) -> QuerySet[Model]:
        """All rows that the backfill goes over, from the start."""
        rows: QuerySet[Model] = self.spec.rows(using=self.using).filter(self._where)
        return rows

    @property
    def keys_left(self) -> QuerySet[Model, Any]:
        """The keys of the rows behind the cursor, in order."""
        keys = self.rows.filter(self._after()).order_by("pk").values_list("pk", flat=True)
        # Lookups across a relation return a row once per related row.
        return keys.distinct() if self._where else keys

    @property
    def waiting(self) -> int:
        """How many of its jobs have not been started yet."""
        return reconcile.backlog(self.spec, kind=Job.Kind.BACKFILL, using=self.using)

    @property
    def unfinished(self) -> int:
        """How many of its jobs are pending or running."""
        priority = Job.Kind.BACKFILL.priority(self.spec.priority)
        mine = Job.objects.using(self.using).filter(spec=self.spec.key, priority=priority)
        # One statement, so as not to miss a job that is claimed meanwhile. A union, because each
        # status has its own index.
        running = mine.filter(status=Job.Status.RUNNING).values("pk")
        return mine.filter(READY).values("pk").union(running, all=True).count()

    def step(self, *, limit: int = PAGE_ROWS) -> Step | None:
        """Enqueue the next page, or else skipped rows. Return None while the backlog is full."""
        room = reconcile.MAX_BACKLOG - self.waiting
        if room <= 0:
            return None
        limit = min(limit, room)
        page = list(self.keys_left[: max(0, min(limit, MAX_LEFT - len(self.left)))])
        if page:
            done = self._enqueue(self._after() & Q(pk__lte=page[-1]))
            self._cursor = str(page[-1])
            self.left = [*self.left, *done.busy]
        else:
            done = self._reembed(self.left[:limit])
            self.left = [*self.left[limit:], *done.busy]
        is_last = not self.left and not self.keys_left.exists()
        if is_last:
            self._cursor = None
        # Stored last: after a kill before this, the page is enqueued again, which changes nothing.
        state = {
            "cursor": self._cursor,
            "passed": self.left,
            "finished_at": Now() if is_last else None,
        }
        ScanCursor.put(state, using=self.using, **self._is)
        return Step(len(page), done.enqueued, is_last)

    def estimates(self) -> Iterator[Estimate]:
        """Yield what it would embed in each live space. Reads every text, and writes nothing.

        Tokens are counted if the provider can, or else estimated as one per three bytes.

        Raises:
            ProviderError: the model that counts tokens cannot be loaded.
        """
        live: list[Space | None] = [*spaces.live(self.spec, using=self.using)]
        for space in live or [None]:
            provider = spaces.provider_of(space) if space else providers.get(self.spec.provider)
            code = UserCode(using=self.using)
            rows = chunks = tokens = errors = 0
            for loaded in self._texts(space):
                errors += len(loaded.errors)
                for source_pk, text in loaded.texts.items():
                    cut = partial(self.spec.chunker.split, text)
                    try:
                        with code.watching():
                            pieces = code.call(cut, spec=self.spec.key, source_pk=source_pk)
                    except Failed:
                        errors += 1
                        continue
                    rows += 1
                    chunks += len(pieces)
                    tokens += sum(provider.count_document(piece.text) for piece in pieces)
            yield Estimate(provider.model, rows, chunks, tokens, errors)

    def _after(self) -> Q:
        after = self.spec.parse_cursor(self._cursor)
        return Q() if after is None else Q(pk__gt=after)

    def _enqueue(self, page: Q) -> Reembedded:
        if self._force:
            rows = self.rows.filter(page).order_by("pk")
            return self._reembed(rows.values_list(Cast("pk", TextField()), flat=True))
        live = spaces.live(self.spec, using=self.using)
        enqueued = jobs.enqueue(
            self.spec.key,
            reconcile.missing(self.spec, live, self._where & page, using=self.using),
            kind=Job.Kind.BACKFILL,
            priority=self.spec.priority,
            using=self.using,
        )
        if enqueued:
            jobs.nudge(using=self.using)
        return Reembedded(enqueued, ())

    def _reembed(self, source_pks: Iterable[str]) -> Reembedded:
        return reembed(self.spec, source_pks, using=self.using, wait=database.BRIEFLY)

    def _texts(self, space: Space | None) -> Iterator[sources.Loaded]:
        after = Q()
        while page := sources.fitting(self.spec, self.rows.filter(after), most=PAGE_ROWS):
            within = after & Q(pk__lte=page[-1])
            rows = self.rows.filter(within).annotate(pgembed_source_pk=Cast("pk", TextField()))
            if space and not self._force:
                where = self._where & within
                missing = reconcile.missing(self.spec, [space], where, using=self.using)
                rows = rows.filter(pgembed_source_pk__in=missing)
            yield sources.read(self.spec, rows)
            after = Q(pk__gt=page[-1])
