"""Run a worker in the process of a command."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from pgembed_django import conf
from pgembed_django.exceptions import PgembedError
from pgembed_django.pipeline.handler import EmbeddingHandler
from pgembed_django.queue.liveness import Watchdog
from pgembed_django.queue.worker import Worker
from pgembed_django.specs import Spec


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a worker in this process releases its leases."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def working(chosen: dict[str, Spec], *, using: str) -> Iterator[list[str]]:
    """Run a worker in a thread of this process, without the reconciler.

    Yields a list. If the worker dies, its error is added to it.
    """
    settings = dataclasses.replace(conf.current(), reconcile_seconds=0)
    handler = EmbeddingHandler(chosen, using=using, settings=settings)
    worker = Worker([handler], using=using, settings=settings)
    died: list[str] = []

    def run() -> None:
        try:
            worker.run()
        except (PgembedError, ImproperlyConfigured, DatabaseError) as error:
            died.append(str(error))
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="pgembed-backfill")
    watchdog = Watchdog(worker.liveness, is_late=lambda: worker.is_late, say_alive=worker.say_alive)
    with watchdog:
        thread.start()
        try:
            yield died
        finally:
            worker.stop()
            thread.join()
