"""``python -m benchmarks.tasks NAME STEP …``: one step of one contender, which prints figures."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks.compare import Figures
from benchmarks.tasks import MODULES, OURS, starts
from benchmarks.tasks.handlers import Starts, Timed

CHUNK = 1000


def main(name: str, step: str, *given: str) -> None:
    """Do one step, on the database that DATABASE_URL names."""
    module, url = import_module(MODULES[name]), os.environ["DATABASE_URL"]
    if step == "work":
        module.drain(url, Starts())
    elif step == "drain":
        handler, seconds, jobs = given
        handled = Timed(sleeps=handler == "sleep")
        handled.tell_and_exit_after(float(seconds), jobs=int(jobs))
        module.drain(url, handled)
    else:
        module.fill(url, 0)
        seconds, *sizes = (float(size) for size in given)
        print(json.dumps(STEPS[step](name, module, seconds, sizes)))


def start(
    name: str, module: ModuleType, seconds: float, rates: Sequence[float]
) -> dict[str, Figures]:
    """Start jobs at each of the rates. Return figures by rate."""
    url = os.environ["DATABASE_URL"]
    found = starts.measure(name, module.producer(url), seconds, rates)
    if name == OURS:
        found[f"{rates[-1]:g}"]["p99_wait ms"] = 1000 * module.p99_wait()
    return found


def enqueue(name: str, module: ModuleType, seconds: float, sizes: Sequence[float]) -> Figures:
    """Add jobs one by one and then many at once, ``seconds`` long each and so many at most."""
    [most] = sizes
    producer = module.producer(os.environ["DATABASE_URL"])
    producer.one(0)  # connects
    began, ones = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        ones += 1
        producer.one(ones)
    one_by_one = time.perf_counter() - began
    began, many = time.perf_counter(), 0
    while time.perf_counter() < began + seconds and many < most:
        many += CHUNK
        producer.many(range(CHUNK))
    at_once = time.perf_counter() - began
    return {"one/s": ones / one_by_one, "bulk/s": many / at_once, "jobs": float(1 + ones + many)}


STEPS: dict[str, Callable[..., Any]] = {"start": start, "enqueue": enqueue}

if __name__ == "__main__":
    main(*sys.argv[1:])
