"""Embed one row in the caller, by the worker's own rounds, or leave its job to the workers.

The job is claimed, fenced and completed as by any worker. Its lease lasts little longer than the
call, so that it is soon reaped if the process dies. The provider is asked in a thread, so that the
caller waits for it no longer than it wants to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.models import BooleanField, ExpressionWrapper, Model, Q, TextField
from django.db.models.functions import Cast, Now
from django.db.transaction import TransactionManagementError

from pgembed_django import conf, spaces
from pgembed_django.core import postgres
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job, Space, Worker
from pgembed_django.models.job import PENDING, RUNNING, UNSETTLED
from pgembed_django.queue import jobs
from pgembed_django.queue.handler import Setting
from pgembed_django.queue.jobs import Claim, Lease
from pgembed_django.queue.lanes import Claiming
from pgembed_django.queue.work import Work

SETTLING_SECONDS = 5.0
"""How much longer than the call its lease lasts: what was embedded in time can still be stored."""

LOOK_SECONDS = 0.02
"""How often to look at a job that somebody else holds."""

REPORTED_SECONDS = 30.0
"""For how long to believe a worker that a provider is down."""

NO_WORKER = 0
"""Instead of a worker's id: this process has no row of its own."""


def embed_now(
    instance: Model,
    *,
    name: str | None = None,
    timeout: float = 5.0,
    using: str | None = None,
) -> bool:
    """Embed a saved row at once, so that the next search finds it by its meaning.

    Returns whether that is done. If not, its job is left to the workers: the provider is slow,
    down, paused or above its quota, it refuses the text, or a worker holds the job for longer than
    ``timeout`` seconds. A model that is decorated several times has a unit for each declaration,
    and ``name`` chooses one. ``using``: the database, if another alias has the rights of a worker.

    Raises:
        TransactionManagementError: a transaction is open. It would keep its locks while the
            provider is asked, and the row is not visible to others yet.
        ImproperlyConfigured: the model is not embeddable, or its database is not PostgreSQL.
        TypeError: that is no row.
        ValueError: the row was never saved.
    """
    until = time.monotonic() + timeout
    if not isinstance(instance, Model):
        raise TypeError(f"{instance!r} is not a row. Give an instance of an embeddable model.")
    model = instance.__class__  # not type(): it may be a lazy object
    known = specs.of(model, name=name)
    if instance._state.adding or instance.pk is None:
        raise ValueError(f"This {model.__name__} was never saved. Save it first.")
    alias = using or router.db_for_write(model, instance=instance)
    if other := postgres.not_postgres(alias, remedy="using"):
        raise ImproperlyConfigured(other)
    _refuse_open_transactions()
    done = []
    for spec in known:
        # Jobs have the key as Postgres prints it.
        rows = spec.all_rows(using=alias).filter(pk=instance.pk)
        source_pk = rows.values_list(Cast("pk", TextField()), flat=True).first()
        done.append(source_pk is not None and _embed(spec, source_pk, using=alias, until=until))
    return all(done)


async def aembed_now(
    instance: Model,
    *,
    name: str | None = None,
    timeout: float = 5.0,
    using: str | None = None,
) -> bool:
    """Embed like ``embed_now``, without blocking the event loop."""
    return await sync_to_async(embed_now)(instance, name=name, timeout=timeout, using=using)


def _refuse_open_transactions() -> None:
    """Refuse to ask a provider while this thread may hold locks, except those of a ``TestCase``."""
    for connection in connections.all(initialized_only=True):
        blocks: list[Any] = connection.atomic_blocks
        is_tests = bool(blocks) and blocks[-1]._from_testcase  # noqa: SLF001 - as durable=True does
        is_manual = connection.connection is not None and not connection.autocommit
        if (blocks or is_manual) and not is_tests:
            raise TransactionManagementError(
                f"embed_now() was called in a transaction on {connection.alias!r}, which would "
                "keep its locks while the provider is asked. Call it after the commit: "
                "transaction.on_commit(lambda: embed_now(row))."
            )


def _embed(spec: Spec, source_pk: str, *, using: str, until: float) -> bool:
    wake = Event()
    work = _OneUnit(spec, source_pk, using=using, until=until, wake=wake)
    try:
        return work.can_begin() and work.run()
    finally:
        work.end()


class _ClaimingOne(Claiming):
    """Claims the job of one unit, once. If it is given back, it is left to the workers."""

    source_pk: str
    has_begun = False

    def up_to(self, limit: int) -> list[Claim]:
        """Start the unit's job, if it is due."""
        if self.has_begun:
            return []
        [spec] = self._handler.specs
        claims = jobs.claim_unit(spec, self.source_pk, lease=self._lease, using=self._using)
        self.has_begun = bool(claims)
        return claims


class _OneUnit(Work):
    """Claims the job of one unit, once, and ends it."""

    claiming: _ClaimingOne

    def __init__(
        self, spec: Spec, source_pk: str, *, using: str, until: float, wake: Event
    ) -> None:
        seconds = max(0.0, until - time.monotonic())
        settings = replace(conf.current(), lease_seconds=seconds + SETTLING_SECONDS)
        self._handler = _Handler({spec.key: spec}, using=using, settings=settings)
        super().__init__(
            self._handler,
            using=using,
            worker_id=NO_WORKER,
            settings=settings,
            wake=wake.set,
            inline=True,
        )
        self.claiming.source_pk = source_pk
        self._spec = spec
        self._source_pk = source_pk
        self._until = until
        self._woken = wake

    def can_begin(self) -> bool:
        """Return whether neither a person nor an outage keeps the spec from being embedded."""
        handler, using = self._handler, self._using
        handler.refresh()
        if not handler.live.spaces[self._spec.key]:  # no worker has started yet
            spaces.ensure(self._spec, using=using)
            handler.live.outdate()
            handler.refresh()
        live = handler.live.spaces[self._spec.key]
        if not conf.current().canary_seconds:  # or else the model shows in what it makes
            spaces.ask_for_weights(live)
        is_ready = self._spec.key in handler.ready().specs
        return is_ready and not _is_down_elsewhere(live, using=using)

    def run(self) -> bool:
        """Go on until the job has ended or the time is over. Return whether it was completed."""
        key, source_pks = self._spec.key, [self._source_pk]
        had_job = False
        while True:
            self._woken.clear()
            moved = self.step()
            if self.completed:
                return True
            if self._has_begun:
                if self.held.is_empty:
                    return False
            elif others := self._others():
                had_job = True
                if not any(others):
                    return False
            elif had_job:
                return True  # a worker has completed it
            else:
                kind, priority = Job.Kind.WRITE, self._spec.priority
                added = jobs.enqueue(
                    key, source_pks, kind=kind, priority=priority, using=self._using
                )
                moved = had_job = added > 0
            left = self._until - time.monotonic()
            if left <= 0:
                return False
            if not moved:
                self._wait(left)

    @property
    def _has_begun(self) -> bool:
        return self.claiming.has_begun

    def end(self) -> None:
        """Give the job back if it has not ended, and let workers look for it."""
        try:
            self.release()
            self.held.tally.flush(using=self._using)
            if self._has_begun and not self.completed:
                jobs.nudge(using=self._using)
        finally:
            self.close()

    def _others(self) -> list[bool]:
        """Return for each job that keeps the unit from being enqueued whether it may end soon.

        Those are its unfinished ones, and its failure while that is parked.
        """
        is_due = Q(run_at__lte=Now(), crashes=0, outages=0)
        may_end = ExpressionWrapper(RUNNING | (PENDING & is_due), output_field=BooleanField())
        unit = Job.objects.using(self._using).filter(
            PENDING | RUNNING | (UNSETTLED & Q(run_at__gt=Now())),
            spec=self._spec.key,
            source_pk=self._source_pk,
        )
        return list(unit.values_list(may_end, flat=True))

    def _wait(self, seconds: float) -> None:
        """Wait for the provider's answer, or for a moment."""
        if self._has_begun and not self.held.is_blocked:
            seconds = min(seconds, max(LOOK_SECONDS, self.handler.wait_seconds))
        else:
            seconds = min(seconds, LOOK_SECONDS)
        self._woken.wait(seconds)


class _Handler(EmbeddingHandler):
    """Handles the job of one unit. Only the provider is asked in a thread of its own."""

    def begin(self, setting: Setting) -> None:
        """Make the rooms that the unit walks through."""
        super().begin(replace(setting, inline=False))

    def claiming(self, setting: Setting, lease: Lease) -> Claiming:
        """Return what claims the unit's job."""
        return _ClaimingOne(self, setting, lease)

    def _expand_ripples(self) -> bool:
        return False  # other rows are the workers'


def _is_down_elsewhere(live: Sequence[Space], *, using: str) -> bool:
    """Return whether a worker has just found a provider of the searched space to be down."""
    names = [
        conf.provider_key(space.provider, space.model, space.dimensions)
        for space in live
        if space.state == Space.State.ACTIVE
    ]
    since = Now() - timedelta(seconds=REPORTED_SECONDS)
    reports = Worker.objects.using(using).filter(last_seen_at__gt=since)
    return bool(names) and reports.filter(paused_seconds__has_any_keys=names).exists()
