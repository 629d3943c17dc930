"""The soak: real processes, a real Postgres, and every kind of fault at once.

Writers write in the most demanding ways, workers are killed, stopped and frozen, backends are
terminated, Postgres restarts, and the embedding server fails in every way. Then all faults end and
the queue drains, with the reconciler still off: nothing may be lost, stale or stuck.

With ``--capture wal`` or ``message`` changes are read from the write-ahead log. Then the worker
that reads is killed, frozen and cut off, the slot is dropped, and writers also prepare
transactions, write 100,000 rows in one, and texts that are stored apart.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import captures, postgres
from benchmarks.soak import faults, processes, repeats, server

LOOK_SECONDS = 1.0
"""How often a snapshot is checked, and what is left prepared is ended, while faults happen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the soak."""
    parser.add_argument("--seconds", type=float, default=60, help="of fire, before the quiet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="all faults are drawn from it")
    parser.add_argument(
        "--capture",
        choices=["trigger", "message", "wal"],
        default="trigger",
        help="how changes are captured",
    )
    parser.add_argument("--logs", type=Path, help="a folder for the workers' and Postgres's logs")
    parser.add_argument("--json", type=Path, help="a file for the figures")


def run(options: argparse.Namespace) -> int:
    """Soak, report, and return zero if all counts that must be zero are."""
    with postgres.database() as database, tempfile.TemporaryDirectory() as temporary:
        served = processes.Server(options.seed)
        logs = options.logs or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        workers = processes.Workers(options.workers, logs)
        try:
            _prepare(served.port, options.seed, options.capture)
            return _soak(options, database, served, workers)
        finally:
            workers.stop()
            served.stop()
            from django.db import connections

            connections.close_all()


def _prepare(port: int, seed: int, capture: str) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    settings = {**_settings(port), "CAPTURE": capture, "CAPTURE_OTHERS": capture}
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(settings)
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    call_command("migrate", verbosity=0)
    # Import late: our models need Django to be set up.
    from benchmarks.soak import spanning

    if capture != "trigger":
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            captures.install_all(connection)
    spanning.fill(seed)
    connections.close_all()


def _settings(port: int) -> dict[str, Any]:
    """Return settings with short times, so that much happens, and limits beyond all faults."""
    return {
        "PGEMBED_PROVIDERS": {
            "default": {
                "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                "MODEL": "soak",
                "DIMENSIONS": server.WIDTH,
                "OPTIONS": {
                    "base_url": f"http://127.0.0.1:{port}",
                    "timeout_seconds": server.TIMEOUT_SECONDS,
                    # The name of each worker comes from its environment, not from the space.
                    "header_envs": {server.WORKER_HEADER: "SOAK_WORKER"},
                },
            }
        },
        "SPANS_TABLES": True,
        "PGEMBED_LEASE_SECONDS": faults.LEASE_SECONDS,
        "PGEMBED_REAP_SECONDS": 1,
        "PGEMBED_RECONCILE_SECONDS": 0,
        "PGEMBED_POLL_SECONDS": 2,
        "PGEMBED_BACKOFF_SECONDS": 0.5,
        "PGEMBED_STOP_GRACE_SECONDS": 3,
        "PGEMBED_BATCH_SIZE": 16,
        "PGEMBED_CLAIM_LIMIT": 100,
        "PGEMBED_MAX_ATTEMPTS": 12,
        "PGEMBED_MAX_CRASHES": 1000,
    }


def _soak(
    options: argparse.Namespace,
    database: postgres.Postgres,
    served: processes.Server,
    workers: processes.Workers,
) -> int:
    # Import late: our models need Django to be set up.
    from benchmarks.soak import decoded

    is_read = options.capture != "trigger"
    events = faults.schedule(
        options.seed, seconds=options.seconds, restarts=database.is_own, reads_log=is_read
    )
    fired = list(events)
    fire = faults.Faults(events, postgres=database, served=served, workers=workers)
    prepares = is_read and decoded.may_prepare()
    started = time.monotonic()
    writers = processes.Writers(
        options.writers,
        seed=options.seed,
        deadline=started + options.seconds,
        reads_log=is_read,
        prepares=prepares,
    )
    # Import late: our models need Django to be set up.
    from benchmarks.soak import leases, quiet, report, snapshots

    seen, mended = snapshots.Snapshots(), 0
    while (now := time.monotonic() - started) < options.seconds:
        fire.run_due(now)
        workers.tend()
        # What is read from the log gets its job after the commit: only the end counts.
        if not is_read and now > seen.looks * LOOK_SECONDS:
            seen.look()
        if prepares and now > mended * LOOK_SECONDS:
            mended += 1
            decoded.finish_late()
        time.sleep(0.05)
    fire.end()
    written = writers.results(meanwhile=decoded.finish_late)
    (workers.folder / "events.log").write_text("\n".join(map(str, fired)))
    (workers.folder / "blows.log").write_text(
        "\n".join(
            f"{blow.since - started:6.2f} {blow.until - started:6.2f} {blow.worker} {blow.what}"
            for blow in workers.blows
        )
    )
    drained_seconds = quiet.drain(meanwhile=workers.tend)
    workers.stop()
    ran_out = leases.ran_out(workers.names, workers.blows)
    log = database.log()
    (workers.folder / "postgres.log").write_text(log)
    deliveries, unanswered = served.told()
    repeated = repeats.count(
        deliveries,
        carried=repeats.totals(one.carried for one in written),
        blows=[*workers.blows, *ran_out, *repeats.unseen(unanswered, workers.names.values())],
        ignored=report.IGNORED,
    )
    figures = {
        "seed": options.seed,
        "seconds of fire": options.seconds,
        "seconds until drained": round(drained_seconds, 1),
        "transactions committed": sum(one.committed for one in written),
        "transactions rolled back": sum(one.rolled_back for one in written),
        "transactions that failed": sum(len(one.errors) for one in written),
        "rows written": sum(one.rows for one in written),
        "texts embedded": len(deliveries),
        "texts embedded again after a blow": repeated.explained,
        "leases that ran out without a blow": len(ran_out),
        "snapshots looked at": seen.looks,
        **report.sizes(),
        "workers started": workers.started,
        "workers killed in an expansion": fire.killed_expanders,
        **{f"fault: {what}": times for what, times in sorted(fire.happened.items())},
    }
    return report.tell(
        figures,
        {
            "not at work, and not fresh, while under fire": sorted(seen.found),
            **report.findings(),
            "specs with gaps in what is read": report.gaps(),
            "writer errors that are our fault": report.of_writers(
                error for one in written for error in one.errors
            ),
            "texts embedded more often than faults explain": [
                f"{text[:60]!r}: {[(one.worker, round(one.at - started, 2)) for one in times]}"
                for text, times in repeated.unexplained.items()
            ],
            "transactions begun or ended twice": report.of_transactions(log),
            "workers that died by themselves": workers.deaths,
        },
        file=options.json,
    )
