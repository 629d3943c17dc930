"""The processes of a soak: the embedding server, the writers, and the workers to be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.soak import server
from benchmarks.soak.server import Delivery, Unanswered

START_SECONDS = 30.0

NOTICE_SECONDS = 1.0
"""How long a resumed worker may take to find out that it has lost its leases."""

SPAWN = multiprocessing.get_context("spawn")


class Blow(NamedTuple):
    """A fault of a worker, in monotonic seconds. Its work in flight may be repeated."""

    worker: str
    what: str
    since: float
    until: float


class Server:
    """The embedding server's process."""

    def __init__(self, seed: int) -> None:
        self._control, far_end = SPAWN.Pipe()
        arguments = (far_end, 0, seed)
        self._process = SPAWN.Process(target=server.serve, args=arguments, daemon=True)
        self._process.start()
        far_end.close()
        self.port: int = self._control.recv()

    def be(self, mode: str) -> None:
        """Switch to the mode ``well``, or to one of the modes of trouble."""
        self._control.send(mode)

    def told(self) -> tuple[list[Delivery], list[Unanswered]]:
        """Return all texts that were embedded, in order, and what canaries were not answered."""
        self._control.send("deliveries")
        deliveries, unanswered = self._control.recv()
        return sorted(deliveries), unanswered

    def stop(self) -> None:
        """End the process."""
        self._control.close()
        self._process.join()


class Writers:
    """The writers' processes. They need DATABASE_URL and DJANGO_SETTINGS_MODULE."""

    def __init__(self, count: int, *, seed: int, deadline: float, **log: bool) -> None:
        self._pipes: list[Any] = []
        for number in range(count):
            near_end, far_end = SPAWN.Pipe(duplex=False)
            arguments = (far_end, number, seed, deadline)
            SPAWN.Process(target=_write, args=arguments, kwargs=log, daemon=True).start()
            far_end.close()
            self._pipes.append(near_end)

    def results(self, meanwhile: Callable[[], None]) -> Sequence[Any]:
        """Wait until all writers have ended, and return what each has written.

        Calls ``meanwhile`` each second: a fault may have left locks that they wait for.

        Raises:
            EOFError: a writer has died.
        """
        for pipe in self._pipes:
            while not pipe.poll(timeout=1):
                meanwhile()
        return [pipe.recv() for pipe in self._pipes]


def _write(*arguments: Any, **log: bool) -> None:
    import django

    django.setup()
    # Import late: its models need Django to be set up.
    from benchmarks.soak import writers

    writers.write(*arguments, **log)


@dataclass(slots=True)
class Worker:
    """The process of a real ``embed_worker``."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ending: str = ""
    """The signals that make it end, and when they were sent."""
    ending_since: float = 0.0
    stops: int = 0
    is_killed: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def has_begun(self) -> bool:
        """Whether it has got as far as claiming jobs."""
        return "works on" in self.log.read_text(errors="replace")


@dataclass(slots=True)
class Workers:
    """A fixed number of workers. One that ends is replaced by another."""

    count: int
    folder: Path
    nice: int = 0
    """How far they give way to other processes: 0 to 19."""
    blows: list[Blow] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    """Ends that no signal explains, as text."""
    started: int = 0
    alive: dict[int, Worker] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The names of all that were started, by process id."""

    def tend(self, *, replace: bool = True) -> None:
        """Note which workers have ended, and replace them."""
        for slot in range(self.count):
            worker = self.alive.get(slot)
            if worker is not None and worker.process.poll() is not None:
                self._ended(worker)
                del self.alive[slot]
            if slot not in self.alive and replace:
                self.alive[slot] = self._start()

    def signal(self, slot: int, number: signal.Signals) -> None:
        """Send a signal to a worker, and note what it explains."""
        worker = self.alive.get(slot)
        if worker is None or worker.process.poll() is not None:
            return
        now = time.monotonic()
        if number in (signal.SIGKILL, signal.SIGTERM):
            worker.ending, worker.ending_since = number.name, worker.ending_since or now
            worker.stops += number == signal.SIGTERM
            worker.is_killed |= number == signal.SIGKILL
        elif number == signal.SIGSTOP:
            # Until it is resumed.
            self.blows.append(Blow(worker.name, "SIGSTOP", now, float("inf")))
        else:
            for index, blow in enumerate(self.blows):
                if blow.worker == worker.name and blow.until == float("inf"):
                    until = now + NOTICE_SECONDS
                    self.blows[index] = Blow(blow.worker, blow.what, blow.since, until)
        worker.process.send_signal(number)

    def all_struck(self, what: str, since: float, until: float) -> None:
        """Note a fault of all workers."""
        self.blows += [Blow(worker.name, what, since, until) for worker in self.alive.values()]

    def stop(self) -> None:
        """Stop all workers with SIGTERM, and wait for their ends."""
        for slot in list(self.alive):
            self.signal(slot, signal.SIGCONT)
            self.signal(slot, signal.SIGTERM)
        for worker in self.alive.values():
            try:
                worker.process.wait(30)
            except subprocess.TimeoutExpired:
                self.deaths.append(f"{worker.name} did not stop within 30 s")
                worker.process.kill()
                worker.process.wait()
        self.tend(replace=False)

    def _start(self) -> Worker:
        self.started += 1
        name = f"worker-{self.started}"
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["nice", "-n", str(self.nice), sys.executable, "-m", "django", "embed_worker"],
                env={**os.environ, "SOAK_WORKER": name, "PGAPPNAME": name},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.names[str(process.pid)] = name
        return Worker(name, process, log)

    def _ended(self, worker: Worker) -> None:
        now, code = time.monotonic(), worker.process.returncode
        since = worker.ending_since or now
        self.blows.append(Blow(worker.name, worker.ending or "died", since, now))
        if not worker.has_begun and now - worker.started < START_SECONDS:
            return  # killed, or it found no database: a supervisor would start another
        asked_for = {0} if worker.stops else set()
        # Before Django has loaded the command, it kills the worker like any program.
        asked_for |= {-signal.SIGTERM} if worker.stops and not worker.has_begun else set()
        asked_for |= {-signal.SIGKILL} if worker.is_killed else set()
        if code not in asked_for:
            lines = worker.log.read_text(errors="replace").splitlines()[-12:]
            asked = f" after {worker.ending}" if worker.ending else ""
            self.deaths.append("\n    ".join([f"{worker.name}: status {code}{asked}", *lines]))
