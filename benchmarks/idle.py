"""What an idle transaction elsewhere (a held xmin) costs the claim.

While one is open, dead rows cannot be vacuumed, and a queue makes many. 20,000 jobs are claimed
and completed, by turns with and without such a transaction. Each run begins with an empty,
vacuumed table. The bar: at most twice as slow.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import django
import psycopg
from django.core.management import call_command

from benchmarks import compare, postgres
from benchmarks.compare import Bar, Comparison, Figures

JOBS = 20_000
BATCH = 500
MOST = 2.0
ALONE, BESIDE = "alone", "beside an idle transaction"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for the number of jobs."""
    compare.add_arguments(parser)
    parser.add_argument("--jobs", type=int, default=JOBS)


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if the bar was reached."""
    with postgres.database() as server:
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        call_command("migrate", verbosity=0)
        comparison = Comparison(f"A claim of {BATCH}, while {options.jobs:,} jobs are drained")
        contenders = {
            ALONE: claims(server.url, options.jobs, is_held=False),
            BESIDE: claims(server.url, options.jobs, is_held=True),
        }
        comparison.alternate(contenders, runs=options.runs)
    comparison.bars.append(Bar("ms", BESIDE, [ALONE], most=MOST))
    return compare.report([comparison], options)


def claims(url: str, jobs: int, *, is_held: bool) -> Callable[[], Figures]:
    """Return a function that measures claims, beside an idle transaction or alone."""

    def measure() -> Figures:
        with psycopg.connect(url) as idle:
            if is_held:
                idle.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                idle.execute("SELECT 1")
            return {"ms": drain(url, jobs) * 1000}

    return measure


def drain(url: str, count: int) -> float:
    """Claim and complete ``count`` jobs. Return the mean seconds per claim."""
    from django.db import transaction

    from pgembed_django.queue import jobs

    with psycopg.connect(url, autocommit=True) as own:
        own.execute("TRUNCATE pgembed_job")
        own.execute(
            "INSERT INTO pgembed_job (spec, source_pk)"
            " SELECT 'app.Spec', n::text FROM generate_series(1, %s) AS n",
            [count],
        )
        own.execute("VACUUM ANALYZE pgembed_job")
    claiming = 0.0
    claims = 0
    while True:
        started = time.perf_counter()
        found = jobs.claim(["app.Spec"], limit=BATCH, lease=jobs.Lease(1, 600), using="default")
        claiming += time.perf_counter() - started
        claims += 1
        if not found:
            return claiming / claims
        with transaction.atomic():
            held = jobs.hold(found, using="default")
            jobs.complete(dict.fromkeys(held.ours, 1), keep_seconds=0, using="default")
