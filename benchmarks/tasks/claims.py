"""Our claim alone: between tenants beside plain, and how long it takes with many tasks waiting.

One tenant has nine tenths of the tasks. CPU is that of the server's process.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg

from benchmarks.compare import Bar, Comparison, Figures
from benchmarks.peers import bare
from benchmarks.queue.handler import BATCH

BY_HAND, PLAIN = "by hand: first in, first out", "plain"
MOST_TIMES, MOST_MS = 4.0, 10.0
CLAIMS = 200
CPU = "CPU ms a claim"
ROUNDS = "rounds until each tenant was served"
BIG = 0.9
"""The share of tasks that one tenant has."""

ADD = """
    INSERT INTO pgembed_task (spec, source_pk, kind, tenant, arguments, run_at)
    SELECT
        'default', n::text, 'benchmarks.peers.tasks.handle',
        CASE
            WHEN %(tenants)s = 0 THEN ''
            WHEN n %% 10 < 10 * %(big)s THEN 'tenant 0'
            ELSE 'tenant ' || (n / 10) %% %(tenants)s
        END,
        '{"args": [1], "kwargs": {}}', now() - interval '1 hour' + n * interval '1 ms'
    FROM generate_series(1, %(count)s) AS n
"""
END = "DELETE FROM pgembed_task WHERE id = ANY(%s) RETURNING tenant"


def compare(options: argparse.Namespace) -> list[Comparison]:
    """Measure plain and fair claims by turns, for each number of waiting tasks."""
    # Import late: our models need Django to be set up, and the peers have settings of their own.
    from benchmarks.tasks.ours import set_up

    set_up()
    from django.core.management import call_command

    from pgembed_django.queue import sessions

    call_command("migrate", verbosity=0)
    # As in a worker.
    sessions.configure_sessions("default", is_direct=True)
    fair = f"{options.tenants:,} tenants"
    found = []
    for waiting in options.waiting:
        comparison = Comparison(f"Claim {BATCH} of {waiting:,} waiting tasks")
        contenders = {
            BY_HAND: functools.partial(by_hand, waiting),
            PLAIN: functools.partial(ours, waiting, 0),
            fair: functools.partial(ours, waiting, options.tenants),
        }
        comparison.alternate(contenders, runs=options.runs)
        comparison.bars += [
            Bar(CPU, fair, [PLAIN], most=MOST_TIMES),
            Bar(CPU, PLAIN, [BY_HAND]),
            Bar(CPU, fair, [BY_HAND]),
            Bar("p99 ms", PLAIN, [], most=MOST_MS),
            Bar("p99 ms", fair, [], most=MOST_MS),
            Bar(ROUNDS, fair, [], most=1.0),
        ]
        found.append(comparison)
    return found


def ours(waiting: int, tenants: int) -> Figures:
    """Claim again and again from a table with so many tasks."""
    from django.db import connection

    from pgembed_django import conf
    from pgembed_django.queue.work import Work
    from pgembed_django.tasks.handler import TaskHandler

    handler = TaskHandler(["default"], using="default", concurrency=1)
    work = Work(handler, using="default", worker_id=0, settings=conf.current(), inline=True)
    served: Counter[str] = Counter()
    round_ended_after = math.inf
    connection.ensure_connection()
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as own:
        own.execute("TRUNCATE pgembed_task")
        own.execute(ADD, {"tenants": tenants, "big": BIG, "count": waiting})
        own.execute("VACUUM ANALYZE pgembed_task")

        def claim() -> list[int]:
            return [claim.id for claim in work.claiming.others(handler.ready(), BATCH)]

        def end(ids: list[int], number: int) -> None:
            nonlocal round_ended_after
            served.update(tenant for [tenant] in own.execute(END, [ids]))
            if len(served) >= tenants and round_ended_after == math.inf:
                round_ended_after = number

        figures = _measure(claim, end, waiting, connection.connection.info.backend_pid)
    if tenants:
        figures[ROUNDS] = round_ended_after / math.ceil(tenants / BATCH)
        figures["share of the tenant with nine tenths"] = served["tenant 0"] / served.total()
    return figures


def by_hand(waiting: int) -> Figures:
    """Do the same with a table and a statement that do nothing but claim."""
    url = os.environ["DATABASE_URL"]
    with (
        psycopg.connect(url, autocommit=True) as own,
        psycopg.connect(url, autocommit=True) as claiming,
    ):
        own.execute("DROP TABLE IF EXISTS bare")
        bare.fill(url, waiting)

        def claim() -> list[int]:
            return [key for [key] in claiming.execute(bare.CLAIM)]

        def end(ids: list[int], number: int) -> None:
            own.execute("DELETE FROM bare WHERE id = ANY(%s)", [ids])

        return _measure(claim, end, waiting, claiming.info.backend_pid)


def _measure(
    claim: Callable[[], list[int]], end: Callable[[list[int], int], None], waiting: int, pid: int
) -> Figures:
    """Claim, and end what was claimed, which is not measured."""
    seconds: list[float] = []
    cpu = 0.0
    for number in range(1, 1 + min(CLAIMS, waiting // BATCH // 4)):
        if number == 2:  # the first one plans the statements
            seconds.clear()
            cpu = _cpu_seconds(pid)
        began = time.perf_counter()
        ids = claim()
        seconds.append(time.perf_counter() - began)
        end(ids, number)
    milliseconds = sorted(1000 * one for one in seconds)
    return {
        CPU: 1000 * (_cpu_seconds(pid) - cpu) / len(seconds),
        "p50 ms": milliseconds[len(milliseconds) // 2],
        "p99 ms": milliseconds[int(len(milliseconds) * 0.99)],
    }


def _cpu_seconds(pid: int) -> float:
    """Return what a process of the server has used: it is on this machine."""
    # Nanoseconds. Source: the kernel's Documentation/scheduler/sched-stats.rst.
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
