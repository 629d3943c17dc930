"""What an idle transaction elsewhere (a held xmin) costs the claim.

While one is open, dead rows cannot be vacuumed, and a queue makes many. 20,000 jobs are claimed
and completed, by turns with and without such a transaction. Each run begins with an empty,
vacuumed table. The bar: at most twice as slow.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import django
import psycopg
from django.core.management import call_command

from benchmarks import postgres

JOBS = 20_000
BATCH = 500
RUNS = 5
MOST = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the numbers of jobs and runs."""
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--runs", type=int, default=RUNS)


def run(options: argparse.Namespace) -> int:
    """Measure by turns, and print the medians."""
    with postgres.database() as server:
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        call_command("migrate", verbosity=0)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.runs):
            for held in (False, True):
                with psycopg.connect(server.url) as idle:
                    if held:
                        idle.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                        idle.execute("SELECT 1")
                    seconds[held].append(drain(server.url, options.jobs))
    medians = {held: statistics.median(found) for held, found in seconds.items()}
    for held, found in seconds.items():
        title = "beside an idle transaction" if held else "alone"
        spread = f"{min(found) * 1000:.2f} to {max(found) * 1000:.2f}"
        print(f"{title:28} {medians[held] * 1000:8.2f} ms a claim ({spread})")
    ratio = medians[True] / medians[False]
    print(f"{'ratio':28} {ratio:8.2f}, to reach: at most {MOST}")
    return int(ratio > MOST)


def drain(url: str, count: int) -> float:
    """Claim and complete ``count`` jobs. Return the mean seconds per claim."""
    from django.db import transaction

    from pgembed_django import jobs

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
