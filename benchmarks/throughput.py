"""How many rows workers store a second when embedding costs nothing: what the database allows.

A provider of constant vectors; everything else is as it runs: claims, texts, plans, vectors,
completions. First one worker, then two at once. Each is a process of its own.
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
    """Says the same of every text, at once."""

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
    """Take the number of rows and the numbers of workers."""
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
    """Return the rows that so many workers store a second, from the first one on."""
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
