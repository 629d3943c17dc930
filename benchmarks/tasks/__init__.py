"""Tasks: drained, started, enqueued and claimed, compared with other queues for Python.

Each contender runs the same function in one worker process, on a database of its own, at the best
settings we know (``benchmarks/peers``). In turn:

- drain: the function sleeps for 2 to 5 ms, 32 at once, or does nothing;
- start: from the call of ``enqueue`` to that of the function, at 20 and 200 a second;
- enqueue: one in a transaction of its own, and 1,000 at once;
- claim (ours alone): fair between 1,000 tenants beside plain, and with many tasks waiting.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from benchmarks import compare, postgres
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.peers import redis
from benchmarks.queue.handler import AT_ONCE
from benchmarks.tasks import claims

OURS, CELERY = "ours", "Celery with Redis"
MODULES = {
    OURS: "benchmarks.tasks.ours",
    "pgqueuer": "benchmarks.peers.with_pgqueuer",
    "procrastinate": "benchmarks.peers.with_procrastinate",
    "django-ox": "benchmarks.peers.with_django_ox",
    "django-tasks-db": "benchmarks.peers.with_django_tasks_db",
    CELERY: "benchmarks.peers.with_celery",
}
NEEDED = {OURS: "pgembed_django", CELERY: "celery"}
"""The package of a contender, if it is not called like the contender."""

HANDLERS = {"sleep": "Drain: the function sleeps", "noop": "Drain: the function does nothing"}
RATES = {20: "Start, 20 a second", 200: "Start, 200 a second"}
ENQUEUE = "Enqueue"
MADE_OF = {
    "sleep": "Ours: what the rate is made of, where the function sleeps",
    "noop": "Ours: what the rate is made of, where it does nothing",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the sizes, and for contenders to leave out."""
    compare.add_arguments(parser, runs=2)
    parser.add_argument("--only", nargs="+", choices=MODULES, default=[*MODULES])
    parser.add_argument("--jobs", type=int, default=50_000, help="So many wait at most.")
    parser.add_argument("--seconds", type=float, default=3, help="How long each step lasts.")
    parser.add_argument("--waiting", type=int, nargs="+", default=[100_000], help="for claims")
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--handlers", nargs="+", choices=HANDLERS, default=[*HANDLERS])
    parser.add_argument("--quick", action="store_true", help="Only see that everything runs.")


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if every bar was reached."""
    if options.quick:
        options.runs, options.counts_only, options.seconds = 1, True, 0.4
        options.jobs, options.waiting, options.tenants = 1000, [2000], 50
        options.handlers = ["sleep"]
    found = {
        title: Comparison(title)
        for title in (*HANDLERS.values(), *MADE_OF.values(), *RATES.values(), ENQUEUE)
    }
    with postgres.database(), redis.running() as has_redis:
        names = _installed(options.only, has_redis=has_redis)
        for number in range(options.runs):
            for name in names if number % 2 == 0 else reversed(names):
                print(f"{name}, run {number + 1} of {options.runs}", file=sys.stderr, flush=True)
                for title, figures in _measure(name, options):
                    found[title].found.setdefault(name, []).append(figures)
        claimed = claims.compare(options) if OURS in names else []
    _set_bars(found, names)
    return compare.report([*(one for one in found.values() if one.found), *claimed], options)


def _installed(names: Sequence[str], *, has_redis: bool) -> list[str]:
    found = []
    for name in names:
        if not importlib.util.find_spec(NEEDED.get(name, name.replace("-", "_"))):
            print(f"{name} is left out: it is not installed (dependency group: peers).")
        elif name == CELERY and not has_redis:
            print(f"{CELERY} is left out: there is no redis-server.")
        else:
            found.append(name)
    return found


def _set_bars(found: Mapping[str, Comparison], names: Sequence[str]) -> None:
    for title in MADE_OF.values():
        if found[title].found:
            found[title].bars.append(Bar("reaped", OURS, [], most=0.0))
    in_postgres = [name for name in names if name not in (OURS, CELERY)]
    if OURS not in names or not in_postgres:
        return
    for title in HANDLERS.values():
        if found[title].found:
            found[title].bars.append(Bar("jobs/s", OURS, in_postgres, least=1.0))
    for title in RATES.values():
        found[title].bars += [
            Bar(figure, OURS, in_postgres, most=1.0, best=min) for figure in ("p50 ms", "p99 ms")
        ]
    found[ENQUEUE].bars += [Bar(figure, OURS, in_postgres) for figure in ("one/s", "bulk/s")]


def _measure(name: str, options: argparse.Namespace) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of one contender, with the title of the comparison they belong to."""
    with postgres.fresh_database() as url:
        started = _step(url, name, "start", options.seconds, *RATES)
        yield from ((title, started[str(rate)]) for rate, title in RATES.items())
    for handler in options.handlers:
        with postgres.fresh_database() as url, psycopg.connect(url, autocommit=True) as own:
            added = _step(url, name, "enqueue", options.seconds / 2, options.jobs)
            jobs = added.pop("jobs")
            yield ENQUEUE, added
            own.execute("VACUUM ANALYZE")
            own.execute("CHECKPOINT")
            [before] = own.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or [None]
            told = _step(url, name, "drain", handler, options.seconds, int(jobs))
            [written] = own.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", [before]
            ).fetchone() or [0]
            yield HANDLERS[handler], _drained(told, float(written))
            if name == OURS:
                yield MADE_OF[handler], _made_of(told)


def _drained(told: Figures, written: float) -> Figures:
    thousands = told["jobs"] / 1000
    return {
        "jobs/s": told["jobs/s"],
        "CPU s per 1,000": told["CPU s"] / thousands,
        "WAL kB per 1,000": written / 1000 / thousands,
    }


def _made_of(told: Figures) -> Figures:
    """Return what a worker that claims, and then handles that with its threads, would reach."""
    handle = told["tasks a claim"] * told["handle ms"] / AT_ONCE
    predicted = 1000 * told["tasks a claim"] / (told["claim ms"] + handle)
    return {
        "claim ms": told["claim ms"],
        "tasks a claim": told["tasks a claim"],
        "handle ms": told["handle ms"],
        "predicted/s": predicted,
        "measured/s": told["jobs/s"],
        "of that": told["jobs/s"] / predicted,
        "reaped": told["reaped"],
    }


def _step(url: str, name: str, *step: object) -> dict[str, Any]:
    """Run a step in a process of its own, and return what it has told."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.tasks", name, *map(str, step)],
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"{name}, {step[0]}: {ended.stderr}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
