"""How much more two and four workers embed than one if the provider is the limit.

A server in its own process sleeps 250 ms per request, so that it answers any number at once. Each
worker is a real ``embed_worker`` with batches of 16, two at once: 128 rows a second at most. The
number of rows is proportional to that of workers. The time runs from the first vector to the last,
so the end, when some workers have run out of work, counts too. The bar: N workers reach 0.9 * N
times the rate of one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import compare, postgres, served
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.soak.processes import Workers

REQUEST_SECONDS = 0.25
BATCH, AT_ONCE = 16, 2
LINEAR = 0.9
FIGURE = "rows/s"
STALL_SECONDS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the numbers of rows and of workers."""
    compare.add_arguments(parser)
    parser.add_argument("--rows", type=int, default=640, help="for each worker")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if every bar was reached."""
    limit = BATCH * AT_ONCE / REQUEST_SECONDS
    comparison = Comparison(f"{options.rows} rows a worker, at most {limit:.0f}/s each")
    provider = served.Server(request_seconds=REQUEST_SECONDS)
    try:
        with postgres.database(), TemporaryDirectory() as folder:
            _prepare(provider)
            contenders = {
                _title(count): _measuring(count, options.rows, Path(folder))
                for count in options.workers
            }
            comparison.alternate(contenders, runs=options.runs)
    finally:
        provider.stop()
    first, *others = options.workers
    comparison.bars += [
        Bar(FIGURE, _title(count), [_title(first)], least=LINEAR * count / first)
        for count in others
    ]
    return compare.report([comparison], options)


def _prepare(provider: served.Server) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(
        {
            "PGEMBED_PROVIDERS": {"default": provider.provider()},
            "PGEMBED_BATCH_SIZE": BATCH,
            "PGEMBED_CONCURRENCY": AT_ONCE,
            "PGEMBED_INDEX_ROWS": 0,
            "PGEMBED_RECONCILE_SECONDS": 0,
        }
    )
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _title(count: int) -> str:
    return f"ours, {count} worker{'s' * (count > 1)}"


def _measuring(count: int, rows: int, folder: Path) -> Callable[[], Figures]:
    def measure() -> Figures:
        workers = Workers(count, folder)
        workers.tend()
        try:
            return _measure(workers, rows * count)
        finally:
            workers.stop()

    return measure


def _measure(workers: Workers, rows: int) -> Figures:
    """Wait until all workers have started, write the rows, and wait for the last vector."""
    # Import late: our models need Django to be set up.
    from benchmarks.app.models import Article, ArticleEmbedding
    from pgembed_django.models import Job, Worker

    for model in (Article, ArticleEmbedding, Job):
        model.objects.all()._raw_delete("default")  # noqa: SLF001
    stored = ArticleEmbedding.objects.filter(embedding__isnull=False)
    _until(lambda: Worker.objects.count() == workers.count, "not all workers have started")
    articles = [Article(title=f"Article {n}") for n in range(rows)]
    Article.objects.bulk_create(articles)
    _until(lambda: stored.count() > 0, "nothing is embedded")
    first, began = stored.count(), time.perf_counter()
    _until(lambda: not Job.objects.filter(status__in=["pending", "running"]).exists(), "stuck")
    seconds = time.perf_counter() - began
    found = stored.count()
    assert found == rows, f"{found} vectors for {rows} rows"
    return {FIGURE: (rows - first) / seconds}


def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + STALL_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
