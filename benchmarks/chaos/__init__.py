"""Kills and races, compared with pgai and with queues that run a hand-written handler.

In the first round two worker processes embed 2,000 rows. On the way 20 workers are killed with
SIGKILL, and each is replaced by another. In the second round rows are updated, deleted and added
for 25 s, while the server takes 150 ms per answer. After each round the queue drains. Then this
counts, over all rows:

- lost: rows without a vector;
- stale: rows with the vector of another text;
- orphaned: vectors without a row;
- stuck: jobs that never ended, or were given up.

In the third round, ours alone, workers that run tasks are killed: see ``tasks``.

All contenders run at once, each in its own database: this compares counts, not speeds. The peers'
handlers do what their users would write: read the row, embed its text, and store the vector under
its key, with a foreign key that cascades. Jobs are added in the writer's transaction. The peers'
settings are in ``contenders``: retries are on, and dead workers are found within seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg import sql

from benchmarks import compare, postgres, served
from benchmarks.chaos import tasks
from benchmarks.chaos.contenders import MODULES, is_installed
from benchmarks.compare import Comparison, Figures

REQUEST_SECONDS = 0.15
COUNTS = ("lost", "stale", "orphaned", "stuck")
OURS = "ours"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for how rough the rounds are."""
    compare.add_arguments(parser, runs=1)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=25, help="of updates and deletes")
    parser.add_argument("--contenders", nargs="+", default=list(MODULES))
    parser.add_argument("--logs", type=Path, help="a folder for the workers' logs")


def run(options: argparse.Namespace) -> int:
    """Run all contenders, and print what is wrong with each. Return zero if ours has no faults."""
    names = [name for name in options.contenders if is_installed(name)]
    titles = (f"{options.kills} kills in {options.rows:,} jobs", f"{options.seconds:g} s of races")
    comparisons = [Comparison(title) for title in titles]
    killed = Comparison(f"{options.kills} kills in {options.rows:,} tasks", bars=[*tasks.BARS])
    provider = served.Server(request_seconds=REQUEST_SECONDS)
    try:
        with postgres.database() as server, TemporaryDirectory() as temporary:
            logs = options.logs or Path(temporary)
            for number in range(options.runs):
                rounds = _run(names, number, options, server.url, provider, logs)
                for name, [kills, races] in rounds.items():
                    comparisons[0].found.setdefault(name, []).append(kills)
                    comparisons[1].found.setdefault(name, []).append(races)
                if OURS in names:
                    found = _run_tasks(number, options, server.url, logs)
                    killed.found.setdefault(OURS, []).append(found)
    finally:
        provider.stop()
    status = compare.report([*comparisons, *([killed] if OURS in names else [])], options)
    wrong = [one for one in comparisons if any(map(partial(_most, one), COUNTS))]
    print(f"\nours, to be zero: {'**missed**' if wrong else 'all zero'}")
    return status or int(bool(wrong))


def _most(comparison: Comparison, count: str) -> float:
    return max(run[count] for run in comparison.found.get(OURS, [{count: 0.0}]))


def _run(
    names: list[str],
    number: int,
    options: argparse.Namespace,
    url: str,
    provider: served.Server,
    logs: Path,
) -> dict[str, list[Figures]]:
    """Run all contenders at once, and return what was counted for each."""
    running = {}
    with databases(url, [f"chaos_{number}_{place}" for place, _ in enumerate(names)]) as urls:
        for name, own in zip(names, urls, strict=True):
            folder = logs / f"{MODULES[name]}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            sizes = (str(options.rows), str(options.kills), str(options.seconds))
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.chaos", name, *sizes, str(folder)],
                env={**os.environ, "DATABASE_URL": own, "CHAOS_SERVER": provider.url},
                stdout=subprocess.PIPE,
            )
        told = {name: process.communicate()[0] for name, process in running.items()}
        for name, process in running.items():
            assert process.returncode == 0, f"{name} has ended with {process.returncode}"
    return {name: json.loads(text.splitlines()[-1]) for name, text in told.items()}


def _run_tasks(number: int, options: argparse.Namespace, url: str, logs: Path) -> Figures:
    """Run the round of tasks, and return what was counted."""
    folder = logs / f"{tasks.NAME}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = (str(options.rows), str(options.kills), str(folder))
    with databases(url, [f"chaos_{number}_{tasks.NAME}"]) as [own]:
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.chaos", tasks.NAME, *sizes],
            env={**os.environ, "DATABASE_URL": own},
            check=True,
            stdout=subprocess.PIPE,
        )
    found: Figures = json.loads(told.stdout.splitlines()[-1])
    return found


@contextmanager
def databases(url: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Create empty databases, and drop them at the end."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name in names:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield [postgres.with_name(url, name) for name in names]
        finally:
            for name in names:
                drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
                connection.execute(drop)
