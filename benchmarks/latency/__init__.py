"""How long a committed row waits until another connection sees its vector.

First one row at a time with an idle worker, then 20, 200 and 500 saves a second, with an embedding
server that answers at once. Ours also with the captures "wal" and "message", whose worker reads the
write-ahead log and embeds. Peers: a minimal hand-written loop (LISTEN, claim, embed, store), and
pgai's vectorizer worker, which polls once a second.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import subprocess
import sys
import threading
import time

import psycopg
from psycopg import sql

from benchmarks import captures, compare, postgres
from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.pipeline.server import Delay, Server

WIDTH = 256
SECONDS = 5.0
IDLE_EVERY_SECONDS = 0.4
"""The time between saves for an idle worker: long enough for it to go to sleep."""

IDLE_SAVES = 20
RATES = {"idle": 0, "20/s": 20, "200/s": 200, "500/s": 500}
SELDOM = 20
"""Up to so many saves a second, each row walks alone."""

MOST_SELDOM, MOST_OFTEN = (1.5, 2.0), (2.5, 2.5)
"""The bars: p50 and p99, beside the loop by hand."""

MOST_READ_MS = 50.0
"""The bar for a capture that is read from the write-ahead log: p50 beside an idle worker."""

OURS, LOOP, PGAI = "ours", "loop by hand", "pgai"
ARTICLES = "app_article (title, contents, is_public, views)"
CONTENDERS = {
    OURS: ("benchmarks.pipeline", "ours", ARTICLES),
    **dict.fromkeys(captures.READ, ("benchmarks.pipeline", "ours", ARTICLES)),
    LOOP: ("benchmarks.latency", "loop", "article (title, contents, is_public, views)"),
    PGAI: ("benchmarks.pipeline", "pgai", "article (title, contents, is_public, views)"),
}
"""Contender -> package, module, and the table and columns that its rows are inserted into."""

WARM_UP_SAVES = 40
LOST_SECONDS = 20.0
TEXT = "a row of about three hundred characters that says nothing of note, again and again. " * 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the rates, and for contenders to leave out."""
    compare.add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="How long each rate lasts.")
    parser.add_argument("--rates", nargs="+", choices=RATES, default=[*RATES])
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])


def run(options: argparse.Namespace) -> int:
    """Measure by turns. Return zero if every bar was reached."""
    names = list(options.only)
    if PGAI in names and not importlib.util.find_spec("pgai"):
        print("pgai is left out: it is not installed (dependency group: peers).")
        names.remove(PGAI)
    server = Server(Delay(), width=WIDTH)
    with postgres.database() as database:
        if not postgres.reads_log(database.url):
            print("wal_level is not logical on this server: captures by the log are left out")
            names = [name for name in names if name not in captures.READ]
        comparisons = {
            rate: Comparison(f"Saves: {rate}", bars=_bars(rate, names)) for rate in options.rates
        }
        for number in range(options.runs):
            for name in names if number % 2 == 0 else reversed(names):
                for rate, figures in _measure(name, server, options).items():
                    comparisons[rate].found.setdefault(name, []).append(figures)
    server.stop()
    return compare.report([*comparisons.values()], options)


def _bars(rate: str, names: list[str]) -> list[Bar]:
    p50, p99 = MOST_SELDOM if RATES[rate] <= SELDOM else MOST_OFTEN
    beside = [Bar("p50 ms", OURS, [LOOP], most=p50), Bar("p99 ms", OURS, [LOOP], most=p99)]
    most = None if RATES[rate] else MOST_READ_MS
    return (beside if {OURS, LOOP} <= set(names) else []) + [
        Bar("p50 ms", name, [], most=most) for name in names if name in captures.READ
    ]


def _measure(name: str, server: Server, options: argparse.Namespace) -> dict[str, Figures]:
    """Start one contender's worker, and save rows at each rate in turn."""
    package, module, table = CONTENDERS[name]
    with postgres.fresh_database() as url:
        asked = [sys.executable, "-m", package, module, server.url, str(WIDTH), "0"]
        capture = name if name in captures.READ else "trigger"
        environment = {**os.environ, "DATABASE_URL": url, "CAPTURE": capture}
        subprocess.run([*asked, "fill"], env=environment, check=True)
        worker = subprocess.Popen([*asked, "embed"], env=environment, stderr=subprocess.DEVNULL)
        try:
            if name in captures.READ:
                captures.await_reader(url)
            saving = functools.partial(save, url, f"INSERT INTO {table} VALUES (%s, %s, true, 0)")
            saving(pause=0.02, count=WARM_UP_SAVES)
            return {rate: saving(**_pace(RATES[rate], options.seconds)) for rate in options.rates}
        finally:
            worker.kill()
            worker.wait()


def _pace(per_second: int, seconds: float) -> dict[str, float | int]:
    if not per_second:
        return {"pause": IDLE_EVERY_SECONDS, "count": IDLE_SAVES}
    return {"pause": 1 / per_second, "count": int(per_second * seconds)}


def save(url: str, insert: str, *, pause: float, count: int) -> Figures:
    """Save ``count`` rows, one per transaction, ``pause`` seconds apart, and await each vector."""
    committed: dict[int, float] = {}
    thread = threading.Thread(target=_write, args=(url, insert, pause, count, committed))
    thread.start()
    waits = _watch(url, committed, count)
    thread.join()
    milliseconds = sorted(seconds * 1000 for seconds in waits)
    return {
        "p50 ms": statistics.median(milliseconds),
        "p99 ms": milliseconds[int(len(milliseconds) * 0.99)],
    }


def _write(url: str, insert: str, pause: float, count: int, committed: dict[int, float]) -> None:
    returning = sql.SQL("{} RETURNING id").format(sql.SQL(insert))
    with psycopg.connect(url, autocommit=True) as connection:
        due = time.monotonic()
        for number in range(count):
            due += pause
            time.sleep(max(0.0, due - time.monotonic()))
            [[key]] = connection.execute(returning, [f"{number}", f"{number}: {TEXT}"]).fetchall()
            committed[key] = time.monotonic()


def _watch(url: str, committed: dict[int, float], count: int) -> list[float]:
    """Return how many seconds each row waited for its vector, in the order of arrival."""
    waits: list[float] = []
    seen: set[int] = set()
    give_up = time.monotonic() + LOST_SECONDS
    with psycopg.connect(url, autocommit=True) as connection:
        while len(waits) < count:
            missing = [key for key in list(committed) if key not in seen]
            found = connection.execute(
                "SELECT source FROM embedded WHERE source = ANY(%s)", [missing]
            ).fetchall()
            now = time.monotonic()
            waits += [now - committed[key] for [key] in found]
            seen.update(key for [key] in found)
            if found:
                give_up = now + LOST_SECONDS
            elif now > give_up:
                raise SystemExit(f"{count - len(waits)} rows have no vectors.")
            time.sleep(0.001)
    return waits
