"""Run the jobs that are due, in the test's own transaction."""

from __future__ import annotations

import time

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from pgembed_django import conf, postgres, spaces, specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.maintenance import recognizing
from pgembed_django.queue.work import Work


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
        recognizing.recognize(spec, using=using, only_exchanged=True)
    handler = EmbeddingHandler(known, using=using)
    work = Work(handler, using=using, worker_id=0, settings=conf.current(), inline=True)
    while work.step() or handler.embedder.wait_seconds:
        time.sleep(handler.embedder.wait_seconds)
    work.release()
    return work.completed
