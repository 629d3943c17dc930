"""Celery with Redis (append-only, fsync every second): 32 threads, late acknowledgements."""

from __future__ import annotations

import os
from collections.abc import Sequence

from celery import Celery

from benchmarks.peers.producer import Producer
from benchmarks.queue.handler import AT_ONCE, Handler

MOST_JOBS = 20_000


def fill(url: str, count: int) -> None:
    """Add jobs, to an empty broker."""
    _app().control.purge()
    producer(url).many(range(count))


def producer(url: str) -> Producer:
    """Return what adds jobs. Celery sends one message a job."""
    app = _app()

    def one(number: int) -> None:
        app.send_task("handle", (number,))

    def many(numbers: Sequence[int]) -> None:
        with app.producer_or_acquire() as sending:
            for number in numbers:
                app.send_task("handle", (number,), producer=sending)

    return Producer(one, many)


def drain(url: str, handler: Handler) -> None:
    """Handle all jobs."""
    app = _app()

    @app.task(name="handle")
    def handle(number: int) -> None:
        handler(number)

    app.Worker(
        pool="threads",
        concurrency=AT_ONCE,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="ERROR",
        quiet=True,
    ).start()


def _app() -> Celery:
    app = Celery("benchmark", broker=os.environ["BENCHMARK_REDIS"])
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        worker_prefetch_multiplier=4,
        worker_hijack_root_logger=False,
    )
    return app
