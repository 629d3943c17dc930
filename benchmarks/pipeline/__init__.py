"""How many rows a second are embedded from a table, compared with others that do that.

There are 20,000 rows of about 300 characters, in batches of 32. The embedding server answers at
once, or after 20 ms and 0.5 ms per text, or after 200 ms per batch. With a delay it serves four
requests at a time. Ours is one worker. Without delay it is also two, as each has an interpreter's
lock of its own. Peers: pgai's vectorizer worker, at its defaults and tuned, and a hand-written
script that reads, sends four requests at once and COPYs, and does nothing else. The time runs from
the first request until another connection sees the last vector. A contender that is not done after
``--seconds`` is stopped.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import psycopg

from benchmarks import compare, postgres
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.pipeline.server import Delay, Server

ROWS = 20_000
BATCH = 32
SECONDS = 40.0
DELAYS = {
    "0 ms": Delay(),
    "20 ms + 0.5 ms a text": Delay(0.02, 0.0005, 4),
    "200 ms a batch": Delay(0.2, 0.0, 4),
}
LEAST_OF_SERVERS = {"20 ms + 0.5 ms a text": 0.95, "200 ms a batch": 0.98}
OURS, TWO, SCRIPT = "ours", "ours, two workers", "script by hand"
PGAI, TUNED = "pgai", "pgai, tuned"
CONTENDERS = {OURS: "ours", TWO: "ours", SCRIPT: "script", PGAI: "pgai", TUNED: "pgai_tuned"}
START_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the size, and for contenders to leave out."""
    compare.add_arguments(parser)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--characters", type=int, default=300, help="of each row's text")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 768])
    parser.add_argument("--delays", nargs="+", choices=DELAYS, default=[*DELAYS])
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if every bar was reached."""
    names = list(options.only)
    if not importlib.util.find_spec("pgai"):
        print("pgai is left out: it is not installed (dependency group: peers).")
        names = [name for name in names if name not in {PGAI, TUNED}]
    found = []
    with postgres.database():
        for width in options.widths:
            for title in options.delays:
                server = Server(DELAYS[title], width=width)
                comparison = Comparison(f"{title}, {width} wide", bars=_bars(title, width, names))
                contenders = {
                    name: functools.partial(embed, name, title, server, options)
                    for name in names
                    # With a delay the server is the limit: compare only with the script.
                    if title == "0 ms" or name in {OURS, SCRIPT}
                }
                comparison.alternate(contenders, runs=options.runs)
                server.stop()
                found.append(comparison)
    return compare.report(found, options)


def _bars(title: str, width: int, names: list[str]) -> list[Bar]:
    if width != 256:
        return []
    if title != "0 ms":
        return [Bar("of the server's", OURS, [], least=LEAST_OF_SERVERS[title])]
    bars = [Bar("rows/s", OURS, [SCRIPT], least=0.7)] if SCRIPT in names else []
    return bars + ([Bar("rows/s", OURS, [TUNED], least=1)] if TUNED in names else [])


def embed(name: str, title: str, server: Server, options: argparse.Namespace) -> Figures:
    """Let one contender embed all rows in its own database. Return its figures."""
    with postgres.fresh_database() as url, psycopg.connect(url, autocommit=True) as own:
        command = [sys.executable, "-m", "benchmarks.pipeline", CONTENDERS[name]]
        asked = [*command, server.url, str(server.width), str(options.rows)]
        environment = os.environ | {
            "DATABASE_URL": url,
            "BENCHMARK_CHARACTERS": str(options.characters),
        }
        subprocess.run([*asked, "fill"], env=environment, check=True)
        own.execute("CHECKPOINT")
        server.first_asked_at()  # forget earlier requests
        workers = [
            subprocess.Popen([*asked, "embed"], env=environment, stderr=subprocess.DEVNULL)
            for _ in range(2 if name == TWO else 1)
        ]
        try:
            done, seconds = _watch(own, server, workers, options)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    figures = {"rows/s": done / seconds}
    limit = DELAYS[title].texts_per_second(BATCH)
    return figures | ({"of the server's": done / seconds / limit} if title != "0 ms" else {})


def _watch(
    own: psycopg.Connection,
    server: Server,
    workers: Sequence[subprocess.Popen[bytes]],
    options: argparse.Namespace,
) -> tuple[int, float]:
    """Return how many rows got their vectors, and the seconds since the first request."""
    first = None
    give_up = time.monotonic() + START_SECONDS
    while first is None:
        has_ended = any(worker.poll() is not None for worker in workers)
        if has_ended or time.monotonic() > give_up:
            raise SystemExit(f"Nothing was asked of the server: {workers[0].args!r}")
        time.sleep(0.01)
        first = server.first_asked_at()
    while True:
        [[done]] = own.execute("SELECT count(*) FROM embedded").fetchall()
        now = time.monotonic()
        if done >= options.rows or now - first > options.seconds:
            return done, now - first
        # Counting loads the database too: do it seldom at first, and often towards the end.
        left = (now - first) * (options.rows - done) / max(done, 1)
        time.sleep(min(max(left / 2, 0.02), 0.5))
