"""How many rows a second workers store if embedding costs nothing: what the database allows.

The provider returns a constant vector. Everything else is real: claims, texts, plans, vectors,
completions. First one worker runs, then two at once. Each has its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import django
import numpy as np
from django.core.management import call_command

from benchmarks import postgres
from pgembed_django.providers.base import Provider, Vectors

DIMENSIONS = 768
WORDS = "Reading the whole table is cheaper when most of its rows match the condition. "


class ConstantProvider(Provider):
    """Returns the same vector for every text, without delay."""

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        return np.full((len(texts), self.dimensions), self.dimensions**-0.5, dtype=np.float32)


SETTINGS = {
    "PGEMBED_PROVIDERS": {
        "default": {
            "BACKEND": "benchmarks.throughput.ConstantProvider",
            "MODEL": "constant",
            "DIMENSIONS": DIMENSIONS,
        }
    },
    "PGEMBED_INDEX_ROWS": 0,
    "PGEMBED_KEEP_SUCCEEDED_SECONDS": 0,
    "LOGGING_CONFIG": None,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the numbers of rows and of workers."""
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])


def run(options: argparse.Namespace) -> int:
    """Print the rates."""
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(SETTINGS)
    with postgres.database():
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        call_command("migrate", verbosity=0)
        for number in options.workers:
            rate = measure(number, options.rows)
            print(f"{number} worker{'s' * (number > 1)}: {rate:,.0f} rows a second")
    return 0


def measure(workers: int, rows: int) -> float:
    """Return how many rows a second ``workers`` workers store, from the first stored row on."""
    from benchmarks.app.models import Article, ArticleEmbedding
    from pgembed_django.models import Job

    Article.objects.all().delete()
    Job.objects.all().delete()
    Article.objects.bulk_create(
        [Article(title=f"Article {n}", contents=WORDS * 8) for n in range(rows)], batch_size=2000
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "django", "embed_worker", "--specs", "app.ArticleEmbedding"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(workers)
    ]
    try:
        while not (first := ArticleEmbedding.objects.count()):
            if any(process.poll() is not None for process in started):
                raise SystemExit("A worker has ended: start it by hand to see why.")
            time.sleep(0.01)
        began = time.perf_counter()
        while Job.objects.exists():
            time.sleep(0.05)
        return (rows - first) / (time.perf_counter() - began)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
