"""How many jobs a second one worker process handles, compared with other queues.

100,000 jobs wait. The handler sleeps for 2 to 5 ms, 32 at once, or does nothing. Ours runs the
worker's own loop, with the handler in place of embedding. The peers run at the best settings we
know (``benchmarks/peers``), each in its own database on the same server. CPU is that of the worker
process, WAL that of the whole server.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys

import psycopg

from benchmarks import compare, postgres
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.peers import redis
from benchmarks.queue.handler import AT_ONCE, SLEEP_SECONDS

JOBS = 100_000
SECONDS = 8.0
LIMIT = AT_ONCE / (sum(SLEEP_SECONDS) / 2)
"""Jobs a second that the sleeping handlers allow at most."""

CELERY = "Celery with Redis"
OURS, BARE, NO_QUEUE = "ours", "bare claim and delete", "no queue: threads alone"
PEERS = {
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
    "django-ox": "django_ox",
    "django-tasks-db": "django_tasks_db",
    CELERY: "celery",
}
"""Peer -> the package that it needs."""

IN_POSTGRES = tuple(name for name in PEERS if name != CELERY)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the size, and for peers to leave out."""
    compare.add_arguments(parser)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="How long each may take.")
    parser.add_argument(
        "--only", nargs="*", choices=PEERS, default=[*PEERS], help="These peers, no others."
    )
    parser.add_argument("--handler", choices=["sleep", "noop", "both"], default="both")


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if every bar was reached."""
    peers = [name for name in options.only if importlib.util.find_spec(PEERS[name])]
    for name in set(options.only) - set(peers):
        print(f"{name} is left out: it is not installed (dependency group: peers).")
    with postgres.database(), redis.running() as has_redis:
        if CELERY in peers and not has_redis:
            print(f"{CELERY} is left out: there is no redis-server.")
            peers.remove(CELERY)
        found = []
        for handler in ("sleep", "noop") if options.handler == "both" else (options.handler,):
            names = [OURS, BARE, *peers] + ([NO_QUEUE] if handler == "sleep" else [])
            comparison = Comparison(f"Handler: {handler}", bars=_bars(handler, peers))
            contenders = {name: functools.partial(drain, name, handler, options) for name in names}
            comparison.alternate(contenders, runs=options.runs)
            found.append(comparison)
        return compare.report(found, options)


def _bars(handler: str, peers: list[str]) -> list[Bar]:
    is_sleep = handler == "sleep"
    in_postgres = [name for name in peers if name in IN_POSTGRES]
    bars = [Bar("jobs/s", OURS, [NO_QUEUE if is_sleep else BARE], least=0.9 if is_sleep else 0.5)]
    if in_postgres:
        bars.append(Bar("jobs/s", OURS, in_postgres, least=1.1 if is_sleep else 1.5))
    return bars


def drain(name: str, handler: str, options: argparse.Namespace) -> Figures:
    """Fill a new database, let one worker process drain it, and return the figures."""
    with postgres.fresh_database() as url, psycopg.connect(url, autocommit=True) as own:
        environment = {**os.environ, "DATABASE_URL": url}
        command = [sys.executable, "-m", "benchmarks.peers", name, handler]
        sized = [*command, str(options.jobs), str(options.seconds)]
        subprocess.run([*sized, "fill"], env=environment, check=True)
        own.execute("CHECKPOINT")
        [before] = own.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        told = subprocess.run(
            [*sized, "drain"], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        [written] = own.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", [before]
        ).fetchone()
        found = json.loads(told.stdout.splitlines()[-1])
        if name == OURS:
            _check_that_none_was_given_back(own)
    thousands = found["jobs"] / 1000
    figures = {"jobs/s": found["jobs/s"]}
    if handler == "sleep":
        figures["of the limit"] = found["jobs/s"] / LIMIT
    return figures | {
        "CPU s per 1,000": found["CPU s"] / thousands,
        "WAL kB per 1,000": float(written) / 1000 / thousands,
    }


def _check_that_none_was_given_back(own: psycopg.Connection) -> None:
    """A job that is given back instead of completed is handled, and counted, again.

    Raises:
        RuntimeError: there are such jobs.
    """
    given_back = "claims > 1 OR (claims > 0 AND status = 'pending')"
    [count] = own.execute(f"SELECT count(*) FROM pgembed_job WHERE {given_back}").fetchone()
    if count:
        raise RuntimeError(f"{count} jobs were handled, and then not completed.")
