"""What a save costs its writer: rows saved one by one, in bulk, and in unwatched fields only.

Ours is compared with no trigger, with a trigger that does one bare INSERT into our job table, never
notifies and loses writes (see docs/how-it-works.md), with pgai's trigger, with ours plus a
notification at each save, and for INSERT with what ``trigger_level="statement"`` installs.
``pgbench`` saves the single rows of a table of 10,000, each in a transaction of its own. Ours is
then measured without a worker, with a real ``embed_worker`` that sleeps when the saves begin, and
with one that is at work, whose provider takes 200 ms.

The captures that are read from the write-ahead log are "wal", a published table without triggers,
and "message", whose triggers only write a message. Each has its slot, and is measured while nobody
reads, and beside an ``embed_worker`` that reads and embeds: with how far it is behind once the
saves have gone on for ``--seconds``. In bulk writes they add no job to the writer's transaction.

Last, comments are inserted, which the texts of 10,000 stories are made of. The server settings are
Postgres's defaults, so ``fsync`` and ``synchronous_commit`` are on, but for ``wal_level``, which is
``logical`` for all.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import captures, compare, postgres, served
from benchmarks.compare import Bar, Comparison

LEAST_BUSY = 0.82
MOST_BARE, MOST_UNWATCHED = 1.2, 1.05
LEAST_READ = {8: {"wal": 0.93, "message": 0.8}, 32: {"wal": 0.93, "message": 0.7}}
"""The least part of the saves that captures leave while nobody reads, by the number of clients."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the sizes."""
    compare.add_arguments(parser)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=1, help="of single saves, in each run")
    parser.add_argument("--rows", type=int, default=100_000, help="of a bulk write")
    parser.add_argument("--only", choices=["single", "bulk", "comments"])


def run(options: argparse.Namespace) -> int:
    """Measure. Return zero if every bar was reached."""
    provider = served.Server(request_seconds=0.2)
    try:
        with postgres.database() as server, TemporaryDirectory() as folder:
            _prepare(provider)
            comparisons = _measure(options, server, Path(folder))
    finally:
        provider.stop()
    return compare.report(comparisons, options)


def _prepare(provider: served.Server) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(
        {
            "SPANS_TABLES": True,
            "PGEMBED_PROVIDERS": {"default": provider.provider()},
            "PGEMBED_RECONCILE_SECONDS": 0,
            "PGEMBED_KEEP_SUCCEEDED_SECONDS": 0,
            "LOGGING_CONFIG": None,
        }
    )
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    call_command("migrate", verbosity=0)
    connections.close_all()


def _measure(
    options: argparse.Namespace, server: postgres.Postgres, folder: Path
) -> list[Comparison]:
    # Import late: our models need Django to be set up.
    from benchmarks.write import bulk, single
    from benchmarks.write.comments import Comments
    from benchmarks.write.table import Table

    comparisons: list[Comparison] = []
    with Table(server.url) as table:
        if options.only in (None, "single"):
            comparisons += [
                _singles(single.Saves(table, folder, clients, options.seconds), options)
                for clients in options.clients
            ]
        if options.only in (None, "bulk"):
            writes = bulk.Writes(table, options.rows)
            names = [
                name
                for name in ("none", *captures.READ, "bare", "pgai", "ours", "statement")
                if table.has(name)
            ]
            comparison = Comparison(f"{options.rows:,} rows in one statement, seconds")
            comparison.alternate(
                {_TITLES[name]: writes.of(name) for name in names}, runs=options.runs
            )
            comparison.bars += _bulk_bars()
            comparisons.append(comparison)
        if options.only in (None, "comments"):
            comparisons += [
                _comments(Comments(table, folder, clients, options.seconds), options)
                for clients in options.clients
            ]
    return comparisons


def _singles(saves: Any, options: argparse.Namespace) -> Comparison:
    comparison = Comparison(f"One row a transaction, {_clients(saves)}")
    others = ("bare", "pgai", "notify") if saves.clients > 1 else ()
    wanted = ("none", *captures.READ, *others, "ours")
    names = [name for name in wanted if saves.table.has(name)]
    contenders = {_TITLES[name]: saves.of(name) for name in names}
    contenders["ours, worker idle"] = lambda: saves.beside_worker(is_busy=False)
    contenders["ours, worker busy"] = lambda: saves.beside_worker(is_busy=True)
    read = [name for name in captures.READ if saves.table.has(name)]
    for name in read:
        contenders[f"{name}, a worker reads"] = partial(saves.beside_reader, name)
    comparison.alternate(contenders, runs=options.runs)
    for name in read:
        least = LEAST_READ.get(saves.clients, {}).get(name)
        comparison.bars += [
            Bar("saves/s", _TITLES[name], [_TITLES["none"]], least=least),
            Bar("saves/s", f"{name}, a worker reads", [_TITLES["none"]]),
        ]
    if saves.clients == 8:
        comparison.bars.append(
            Bar("saves/s", "ours, worker busy", [_TITLES["bare"]], least=LEAST_BUSY)
        )
    return comparison


def _comments(saves: Any, options: argparse.Namespace) -> Comparison:
    comparison = Comparison(f"One comment a transaction, {_clients(saves)}")
    contenders = {_TITLES[name]: saves.of(name) for name in ("none", "ours")}
    contenders["ours, worker busy"] = lambda: saves.beside_worker(is_busy=True)
    comparison.alternate(contenders, runs=options.runs)
    comparison.bars.append(Bar("latency, ms", _TITLES["ours"], [_TITLES["none"]]))
    return comparison


def _clients(saves: Any) -> str:
    return f"{saves.clients} client{'s' * (saves.clients > 1)}"


def _bulk_bars() -> list[Bar]:
    ours, bare = _TITLES["ours"], [_TITLES["bare"]]
    return [
        Bar("INSERT", ours, bare, most=MOST_BARE),
        Bar("UPDATE", ours, bare, most=MOST_BARE),
        Bar("INSERT", _TITLES["statement"], bare, most=MOST_BARE),
        Bar("UPDATE of another field", ours, [_TITLES["none"]], most=MOST_UNWATCHED),
    ]


_TITLES = {
    "none": "no trigger",
    "wal": "wal, nobody reads",
    "message": "message, nobody reads",
    "bare": "a bare INSERT",
    "pgai": "pgai's trigger",
    "notify": "ours, and NOTIFY always",
    "ours": "ours, no worker",
    "statement": "ours, by statement",
}
