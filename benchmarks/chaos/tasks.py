"""Tasks while workers are killed: nothing is lost, and nothing is committed twice.

A third of the tasks is plain: their runs add a row at their beginning and one at their end. The
others add theirs in ``context.completing()``. The last third has ``once``: each of these is
enqueued before the kills, between them and after them. This counts:

- lost: tasks without a row;
- doubled: rows of ``completing()`` beyond the first;
- once doubled: rows of tasks with ``once`` beyond the first;
- stuck: tasks that never ended, or were given up;
- run again: runs of plain tasks beyond the first. Each kill may cause as many as a worker runs at
  once.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.chaos import rounds
from benchmarks.chaos.contenders import base, ours
from benchmarks.compare import Bar, Figures

NAME = "tasks"
BARS = [
    *(Bar(count, "ours", [], most=0.0) for count in ("lost", "doubled", "once doubled", "stuck")),
    Bar("run again per kill", "ours", [], most=float(base.AT_ONCE)),
]
KINDS = ("plain", "completing", "once")
DOUBLED = {"completing": "doubled", "once": "once doubled", "begun": "run again"}
"""Rows beyond the first, by kind of row."""

DONE = "SELECT count(*) FROM done WHERE kind <> 'begun'"


class Contender(ours.Contender):
    OPEN = "SELECT count(*) FROM pgembed_task WHERE status IN ('pending', 'running')"
    GIVEN_UP = "SELECT count(*) FROM pgembed_task WHERE status = 'failed'"

    def environment(self) -> dict[str, str]:
        backend = {"BACKEND": "pgembed_django.tasks.PostgresBackend", "QUEUES": ["default"]}
        settings: dict[str, Any] = {
            "TASKS": {"default": backend},
            "PGEMBED_TASKS_CONCURRENCY": base.AT_ONCE,
            "PGEMBED_LEASE_SECONDS": base.LEASE_SECONDS,
            "PGEMBED_REAP_SECONDS": 1,
            "PGEMBED_RECONCILE_SECONDS": 0,
        }
        return {
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_SETTINGS": json.dumps(settings),
        }

    def prepare(self) -> None:
        super().prepare()
        self.connection.execute("CREATE TABLE done (kind text NOT NULL, number int NOT NULL)")


def run(count: int, kills: int, folder: Path) -> Figures:
    """Let two workers run tasks while workers are killed, and count."""
    contender = Contender()
    contender.prepare()
    # Import late: tasks need settings.
    from benchmarks.chaos import functions

    each = count // len(KINDS)
    for number in range(each):
        for kind in KINDS:
            getattr(functions, kind).enqueue(number=number)
    marks = [each * len(KINDS) * (number + 1) // (kills + 1) for number in range(kills)]
    workers, killed, enqueued = rounds.Workers(contender, folder), 0, 0

    def kill_on_the_way() -> None:
        nonlocal killed, enqueued
        workers.tend()
        if enqueued < each:
            functions.once.enqueue(number=enqueued)
            enqueued += 1
        if (
            killed < kills
            and contender.number("SELECT count(*) FROM done WHERE kind <> 'begun'") >= marks[killed]
        ):
            workers.kill()
            killed += 1

    try:
        rounds.drain(contender, kill_on_the_way)
        for number in range(each):
            functions.once.enqueue(number=number)
        rounds.drain(contender, workers.tend)
    finally:
        workers.stop()
    found = counted(contender, each)
    return {**found, "run again per kill": found["run again"] / max(killed, 1), "kills": killed}


def counted(contender: Contender, each: int) -> Figures:
    """Count what is wrong with tasks and their rows."""
    rows: dict[str, Counter[int]] = defaultdict(Counter)
    for kind, number in contender.connection.execute("SELECT kind, number FROM done"):
        rows[kind][number] += 1
    stuck = contender.number(contender.OPEN) + contender.number(contender.GIVEN_UP)
    found = {title: float(rows[kind].total() - len(rows[kind])) for kind, title in DOUBLED.items()}
    lost = sum(each - len(rows[kind]) for kind in KINDS)
    return {"lost": float(lost), **found, "stuck": float(stuck)}
