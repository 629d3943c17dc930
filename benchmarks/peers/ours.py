"""Ours: the loop of ``embed_worker``, with the handler in place of embedding."""

from __future__ import annotations

import gc
import json
import os
from typing import TYPE_CHECKING

import django
import psycopg

from benchmarks.queue.handler import Handler

if TYPE_CHECKING:
    from pgembed_django.declaration.specs import Spec

SETTINGS = {
    "PGEMBED_RECONCILE_SECONDS": 0,
    "PGEMBED_KEEP_SUCCEEDED_SECONDS": 0,
    "PGEMBED_PROVIDERS": {
        "default": {
            "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
            "MODEL": "none",
            "DIMENSIONS": 1,
        }
    },
}


def fill(url: str, count: int) -> None:
    """Add jobs."""
    spec = _set_up()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pgembed_job (spec, source_pk) "
            "SELECT %s, n::text FROM generate_series(1, %s) AS n",
            [spec.key, count],
        )
        connection.execute("VACUUM ANALYZE pgembed_job")


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    spec = _set_up()
    from benchmarks.queue.stub import StubHandler
    from pgembed_django.management.commands import embed_worker
    from pgembed_django.queue.worker import Worker

    # Like the command embed_worker.
    gc.collect()
    gc.freeze()
    gc.set_threshold(embed_worker.GARBAGE_THRESHOLD)
    Worker([StubHandler(spec.key, handler)], using="default").run()


def _set_up() -> Spec:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(SETTINGS)
    django.setup()
    from benchmarks.app.models import Article
    from pgembed_django.declaration import specs

    [spec] = specs.of(Article)
    return spec
