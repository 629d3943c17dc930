"""Swap a model for one of another width under load: writers write, and workers are killed.

WordLlama, behind a delay of 20 ms per request and 0.5 ms per text, embeds passages of installed
packages. First comes a plain backfill of all rows, then a calm, then as long a time beside a
session of the database that only counts, then the swap. A writer and searches go on throughout, and
as many workers are killed in the swap as in the backfill. The workers run with ``nice``, as the
deployment's unit does on a machine that serves searches too. The session that counts is what any
use of one processor costs the searches.

Every search must return vectors of exactly one space, and the searched space must never hold fewer
rows than before. The bars: the p99 of searches during the swap is at most 1.1 times that beside
the session that counts, and the swap takes at most 1.15 times as long as the backfill.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psycopg import sql

from benchmarks import postgres
from benchmarks.soak.processes import Workers

WIDTHS = (256, 128)
"""The dimensions before and after the swap."""

MOST_SLOWER = 1.1
MOST_LONGER = 1.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the size of the table, and for the load."""
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5, help="the median of so many is told")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--nice",
        type=int,
        default=10,
        help="of the workers, as in docs/deploy/pgembed-worker.service",
    )
    parser.add_argument("--kills", type=int, default=3, help="in the backfill, and in the swap")
    parser.add_argument("--writes", type=float, default=30, help="a second")
    parser.add_argument("--searches", type=float, default=15, help="a second")
    parser.add_argument(
        "--widths",
        type=int,
        nargs=2,
        default=WIDTHS,
        metavar=("BEFORE", "AFTER"),
        help="of the vectors: the wider ones take longer to be indexed",
    )
    parser.add_argument("--memory", default="512MB", help="maintenance_work_mem: the index fits.")
    parser.add_argument("--calm-seconds", type=float, default=15)
    parser.add_argument("--counts-only", action="store_true", help="judge no speed")
    parser.add_argument("--json", type=Path, help="a file for the figures")


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if nothing was wrong and both bars were reached."""
    with postgres.database(), tempfile.TemporaryDirectory() as folder:
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        os.environ["BENCHMARK_SETTINGS"] = json.dumps(settings(options.widths[0]))
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        with connections["default"].cursor() as cursor:
            # For the workers, which connect later.
            statement = sql.SQL("ALTER DATABASE {} SET maintenance_work_mem = {}")
            name = connections["default"].settings_dict["NAME"]
            cursor.execute(
                statement.format(sql.Identifier(name), sql.Literal(options.memory)).as_string(None)
            )
        # Import late: our models need Django to be set up.
        from benchmarks.swap import rounds

        workers = Workers(options.workers, Path(folder), nice=options.nice)
        try:
            swapping = rounds.Swapping(options, workers)
            measured = [swapping.round(number) for number in range(options.repeats)]
        finally:
            workers.stop()
            connections.close_all()
    return tell(measured, workers.deaths, options)


def settings(width: int) -> dict[str, Any]:
    """Return the settings of workers and searches. Leases are short, so that kills have effects."""
    return {
        "PGEMBED_PROVIDERS": {
            "default": {
                "BACKEND": "benchmarks.swap.served.ServedWordLlama",
                "MODEL": "l2_supercat",
                "DIMENSIONS": width,
            }
        },
        "PGEMBED_LEASE_SECONDS": 5,
        "PGEMBED_REAP_SECONDS": 1,
    }


def tell(measured: Sequence[Any], deaths: Sequence[str], options: argparse.Namespace) -> int:
    """Print the figures, and the counts that must be zero. Return an exit status."""
    figures = [one.figures for one in measured]
    print(f"\n{options.rows:,} rows, {len(measured)} rounds")
    print(f"{'':34}{'median':>10}{'from':>10}{'to':>10}")
    medians = {}
    for name in figures[0]:
        values = [one[name] for one in figures]
        medians[name] = statistics.median(values)
        print(f"{name:34}{medians[name]:10,.2f}{min(values):10,.2f}{max(values):10,.2f}")
    wrong: dict[str, list[str]] = {"workers that died by themselves": list(deaths)}
    for one in measured:
        for name, found in one.wrong.items():
            wrong.setdefault(name, []).extend(found)
    print("\nto be zero")
    for name, found in wrong.items():
        print(f"{name:54}{len(found):6}", *found[:10], sep="\n    ")
    bars = {
        "times the p99 beside a count": MOST_SLOWER,
        "times the backfill": MOST_LONGER,
    }
    missed = [name for name, most in bars.items() if medians[name] > most]
    print()
    for name, most in bars.items():
        print(f"{name}: {medians[name]:.2f}, to reach: {most}{' MISSED' * (name in missed)}")
    if options.json:
        counts = {name: len(found) for name, found in wrong.items()}
        told = {"rounds": figures, "medians": medians, "to be zero": counts, "missed": missed}
        options.json.write_text(json.dumps(told, indent=2))
    is_slow = bool(missed) and not options.counts_only
    return int(any(wrong.values()) or is_slow)
