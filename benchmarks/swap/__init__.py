"""A model is swapped for another width under load: writers write, workers are killed.

Passages of what is installed here, embedded by WordLlama behind a delay of 20 ms a request
and 0.5 ms a text. First a plain backfill of all rows, then calm, then the swap; a writer
and searches go on throughout, and as many workers are killed in the swap as in the backfill.
The workers run with ``nice``, as the deployment's unit does on a machine that serves searches too.
Every search must return vectors of exactly one space, and the searched space never hold
fewer rows than it did. To reach: the p99 of searches during the swap within 1.5 times that
of the calm before, and the swap's time within 1.15 times the backfill's.
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
"""Before the swap, and after it."""

MOST_SLOWER = 1.5
MOST_LONGER = 1.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the size of the table, and how rough it is to be."""
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
    """Measure. Returns zero where nothing was wrong, and both bars were reached."""
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
        # Our models load only where Django is set up.
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
    """Return what workers and searches are told: short leases, so that kills are felt."""
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
    """Print the figures, and what is to be zero. Returns an exit status."""
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
        "times the calm's p99": MOST_SLOWER,
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
