"""Run jobs and tasks that are due in the test's own transaction, with hashes instead of a model."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from django.test.utils import override_settings

from pgembed_django import conf, spaces
from pgembed_django.core import postgres
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.queue.work import Work
from pgembed_django.spaces import reconcile
from pgembed_django.tasks import backend
from pgembed_django.tasks.errors import Again
from pgembed_django.tasks.handler import TaskHandler
from pgembed_django.tasks.running import Outcome, Run

BACKEND = f"{DeterministicProvider.__module__}.{DeterministicProvider.__qualname__}"


def run_jobs(*, using: str = DEFAULT_DB_ALIAS) -> int:
    """Embed everything that is due, in this process. Returns how many units were stored.

    This runs the worker's own rounds, without threads or a second connection, so it works
    inside ``TestCase``, where nothing ever commits. If a provider's quota is used up, it waits
    for a few seconds. If that is not enough, it puts the jobs off.

    Raises:
        ImproperlyConfigured: the database is not PostgreSQL.
    """
    if other := postgres.not_postgres(using, remedy="using"):
        raise ImproperlyConfigured(other)
    known = {spec.key: spec for spec in specs.on(using)}
    for spec in known.values():
        spaces.ensure(spec, using=using)
        spaces.recognize(spec, using=using, only_exchanged=True)
        if spec.is_read_from_log:
            # What is never committed is not in the log. The rows themselves tell.
            reconcile.begin_anew(spec, using=using)
            reconcile.reconcile_once(spec, using=using, scans=reconcile.ALL_SCANS)
    handler = EmbeddingHandler(known, using=using)
    work = Work(handler, using=using, worker_id=0, settings=conf.current(), inline=True)
    while work.step() or handler.embedder.wait_seconds:
        time.sleep(handler.embedder.wait_seconds)
    work.release()
    return work.completed


def run_tasks(*, raises: bool = False, using: str = DEFAULT_DB_ALIAS) -> int:
    """Run every task that is due, in all queues, in this process. Returns how many have succeeded.

    Like ``run_jobs`` it works inside ``TestCase``, and it goes on with what tasks enqueue. A task
    for a later time, or that backs off after an error, is not waited for. An error is stored, as a
    worker does. With ``raises`` it is raised, too, once all tasks have run: the first of several.

    Raises:
        ImproperlyConfigured: the database is not PostgreSQL.
    """
    if other := postgres.not_postgres(using, remedy="using"):
        raise ImproperlyConfigured(other)
    handler = _Noting(backend.queues(), using=using, concurrency=1)
    handler.prepare()
    work = Work(handler, using=using, worker_id=0, settings=conf.current(), inline=True)
    while work.step():
        pass
    work.release()
    work.close()
    if raises and handler.errors:
        raise handler.errors[0]
    return work.completed


class _Noting(TaskHandler):
    """Notes the errors of tasks, beside storing them."""

    def __init__(self, queues: Iterable[str], *, using: str, concurrency: int) -> None:
        super().__init__(queues, using=using, concurrency=concurrency)
        self.errors: list[BaseException] = []

    def _report(self, run: Run, outcome: Outcome) -> None:
        if outcome.error is not None and not isinstance(outcome.error, Again):
            self.errors.append(outcome.error)
        super()._report(run, outcome)


class fake_providers(override_settings):  # noqa: N801 - used like override_settings
    """Embeds with ``DeterministicProvider`` instead of each BACKEND in PGEMBED_PROVIDERS.

    A context manager, and a decorator for functions and Django's test classes. It keeps aliases,
    models and dimensions, and drops OPTIONS and quotas, which are made for the real provider.
    """

    def __init__(self) -> None:
        # Django's test classes read the options when they are decorated, without enable().
        super().__init__(PGEMBED_PROVIDERS=_faked())

    def enable(self) -> None:
        """Replace the providers that are set now."""
        self.options = {"PGEMBED_PROVIDERS": _faked()}
        super().enable()


def _faked() -> dict[str, dict[str, Any]]:
    return {
        alias: {"BACKEND": BACKEND}
        | {name: given[name] for name in ("MODEL", "DIMENSIONS") if name in given}
        for alias, given in conf.current().providers.items()
    }
