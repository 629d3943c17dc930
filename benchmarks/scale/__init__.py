"""What grows with the tables: claims, heartbeats, completions, reconciling, memory, locks.

Each world is a database with a number of source rows, and the same number of pending jobs and of
finished jobs (kept successes). The same statements run by turns in all worlds. Then a real worker
works for a while in a small world and in the largest, and its peak of resident memory is measured.
At the end the decorator's migration runs on the largest table, beside a writer whose longest wait
is measured. The writer commits asynchronously, so that it waits for locks and not for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import dj_database_url

from benchmarks import compare, postgres
from benchmarks.compare import Bar, Comparison

MOST_COST, MOST_MEMORY, MOST_WAIT_MS = 1.5, 1.2, 50.0
PROVIDER = {
    "BACKEND": "pgembed_django.providers.deterministic.DeterministicProvider",
    "MODEL": "words",
    "DIMENSIONS": 16,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the sizes."""
    compare.add_arguments(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 1_000_000])
    parser.add_argument("--worked", type=int, default=4_000, help="rows that the worker stores")


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if every bar was reached."""
    with postgres.database() as server:
        settings: dict[str, Any] = {
            "PGEMBED_PROVIDERS": {"default": PROVIDER},
            "PGEMBED_INDEX_ROWS": 0,
            "LOGGING_CONFIG": None,
        }
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        names = {size: f"rows_{size}" for size in options.sizes}
        urls = {size: postgres.with_name(server.url, name) for size, name in names.items()}
        databases = {names[size]: dj_database_url.parse(url) for size, url in urls.items()}
        here = {"default": dj_database_url.parse(server.url), **databases}
        os.environ["BENCHMARK_SETTINGS"] = json.dumps({**settings, "DATABASES": here})
        import django

        django.setup()
        # Import late: our models need Django to be set up.
        from benchmarks.scale import worlds

        with worlds.created(server.url, names.values()):
            for size, name in names.items():
                worlds.fill(name, size)
            comparisons = _measure(options, names, urls, settings)
    return compare.report(comparisons, options)


def _measure(
    options: argparse.Namespace,
    names: dict[int, str],
    urls: dict[int, str],
    settings: dict[str, Any],
) -> list[Comparison]:
    from benchmarks.scale import adding, memory, steps

    smallest, largest = min(names), max(names)
    cost = Comparison("Cost by rows, pending jobs and done jobs, milliseconds")
    cost.alternate({f"{size:,}": steps.of(names[size]) for size in names}, runs=options.runs)
    cost.bars += [
        Bar(figure, f"{largest:,}", [f"{smallest:,}"], most=MOST_COST) for figure in steps.FIGURES
    ]
    # Not the smallest world: a thousand rows are done before a worker is warm.
    small = next((size for size in sorted(names) if size >= 2 * options.worked), largest)
    used = Comparison("Peak resident memory of a worker, MB")
    used.alternate(
        {
            f"{size:,} rows": memory.of(urls[size], settings, options.worked)
            for size in (small, largest)
        },
        runs=1,
    )
    used.bars.append(Bar(memory.FIGURE, f"{largest:,} rows", [f"{small:,} rows"], most=MOST_MEMORY))
    added = Comparison(f"The decorator is added to {largest:,} rows, milliseconds")
    added.alternate(
        {
            "no migration": adding.waits(names[largest], urls[largest], is_added=False),
            "the migration": adding.waits(names[largest], urls[largest], is_added=True),
            "what a writer may wait": lambda: {adding.WAIT: MOST_WAIT_MS},
        },
        runs=options.runs,
    )
    added.bars.append(Bar(adding.WAIT, "the migration", ["what a writer may wait"], most=1.0))
    return [cost, used, added]
