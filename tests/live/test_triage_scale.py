"""With a million jobs and 200,000 open failures a page reads little, and says where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from pgembed_django.admin import actions
from pgembed_django.contrib.metrics import collectors
from pgembed_django.models import Job, Worker
from pgembed_django.queue import rollups

# Emptied afterwards, not rolled back: statistics are not, and other tests would meet them.
pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

KEY = "app.ArticleEmbedding"
MAX_QUERIES = 14  # two of them once in a process, for content types
MAX_BLOCKS = 25_000
"""What a page may read. The table of the jobs alone has 37,000 blocks."""
MAX_BLOCKS_OF_A_DISMISSAL = 70
LIST = "/admin/pgembed/job/"

# 800,000 jobs that wait, run or have succeeded, and 200,000 failures of 20 kinds.
JOBS = """
    INSERT INTO pgembed_job (
        spec, source_pk, status, kind, priority, worker_id, lease_expires_at, started_at,
        created_at, finished_at, last_error, signature
    )
    SELECT
        %(spec)s,
        n,
        CASE WHEN n < 1000 THEN 'running' WHEN n < 600000 THEN 'succeeded'
             WHEN n < 800000 THEN 'pending' ELSE 'failed' END,
        CASE WHEN n < 700000 THEN 'write' ELSE 'reconciler' END,
        CASE WHEN n < 700000 THEN 0 ELSE -1000 END,
        CASE WHEN n < 1000 THEN 1 END,
        CASE WHEN n < 1000 THEN now() + interval '1 hour' END,
        CASE WHEN n < 600000 THEN now() END,
        now() - n * interval '1 millisecond',
        CASE WHEN n >= 1000 AND (n < 600000 OR n >= 800000)
             THEN now() - n * interval '1 millisecond' END,
        CASE WHEN n >= 800000 THEN 'Kind ' || chr(97 + n %% 20) || ' of row ' || n ELSE '' END,
        CASE WHEN n >= 800000 THEN 'Kind ' || chr(97 + n %% 20) || ' of row #' ELSE '' END
    FROM generate_series(0, 999999) AS n
"""

ATTEMPTS = """
    INSERT INTO pgembed_attempt (spec, source_pk, outcome, started_at, worker, error)
    SELECT %(spec)s, n, 'failed', now(), 'host:1', 'Kind of row ' || n
    FROM generate_series(900000, 999999) AS n
"""

ARTICLES = """
    INSERT INTO app_article (id, title, contents, author)
    SELECT n, 'Title', 'Contents', ''
    FROM generate_series(900000, 999999) AS n
"""


@pytest.fixture
def operator(transactional_db: None) -> Client:
    """No superuser: permissions are looked up too."""
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgembed"))
    client = Client()
    client.force_login(user)
    return client


def fill() -> None:
    Worker.objects.create(pk=1, host="host", pid=1, version="1", specs=[KEY])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for statement in (JOBS, ATTEMPTS, ARTICLES):
            cursor.execute(statement, {"spec": KEY})
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE pgembed_job, pgembed_attempt, app_article")
    tally = rollups.Tally()
    tally.completed(KEY, waited=0.5)
    tally.flush(using="default")


def pages() -> dict[str, str]:
    kind = f"status=failed&spec={KEY}&signature=Kind+b+of+row+%23"
    last = Job.objects.latest("pk").pk
    return {
        "overview": "/admin/pgembed/",
        "overview of a day": "/admin/pgembed/?hours=24",
        "failures": reverse("admin:pgembed_job_failures"),
        "jobs": LIST,
        "jobs of a spec": f"{LIST}?spec={KEY}",
        "pending": f"{LIST}?status=pending",
        "failed": f"{LIST}?status=failed",
        "failed, deep down": f"{LIST}?status=failed&p=150",
        "one kind": f"{LIST}?{kind}",
        "one unit": f"{LIST}?status=failed&q={KEY}+999999",
        "one job": f"{LIST}{last}/change/",
        "held by a worker": f"{LIST}?status=running&worker_id=1",
        "spaces": "/admin/pgembed/space/",
        "workers": "/admin/pgembed/worker/",
    }


@contextmanager
def counted() -> Iterator[Cost]:
    """Count the queries of the block, and the blocks that they read of our tables."""
    cost = Cost()
    # Statistics are sent off between transactions only.
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        before = blocks_read()
        yield cost
        cost.blocks = blocks_read() - before
    asked = [query["sql"] for query in queries][2:-2]
    cost.statements = [sql for sql in asked if "SAVEPOINT" not in sql]


@dataclass
class Cost:
    blocks: int = 0
    statements: list[str] = field(default_factory=list)


def blocks_read() -> int:
    with connection.cursor() as cursor:
        # Parallel workers count for themselves.
        cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        cursor.execute(
            "SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class "
            "WHERE relname ~ '^(pgembed|app)_'"
        )
        return int(cursor.fetchone()[0])


def test_every_page_takes_few_queries_that_read_little(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    costly = {}
    for name, url in pages().items():
        with counted() as cost:
            assert operator.get(url).status_code == 200, name
        if len(cost.statements) > MAX_QUERIES or cost.blocks > MAX_BLOCKS:
            costly[name] = cost
        # As Django's list filters do, over the whole table.
        assert not [sql for sql in cost.statements if sql.startswith("SELECT DISTINCT")]

    assert not costly
    # A scrape counts further than a page, and is bounded all the same.
    collectors._queue_collector.cache_clear()
    with counted() as cost:
        scraped = Client().get("/metrics").content.decode()
    assert "pgembed_queue_up 1.0" in scraped
    assert f'pgembed_jobs_ready{{kind="write",spec="{KEY}"}} 100000.0' in scraped
    assert f'pgembed_open_failures{{spec="{KEY}"}} 100000.0' in scraped
    assert cost.blocks < MAX_BLOCKS
    # And so is an action on all of them.
    everything = {"action": "dismiss", "_selected_action": "all", "select_across": "1"}
    asked = operator.post(f"{LIST}?status=failed", everything)
    assert "Dismiss more than 100,000 jobs?" in asked.content.decode()

    monkeypatch.setattr(actions, "MAX_SECONDS", 1.0)  # the log of queries is bounded
    with counted() as cost:
        operator.post(f"{LIST}?status=failed", {**everything, **dict(asked.context["form"])})

    dismissed = Job.objects.filter(status="dismissed").count()
    # It reads the list that it acts on, and what the page after it shows.
    assert cost.blocks < 2 * MAX_BLOCKS + dismissed * MAX_BLOCKS_OF_A_DISMISSAL
