"""With a million tasks a page reads little, and says where it stopped."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from pgembed_django.admin import actions
from pgembed_django.contrib.metrics import collectors
from pgembed_django.models import Task, Worker
from tests.live.test_triage_scale import MAX_QUERIES, counted, operator

__all__ = ["operator"]  # a fixture

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

LIST = "/admin/pgembed/task/"
MAX_BLOCKS = 30_000
"""What a page may read. The table alone has 66,000 blocks."""
MAX_BLOCKS_OF_A_RETRY = 120

# A thousand run, 500,000 are due, of a thousand tenants, 100,000 have a key, 200,000 are for later,
# and 199,000 have failed in 20 ways.
TASKS = """
    INSERT INTO pgembed_task (
        spec, source_pk, kind, arguments, tenant, serial, status, priority, worker_id,
        lease_expires_at, started_at, created_at, run_at, finished_at, last_error, signature
    )
    SELECT
        CASE WHEN n %% 4 = 0 THEN 'llm' ELSE 'default' END,
        n,
        'tests.app.tasks.' || CASE WHEN n %% 2 = 0 THEN 'add' ELSE 'note' END,
        '{"args": [1, 2]}',
        'tenant ' || n %% 1000,
        CASE WHEN n >= 500000 AND n < 600000 THEN n %% 5000 END,
        CASE WHEN n < 1000 THEN 'running' WHEN n < 801000 THEN 'pending' ELSE 'failed' END,
        n %% 3,
        CASE WHEN n < 1000 THEN 1 END,
        CASE WHEN n < 1000 THEN now() + interval '1 hour' END,
        CASE WHEN n < 1000 THEN now() END,
        now() - interval '1 hour' - n * interval '1 millisecond',
        CASE WHEN n >= 600000 AND n < 801000 THEN now() + interval '1 day'
             ELSE now() - interval '1 hour' - n * interval '1 millisecond' END,
        CASE WHEN n >= 801000 THEN now() - n * interval '1 millisecond' END,
        CASE WHEN n >= 801000 THEN 'Kind ' || chr(97 + n %% 20) || ' of task ' || n ELSE '' END,
        CASE WHEN n >= 801000 THEN 'Kind ' || chr(97 + n %% 20) || ' of task #' ELSE '' END
    FROM generate_series(0, 999999) AS n
"""


def fill() -> None:
    Worker.objects.create(pk=1, host="host", pid=1, version="1", specs=["default", "llm"])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(TASKS, [])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE pgembed_task")


def pages() -> dict[str, str]:
    kind = "status=failed&spec=llm&signature=Kind+i+of+task+%23"
    last = Task.objects.latest("pk").pk
    return {
        "overview": "/admin/pgembed/",
        "failures": reverse("admin:pgembed_task_failures"),
        "schedules": reverse("admin:pgembed_task_schedules"),
        "tasks": LIST,
        "tasks of a queue": f"{LIST}?spec=llm",
        "pending": f"{LIST}?status=pending",
        "failed": f"{LIST}?status=failed",
        "failed, deep down": f"{LIST}?status=failed&p=150",
        "one kind": f"{LIST}?{kind}",
        "one task": f"{LIST}{last}/change/",
        "a task by its id": f"{LIST}?q={last}",
        "held by a worker": f"{LIST}?status=running&worker_id=1",
        "of a function": f"{LIST}?status=failed&function=tests.app.tasks.add",
    }


def test_every_page_of_tasks_takes_few_queries_that_read_little(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    costly = {}
    for name, url in pages().items():
        with counted() as cost:
            assert operator.get(url).status_code == 200, name
        if len(cost.statements) > MAX_QUERIES or cost.blocks > MAX_BLOCKS:
            costly[name] = cost
        assert not [sql for sql in cost.statements if sql.startswith("SELECT DISTINCT")]

    assert not costly
    collectors._queue_collector.cache_clear()
    with counted() as cost:
        scraped = Client().get("/metrics").content.decode()
    assert 'pgembed_tasks_delayed{queue="llm"}' in scraped
    assert 'pgembed_oldest_task_seconds{queue="default"}' in scraped
    assert cost.blocks < 2 * MAX_BLOCKS
    # And so is an action on all of them.
    everything = {"action": "retry", "_selected_action": "all", "select_across": "1"}
    asked = operator.post(f"{LIST}?status=failed", everything)
    assert "Retry more than 100,000 tasks?" in asked.content.decode()

    monkeypatch.setattr(actions, "MAX_SECONDS", 1.0)  # the log of queries is bounded
    with counted() as cost:
        operator.post(f"{LIST}?status=failed", {**everything, **dict(asked.context["form"])})

    retried = Task.objects.filter(status="pending", finished_at=None, started_at=None).count()
    retried -= 800_000
    assert retried > 0
    assert cost.blocks < 2 * MAX_BLOCKS + retried * MAX_BLOCKS_OF_A_RETRY
