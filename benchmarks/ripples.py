"""An author of 100,000 stories is renamed: what that costs its writer, and all that come after.

The rename alone is compared with no trigger. Then a worker expands it to the stories and embeds
them, with an embedding server that answers at once; for 100 renames in a row it must not be asked
more than for one. Meanwhile other stories are saved, 20 a second, and their vectors awaited: beside
an idle worker, one that expands the rename, and one that embeds what it has expanded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from benchmarks import compare, latency, postgres
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.pipeline.server import Delay, Server
from benchmarks.soak.processes import Workers

WIDTH = 256
STALL_SECONDS = 600
RENAMES = 100
EVERY_SECONDS = 0.05
MOST_OF_A_RENAME, MOST_TEXTS = 1.5, 1.05
NONE, OURS = "no trigger", "ours"
ONE, MANY = "one rename", f"{RENAMES} renames"
IDLE, EXPANDING, EMBEDDING = "worker idle", "it expands the rename", "it embeds the stories"

FILL = """
    ALTER TABLE related_story DISABLE TRIGGER USER;
    SET CONSTRAINTS ALL IMMEDIATE;
    INSERT INTO related_author (name) VALUES ('The author of all'), ('The author of the others');
    INSERT INTO related_story (title, author_id)
    SELECT 'Story ' || n, 1
    FROM generate_series(1, {rows}) AS n;
    ALTER TABLE related_story ENABLE TRIGGER USER;
    CREATE VIEW embedded AS
    SELECT source_id AS source
    FROM related_storyembedding
    WHERE embedding IS NOT NULL;
"""
RENAME = "UPDATE related_author SET name = 'Author ' || %s WHERE id = 1"
SAVE = "INSERT INTO related_story (title, author_id) VALUES (%s || %s, 2)"
OPEN = "FROM pgembed_job WHERE status IN ('pending', 'running')"
DONE = "FROM pgembed_job WHERE status = 'succeeded'"
RIPPLES = "FROM pgembed_ripple"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the sizes."""
    compare.add_arguments(parser, runs=3)
    parser.add_argument("--rows", type=int, default=100_000, help="stories of the author")
    parser.add_argument("--seconds", type=float, default=5, help="of saves")


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if every bar was reached."""
    server = Server(Delay(), width=WIDTH)
    renamed = Comparison(
        "A rename, milliseconds", bars=[Bar("p50", OURS, [NONE], most=MOST_OF_A_RENAME)]
    )
    drained = Comparison(
        f"{options.rows:,} stories are embedded", bars=[Bar("texts", MANY, [ONE], most=MOST_TEXTS)]
    )
    saved = Comparison(
        "Stories saved meanwhile, 20/s",
        bars=[Bar("p50 ms", one, [IDLE]) for one in (EXPANDING, EMBEDDING)],
    )
    try:
        with postgres.database() as database, TemporaryDirectory() as folder:
            _prepare(server)
            with psycopg.connect(database.url, autocommit=True) as own:
                own.execute(FILL.format(rows=options.rows))
                own.execute("VACUUM ANALYZE")
                author = Author(own, database.url, server, options)
                renamed.alternate(
                    {NONE: author.costs(NONE), OURS: author.costs(OURS)}, runs=options.runs
                )
                workers = Workers(1, Path(folder))
                workers.tend()
                try:
                    author.drained(1)()  # all have vectors from then on
                    drained.alternate(
                        {ONE: author.drained(1), MANY: author.drained(RENAMES)}, runs=options.runs
                    )
                    saved.alternate(
                        {
                            IDLE: author.saves,
                            EXPANDING: author.saves_meanwhile(is_expanded=False),
                            EMBEDDING: author.saves_meanwhile(is_expanded=True),
                        },
                        runs=options.runs,
                    )
                finally:
                    workers.stop()
                    assert not workers.deaths, workers.deaths
    finally:
        server.stop()
    return compare.report([renamed, drained, saved], options)


def _prepare(server: Server) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    os.environ["BENCHMARK_SETTINGS"] = json.dumps(
        {
            "SPANS_TABLES": True,
            "PGEMBED_PROVIDERS": {"default": server.provider()},
            "PGEMBED_CONCURRENCY": 12,  # as in ``pipeline``
            "PGEMBED_INDEX_ROWS": 0,
            "PGEMBED_RECONCILE_SECONDS": 0,
        }
    )
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    call_command("migrate", verbosity=0)
    connections.close_all()


class Author:
    """Renames the author of all stories."""

    def __init__(
        self, own: psycopg.Connection, url: str, server: Server, options: argparse.Namespace
    ) -> None:
        self._own = own
        self._url = url
        self._server = server
        self._options = options
        self._renames = 0

    def rename(self) -> float:
        """Return how many seconds it takes the writer."""
        self._renames += 1
        started = time.perf_counter()
        self._own.execute(RENAME, [self._renames], prepare=True)
        return time.perf_counter() - started

    def costs(self, name: str) -> Callable[[], Figures]:
        """Return a function that measures renames, with or without triggers, and no worker."""

        def measure() -> Figures:
            what = "DISABLE" if name == NONE else "ENABLE"
            self._own.execute(f"ALTER TABLE related_author {what} TRIGGER USER")
            self.rename()
            milliseconds = sorted(1000 * self.rename() for _ in range(RENAMES))
            self._own.execute("TRUNCATE pgembed_ripple")
            return {"p50": statistics.median(milliseconds), "longest": milliseconds[-1]}

        return measure

    def drained(self, renames: int) -> Callable[[], Figures]:
        """Return a function that renames in a row, and waits until all is embedded."""

        def measure() -> Figures:
            self._own.execute("DELETE FROM pgembed_job")
            self._server.texts()  # forget earlier ones
            started = time.perf_counter()
            for _ in range(renames):
                self.rename()
            self._wait_for(RIPPLES)
            expanded = time.perf_counter()
            self._wait_for(OPEN)
            embedded = time.perf_counter()
            return {
                "texts": self._server.texts(),
                "jobs": self._count(DONE),
                "seconds until expanded": expanded - started,
                "seconds until embedded": embedded - started,
            }

        return measure

    def saves(self) -> Figures:
        """Save stories of another author, and await their vectors."""
        count = max(1, round(self._options.seconds / EVERY_SECONDS))
        return latency.save(self._url, SAVE, pause=EVERY_SECONDS, count=count)

    def saves_meanwhile(self, *, is_expanded: bool) -> Callable[[], Figures]:
        """Return a function that does so while a rename is expanded, or its units are embedded."""

        def measure() -> Figures:
            self.rename()
            if is_expanded:
                self._wait_for(RIPPLES)
            figures = self.saves()
            figures["units left"] = self._count(OPEN)
            self._wait_for(RIPPLES)
            self._wait_for(OPEN)
            return figures

        return measure

    def _wait_for(self, rows: str) -> None:
        """Wait until there are no such rows."""
        deadline = time.monotonic() + STALL_SECONDS
        while self._own.execute(f"SELECT EXISTS (SELECT {rows})").fetchone() == (True,):
            assert time.monotonic() < deadline, rows
            time.sleep(0.05)

    def _count(self, rows: str) -> int:
        [[count]] = self._own.execute(f"SELECT count(*) {rows}").fetchall()
        return int(count)
