"""What Postgres does for each statement of a claim of tasks, in a table of 500,000.

Nothing is walked over that cannot run: tasks for later, those behind another one of their serial
key, suspects, and those of tenants whose turn it is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgembed_django import conf
from pgembed_django.core import database
from pgembed_django.models import Task
from pgembed_django.queue.jobs import Claim
from pgembed_django.queue.work import Work
from pgembed_django.tasks import limits, turns
from pgembed_django.tasks.handler import TaskHandler
from tests.db.test_plans import Node, rolled_back, walk

pytestmark = pytest.mark.django_db

BATCH = 50

FILL = """
    INSERT INTO pgembed_task (spec, source_pk, kind, arguments, tenant, serial, run_at, created_at)
    SELECT
        queue, n, 'tests.app.tasks.add', '{}',
        CASE queue
            WHEN 'tenants' THEN 'tenant ' || n % 1000
            WHEN 'later' THEN 'tenant ' || n
            ELSE ''
        END,
        CASE
            WHEN queue = 'serial' AND n % 10 = 0 THEN 'key ' || n % 3000
            WHEN queue = 'serial' THEN 'hot'
        END,
        now() - n * interval '1 ms' + CASE queue WHEN 'later' THEN interval '1 day' ELSE '0' END,
        now()
    FROM generate_series(1, 100000) AS n, unnest('{plain,tenants,serial,later}'::text[]) AS queue;

    INSERT INTO pgembed_task (spec, source_pk, kind, arguments, run_at)
    SELECT 'later', n, 'tests.app.tasks.add', '{}', now() - interval '1 s'
    FROM generate_series(1, 10) AS n;

    INSERT INTO pgembed_task (spec, source_pk, kind, arguments, crashes, run_at)
    SELECT
        'suspects', n, 'tests.app.tasks.add', '{}', 1, now() + (n - 10) * interval '1 s'
    FROM generate_series(1, 20000) AS n;

    INSERT INTO pgembed_task (spec, source_pk, kind, arguments, status, finished_at, last_error)
    SELECT 'plain', n, 'tests.app.tasks.add', '{}', 'failed', now(), 'no'
    FROM generate_series(1, 50000) AS n;

    INSERT INTO pgembed_task (
        spec, source_pk, kind, arguments, serial, status, worker_id, lease_expires_at, started_at,
        claims
    )
    SELECT
        queue, n, 'tests.app.tasks.add', '{}',
        CASE queue WHEN 'serial' THEN CASE n WHEN 1 THEN 'hot' ELSE 'other ' || n END END,
        'running', n % 4, now() + interval '1 hour', now(), 1
    FROM generate_series(1, 100) AS n, unnest('{plain,tenants,serial}'::text[]) AS queue;
"""


@pytest.fixture(scope="module")
def full_table(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("VACUUM ANALYZE pgembed_task")
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        call_command("flush", interactive=False, verbosity=0)
        cursor.execute("VACUUM ANALYZE pgembed_task")


@pytest.fixture
def claim(full_table: None, db: None) -> Callable[..., tuple[list[Claim], list[Node]]]:
    """Claim as a worker of one queue does, and return the steps of all plans, too."""

    def claim(queue: str, *, again: bool = False) -> tuple[list[Claim], list[Node]]:
        handler = TaskHandler([queue], using="default", concurrency=BATCH)
        work = Work(handler, using="default", worker_id=1, settings=conf.current(), inline=True)
        with rolled_back():
            if again:
                work.claiming.others(handler.ready(), BATCH)
            found: list[Claim] = []
            nodes = nodes_of(lambda: found.extend(work.claiming.up_to(BATCH)))
        return found, nodes

    return claim


def nodes_of(action: Callable[[], Any]) -> list[Node]:
    """Run what sends statements, and explain each of them by a kept plan's rules."""
    with rolled_back(), CaptureQueriesContext(connection) as captured:
        action()
    found: list[Node] = []
    for query in captured.captured_queries:
        if "pgembed_task" not in query["sql"]:
            continue
        with rolled_back(), connection.cursor() as cursor:
            cursor.execute(database.BY_KEPT_PLANS)
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query['sql']}")
            [plan] = cursor.fetchone()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        found += walk(plan[0]["Plan"])
    return found


def assert_bounded(nodes: list[Node], rows: int) -> None:
    ours = [node for node in nodes if "pgembed_" in node.table]
    assert ours
    assert [node for node in ours if node.kind == "Seq Scan"] == []
    assert [node for node in nodes if node.sorted_rows > rows] == []
    assert [node for node in ours if node.touched > rows] == []


@pytest.mark.parametrize("again", [False, True], ids=["anew", "on"])
def test_plain(claim, again):
    claims, nodes = claim("plain", again=again)
    assert len(claims) == BATCH
    assert_bounded(nodes, 2 * BATCH)


def test_all_that_wait(claim):
    waiting = Task.objects.filter(queue="plain", status="pending")
    waiting.exclude(pk__in=waiting.order_by("pk")[:10]).delete()
    claims, nodes = claim("plain")
    assert len(claims) == 10
    assert_bounded(nodes, BATCH)


@pytest.mark.parametrize("again", [False, True], ids=["anew", "on"])
def test_tenants(claim, again):
    claims, nodes = claim("tenants", again=again)
    assert len(claims) == BATCH
    # The tenants of the next claims are looked up, too.
    assert_bounded(nodes, 5 * BATCH)


@pytest.mark.parametrize("again", [False, True], ids=["anew", "on"])
def test_serial(claim, again):
    claims, nodes = claim("serial", again=again)
    assert len(claims) == BATCH
    assert_bounded(nodes, 4 * BATCH)


def test_serial_where_all_wait_for_one(claim):
    Task.objects.filter(queue="serial", status="pending").exclude(serial="hot").delete()
    claims, nodes = claim("serial")
    assert claims == []
    assert_bounded(nodes, 10)


def test_limits(claim, settings):
    limit_all(settings, concurrency=130, per_minute=100_000, tenant_concurrency=7)
    claims, nodes = claim("tenants")
    assert len(claims) == 30
    # All that run are counted.
    assert_bounded(nodes, 5 * BATCH)


def test_suspects(claim):
    claims, nodes = claim("suspects")
    assert len(claims) == 1
    assert_bounded(nodes, BATCH)


def test_later(claim):
    claims, nodes = claim("later")
    assert len(claims) == 10
    assert_bounded(nodes, BATCH)


@pytest.mark.parametrize("queue", ["plain", "tenants", "serial", "later", "suspects"])
def test_the_next_that_is_due(full_table, queue):
    nodes = nodes_of(lambda: turns.next_due_seconds([queue], using="default"))
    assert_bounded(nodes, 10)


def test_psycopg_keeps_each_statement():
    """psycopg does not cache what it has made of a longer one."""
    assert [len(one) < 4096 for one in STATEMENTS] == [True] * len(STATEMENTS)


STATEMENTS = [
    turns.FIND_DUE,
    turns.LANES,
    turns.TENANTS_READY,
    turns.TENANTS_SERIAL,
    turns.START_READY,
    turns.START_ALL,
    turns.HOLD_KEYS,
    turns.START_SERIAL,
    turns.NEXT_DUE,
    limits.RUNNING,
    limits.LATE,
    limits.CHARGE,
]


def limit_all(settings: Any, **most: int) -> None:
    queues = ["default", "llm", "plain", "tenants", "serial"]
    settings.TASKS = {
        "default": {
            "BACKEND": "pgembed_django.tasks.PostgresBackend",
            "QUEUES": queues,
            "OPTIONS": {"limits": dict.fromkeys(queues, most)},
        }
    }
