"""How long it takes from the call of ``enqueue`` until the function is called, by number of job."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence

from benchmarks.compare import Figures
from benchmarks.peers.producer import Producer
from benchmarks.tasks.handlers import Starts

WARM_UP_JOBS = 20
LOAD_SECONDS = 60.0
LOST_SECONDS = 20.0
STOP_SECONDS = 5.0


class Worker:
    """A worker process, and when it called each job's function."""

    def __init__(self, name: str) -> None:
        self.started: dict[int, float] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tasks", name, "work"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, number: int, *, seconds: float) -> None:
        """Wait until so many jobs have been started.

        Raises:
            RuntimeError: no further one has been for so long.
        """
        count, gives_up_at = len(self.started), time.monotonic() + seconds
        while len(self.started) < number:
            if len(self.started) > count:
                count, gives_up_at = len(self.started), time.monotonic() + seconds
            if time.monotonic() > gives_up_at:
                raise RuntimeError(f"{number - count} jobs were not started.")
            time.sleep(0.005)

    def stop(self) -> None:
        """End it: with SIGTERM, and if that does not help with SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        lines: Iterable[str] = self._process.stdout or ()
        for line in lines:
            if line.startswith(Starts.PREFIX):
                _, number, at = line.split()
                self.started[int(number)] = float(at)


def measure(
    name: str, producer: Producer, seconds: float, rates: Sequence[float]
) -> dict[str, Figures]:
    """Enqueue at each of the rates (jobs a second) to an idle worker. Return figures by rate."""
    called: dict[int, float] = {}
    worker = Worker(name)
    try:
        _enqueue(producer, called, 1, every=0)
        worker.wait_for(1, seconds=LOAD_SECONDS)
        _enqueue(producer, called, WARM_UP_JOBS, every=0.02)
        found = {}
        for rate in rates:
            first, count = len(called), max(5, int(rate * seconds))
            _enqueue(producer, called, count, every=1 / rate)
            worker.wait_for(len(called), seconds=LOST_SECONDS)
            found[f"{rate:g}"] = _percentiles(
                [worker.started[key] - called[key] for key in range(first, first + count)]
            )
        return found
    finally:
        worker.stop()


def _enqueue(producer: Producer, called: dict[int, float], count: int, *, every: float) -> None:
    due = time.monotonic()
    for _ in range(count):
        due += every
        time.sleep(max(0.0, due - time.monotonic()))
        number = len(called)
        called[number] = time.monotonic()
        producer.one(number)


def _percentiles(seconds: list[float]) -> Figures:
    milliseconds = sorted(1000 * one for one in seconds)
    return {
        "p50 ms": statistics.median(milliseconds),
        "p99 ms": milliseconds[int(len(milliseconds) * 0.99)],
    }
