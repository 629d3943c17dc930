"""Size workers, batches, time-outs and disk from the milliseconds per text that embed_probe shows.

Arithmetic only: this sends no requests.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from benchmarks.storage import heap_bytes, index_bytes

BUSIEST = 0.7
"""The share of a server's time that changes may take at most, so that queues stay short."""

QUERY_SECONDS = 2.0
"""PGEMBED_QUERY_SECONDS. Half of it may pass behind batches that are in flight."""

LEAST_WORKERS = 2
LEAST_TIMEOUT_SECONDS = 60
LEAST_GRACE_SECONDS = 20
MAINTENANCE_SECONDS = 60
"""How long a stopping worker also waits for its two maintenance threads at most."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was measured, and what is required.

    ``parallel``: how many requests one server answers at once without getting slower.
    ``rows_per_worker``: how many rows one worker stores a second, by the benchmark throughput.
    """

    milliseconds_per_text: float
    batch_size: int
    rows: int
    changes_per_second: float
    dimensions: int
    chunks_per_row: float = 1.0
    characters_per_chunk: int = 800
    parallel: int = 1
    rows_per_worker: float = 400


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes that follow from a load."""

    servers: int
    texts_per_second: float
    busy: float
    fill_seconds: float
    workers: int
    concurrency: int
    batch_size: int
    request_seconds: float
    search_wait_seconds: float
    timeout_seconds: int
    stop_grace_seconds: int
    kill_after_seconds: int
    table_bytes: float
    index_bytes: float


def plan(load: Load) -> Plan:
    """Return the sizes that a load needs."""
    changed_texts = load.changes_per_second * load.chunks_per_row
    one_server = load.parallel * 1000 / load.milliseconds_per_text
    servers = max(1, math.ceil(changed_texts / one_server / BUSIEST))
    texts_per_second = servers * one_server
    rows_per_second = texts_per_second / load.chunks_per_row
    # One may die, so two at least. More if the servers embed more than these can store.
    workers = max(LEAST_WORKERS, math.ceil(rows_per_second / load.rows_per_worker))
    # As many requests as the servers work on at once, and one more waiting per worker.
    concurrency = math.ceil(servers * load.parallel / workers) + 1
    # A search's request is answered after those that are in flight.
    in_flight = workers * concurrency
    longest = QUERY_SECONDS / 2 * texts_per_second / in_flight
    batch_size = max(1, min(load.batch_size, int(longest)))
    search_wait = in_flight * batch_size / texts_per_second
    grace = max(LEAST_GRACE_SECONDS, math.ceil(2 * search_wait))
    chunks = load.rows * load.chunks_per_row
    return Plan(
        servers=servers,
        texts_per_second=texts_per_second,
        busy=changed_texts / texts_per_second,
        fill_seconds=chunks / (texts_per_second - changed_texts),
        workers=workers,
        concurrency=concurrency,
        batch_size=batch_size,
        request_seconds=batch_size * load.milliseconds_per_text / 1000,
        search_wait_seconds=search_wait,
        timeout_seconds=max(LEAST_TIMEOUT_SECONDS, math.ceil(10 * search_wait)),
        stop_grace_seconds=grace,
        kill_after_seconds=grace + MAINTENANCE_SECONDS,
        table_bytes=chunks * heap_bytes(load.dimensions, load.characters_per_chunk),
        index_bytes=chunks * index_bytes(load.dimensions),
    )


def lines(load: Load) -> list[str]:
    """Return the plan as lines of text."""
    found = plan(load)
    rows = [
        ("embedding servers", f"{found.servers:,}"),
        ("texts a second", f"{found.texts_per_second:,.0f}, {found.busy:.0%} of it for changes"),
        ("the first fill", duration(found.fill_seconds)),
        ("workers", f"{found.workers}"),
        ("PGEMBED_CONCURRENCY", f"{found.concurrency}"),
        ("PGEMBED_BATCH_SIZE", f"{found.batch_size}"),
        ("a request", f"{found.request_seconds:.2f} s"),
        ("a search waits at most", f"{found.search_wait_seconds:.2f} s behind batches"),
        ("timeout_seconds", f"{found.timeout_seconds}"),
        ("PGEMBED_STOP_GRACE_SECONDS", f"{found.stop_grace_seconds}"),
        ("killed after", f"{found.kill_after_seconds} s"),
        ("vectors on disk", size(found.table_bytes)),
        ("index, to be held in memory", size(found.index_bytes)),
    ]
    return [f"{name:<29}{value}" for name, value in rows]


def duration(seconds: float) -> str:
    """Return a time in its largest unit."""
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"


def size(number: float) -> str:
    """Return a number of bytes in its largest unit."""
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number / 1e6:,.0f} MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for what was measured, and what is required."""
    add = parser.add_argument
    add("--milliseconds", type=float, required=True, help="Per text, by embed_probe.")
    add("--batch-size", type=int, default=32, help="As embed_probe recommends it.")
    add("--rows", type=int, required=True)
    add("--changes", type=float, required=True, help="Rows that are written a second.")
    add("--dimensions", type=int, required=True)
    add("--chunks", type=float, default=1.0, help="Per row: embed_backfill --dry-run counts them.")
    add("--characters", type=int, default=800, help="Per chunk.")
    add("--parallel", type=int, default=1, help="Requests that one server answers at once.")
    add("--worker", type=float, default=400.0, help="Rows that one stores, by throughput.")


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    load = Load(
        milliseconds_per_text=options.milliseconds,
        batch_size=options.batch_size,
        rows=options.rows,
        changes_per_second=options.changes,
        dimensions=options.dimensions,
        chunks_per_row=options.chunks,
        characters_per_chunk=options.characters,
        parallel=options.parallel,
        rows_per_worker=options.worker,
    )
    print("\n".join(lines(load)))
    return 0
