"""The two rounds of one contender, and the counts after each."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos.contenders.base import Contender, is_of
from benchmarks.compare import Figures

WORKERS = 2
STALL_SECONDS = 60.0
"""The queue is stalled if no job ends for this long, counted from the first: workers load first."""

START_SECONDS = 120.0

RACED_ROWS = 200
HOT_ROWS = 10
"""Half of the writes go to these rows, so that they are written again while being embedded."""

BREATH_SECONDS = 0.01


class Workers:
    """A fixed number of worker processes. One that ends is replaced by another."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        self._contender = contender
        self._folder = folder
        self._alive: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def tend(self) -> None:
        """Replace the workers that have ended."""
        self._alive = [worker for worker in self._alive if worker.poll() is None]
        while len(self._alive) < WORKERS:
            self._started += 1
            with (self._folder / f"worker-{self._started}.log").open("wb") as output:
                worker = subprocess.Popen(
                    self._contender.command(),
                    env={**os.environ, **self._contender.environment()},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self._alive.append(worker)

    def kill(self) -> None:
        """Kill the oldest worker."""
        worker = self._alive.pop(0)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        """Stop all workers."""
        while self._alive:
            self.kill()


def run(contender: Contender, rows: int, kills: int, seconds: float, folder: Path) -> list[Figures]:
    """Prepare the tables, run both rounds, and return the counts of each."""
    contender.prepare()
    workers = Workers(contender, folder)
    try:
        return [killed(contender, workers, rows, kills), raced(contender, workers, seconds)]
    finally:
        workers.stop()


def killed(contender: Contender, workers: Workers, rows: int, kills: int) -> Figures:
    """Drain ``rows`` jobs while workers are killed at equal intervals of progress."""
    with contender.transaction():
        for key in range(1, rows + 1):
            contender.write(key, f"row {key}")
    stored = f"SELECT count(*) FROM ({contender.STORED}) AS stored (id, e) WHERE e IS NOT NULL"
    marks = [rows * (number + 1) // (kills + 1) for number in range(kills)]
    done = 0

    def kill_on_the_way() -> None:
        nonlocal done
        workers.tend()
        if marks and contender.number(stored) >= marks[0]:
            marks.pop(0)
            workers.kill()
            done += 1

    drain(contender, kill_on_the_way)
    return {**counted(contender), "kills": float(done)}


def raced(contender: Contender, workers: Workers, seconds: float) -> Figures:
    """Update, delete and add rows for ``seconds``, then let the queue drain."""
    draw = random.Random(1)
    keys = list(range(1, RACED_ROWS + 1))
    fresh = 1_000_000
    over = time.monotonic() + seconds
    writes = 0
    while time.monotonic() < over:
        workers.tend()
        writes += 1
        what = draw.random()
        place = draw.randrange(HOT_ROWS if draw.random() < 0.5 else len(keys))
        if what < 0.7:
            contender.write(keys[place], f"row {keys[place]}, written {writes}")
        elif what < 0.85:
            contender.delete(keys.pop(place))
        else:
            fresh += 1
            keys.append(fresh)
            contender.write(fresh, f"row {fresh}, written {writes}")
        time.sleep(draw.expovariate(1 / BREATH_SECONDS))
    drain(contender, workers.tend)
    return {**counted(contender), "writes": float(writes)}


def drain(contender: Contender, meanwhile: Callable[[], object]) -> None:
    """Wait until no job is left, or the queue is stalled."""
    fewest = contender.number(contender.OPEN)
    gives_up_at = time.monotonic() + START_SECONDS
    while True:
        left = contender.number(contender.OPEN)
        now = time.monotonic()
        if left < fewest:
            fewest, gives_up_at = left, now + STALL_SECONDS
        if left == 0 or now > gives_up_at:
            return
        meanwhile()
        time.sleep(0.05)


def counted(contender: Contender) -> Figures:
    """Count what is wrong with rows, vectors and jobs."""
    source = dict(contender.connection.execute(contender.SOURCE).fetchall())
    rows = contender.connection.execute(contender.STORED).fetchall()
    stored = {key: json.loads(vector) for key, vector in rows if vector}
    return {
        "lost": float(len(source.keys() - stored.keys())),
        "stale": float(
            sum(
                not is_of(stored[key], contender.text_of(source[key]))
                for key in source.keys() & stored.keys()
            )
        ),
        "orphaned": float(len(stored.keys() - source.keys())),
        "stuck": float(contender.number(contender.OPEN) + contender.number(contender.GIVEN_UP)),
    }
