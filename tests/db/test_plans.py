"""What Postgres does for each statement of the queue, in a table of 650,000 jobs.

The statements are those that the verbs send, taken from a run and explained with what they
really touched. Never a scan of the whole table, never a sort or a walk that grows with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from pgembed_django import spaces
from pgembed_django.admin import mixin
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Ripple, ScanCursor
from pgembed_django.queue import jobs
from pgembed_django.spaces import reconcile
from tests.app.models import Article

pytestmark = pytest.mark.django_db

SPEC = "app.ArticleEmbedding"
BATCH = 100

# Source keys go from 1 on. Nothing that is ready is claimed or kept from it by the others.
FILL = """
    INSERT INTO app_article (id, title, contents, author, published_time)
    SELECT n, 'Title ' || n, '', '', now()
    FROM generate_series(1, 20000) AS n;

    INSERT INTO pgembed_job (spec, source_pk, status, priority, run_at)
    SELECT spec, n, 'pending', lane, now() - n * interval '1 ms'
    FROM generate_series(100001, 150000) AS n,
    LATERAL (VALUES
        (CASE WHEN n % 2 = 0 THEN 'app.ArticleEmbedding' ELSE 'app.NoteEmbedding' END,
        (ARRAY[10, 0, -1000, -2000])[n % 4 + 1])
    ) AS unit(spec, lane);

    INSERT INTO pgembed_job (spec, source_pk, status, priority, run_at)
    SELECT 'app.ArticleEmbedding', n, 'pending', 0, now() + n * interval '1 s'
    FROM generate_series(200001, 250000) AS n;

    INSERT INTO pgembed_job (spec, source_pk, status, run_at, finished_at, last_error)
    SELECT 'app.ArticleEmbedding', n, 'failed', now() + interval '1 hour', now(), 'no'
    FROM generate_series(10001, 60000) AS n;

    INSERT INTO pgembed_job (spec, source_pk, status, finished_at)
    SELECT 'app.ArticleEmbedding', n % 90000, 'succeeded', now() - n * interval '10 ms'
    FROM generate_series(1, 500000) AS n;

    INSERT INTO pgembed_job (
        spec, source_pk, status, worker_id, lease_expires_at, started_at, claims
    )
    SELECT
        'app.ArticleEmbedding', n, 'running', n % 4, now() + (n % 2) * interval '1 hour', now(), 1
    FROM generate_series(300001, 301000) AS n;

"""


@dataclass(frozen=True)
class Node:
    """One step of a plan, as it ran."""

    kind: str
    table: str
    returned: float
    touched: float
    sorted_rows: float


@pytest.fixture(scope="module")
def full_table(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")  # no triggers
            cursor.execute(FILL)
            cursor.execute("SET session_replication_role = origin")
            cursor.execute("VACUUM ANALYZE")
        spaces.ensure(specs.get(SPEC), using="default")
    yield
    with django_db_blocker.unblock():
        call_command("flush", interactive=False, verbosity=0)
        Ripple.objects.all().delete()  # of the related tables that it has truncated
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")  # the figures of this table mislead no other test


@pytest.fixture
def explain(full_table: None, db: None) -> Callable[[Callable[[], Any]], list[Node]]:
    return nodes_of


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def nodes_of(action: Callable[[], Any]) -> list[Node]:
    """Run what sends statements, and explain each of them. Nothing of it stays."""
    with rolled_back(), CaptureQueriesContext(connection) as captured:
        action()
    found: list[Node] = []
    for query in captured.captured_queries:
        if "pgembed_job" not in query["sql"]:
            continue
        with rolled_back(), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query['sql']}")
            [plan] = cursor.fetchone()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        found += walk(plan[0]["Plan"])
    assert found, "no statement of the job table was sent"
    return found


def walk(plan: dict[str, Any]) -> Iterator[Node]:
    loops = plan.get("Actual Loops", 0)
    removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    returned = plan.get("Actual Rows", 0)
    inner = plan.get("Plans", [])
    yield Node(
        kind=plan["Node Type"],
        table=plan.get("Relation Name", plan.get("Index Name", "")),
        returned=returned * loops,
        touched=(returned + removed) * loops,
        sorted_rows=sum(
            p.get("Actual Rows", 0) for p in inner if p["Parent Relationship"] == "Outer"
        )
        if "Sort" in plan["Node Type"]
        else 0,
    )
    for child in inner:
        yield from walk(child)


def assert_bounded(nodes: list[Node], rows: int) -> None:
    ours = [node for node in nodes if "pgembed_job" in node.table or "pgembed_one" in node.table]
    assert ours
    assert [node for node in ours if node.kind == "Seq Scan"] == []
    assert [node for node in nodes if node.sorted_rows > rows] == []
    assert [node for node in ours if node.touched > rows] == []


def claim(**options: Any) -> list[jobs.Claim]:
    known = [spec.key for spec in specs.all()]
    given = {"limit": BATCH, "lease": jobs.Lease(1, 60), "using": "default"}
    return jobs.claim(known, **{**given, **options})


def test_the_table_is_as_full_as_it_says(explain):
    with connection.cursor() as cursor:
        cursor.execute("SELECT status, count(*) FROM pgembed_job GROUP BY 1")
        counts = dict(cursor.fetchall())
    assert counts == {"pending": 100_000, "failed": 50_000, "succeeded": 500_000, "running": 1000}


@pytest.mark.parametrize("options", [{}, {"lowest_first": True}, {"only_new": True}], ids=str)
def test_claim(explain, options):
    taken = []

    def action() -> None:
        taken.extend(claim(**options))

    nodes = explain(action)

    assert len(taken) == BATCH
    assert_bounded(nodes, 2 * BATCH)


def test_claim_that_goes_on(explain):
    last = claim(limit=BATCH)[-1]
    lane = jobs.Lane(last.spec, last.priority, last.run_at, last.id)
    taken = []

    def action() -> None:
        taken.extend(claim(lanes=[lane]))

    nodes = explain(action)

    assert len(taken) == BATCH
    assert_bounded(nodes, 2 * BATCH)


def test_claim_of_suspects(explain):
    keys = [spec.key for spec in specs.all()]
    assert_bounded(
        explain(
            lambda: (
                jobs.claim_suspect(keys, lease=jobs.Lease(1, 60), using="default"),
                jobs.is_suspect_due(keys, using="default"),
            )
        ),
        BATCH,
    )


def test_the_next_that_is_due(explain):
    keys = [spec.key for spec in specs.all()]

    nodes = explain(lambda: jobs.next_due_seconds(keys, using="default"))

    assert_bounded(nodes, BATCH)


@pytest.fixture
def held(full_table: None, db: None) -> list[jobs.Claim]:
    rows = Job.objects.filter(status="running").order_by("id")[:BATCH]
    columns = ["claims" if name == "token" else name for name in FIELDS]
    return [jobs.Claim(*values) for values in rows.values_list(*columns)]


FIELDS = jobs.Claim._fields


def test_heartbeat(explain, held):
    assert_bounded(
        explain(lambda: jobs.heartbeat(held, lease_seconds=60, using="default")), 2 * BATCH
    )


def test_heartbeat_that_has_lost_a_job(explain, held):
    lost = held[0]._replace(id=1, token=99)

    nodes = explain(lambda: jobs.heartbeat([*held, lost], lease_seconds=60, using="default"))

    assert_bounded(nodes, 2 * BATCH)


def test_complete(explain, held):
    nodes = explain(
        lambda: jobs.complete({one.id: 1 for one in held}, keep_seconds=60, using="default")
    )

    assert_bounded(nodes, 2 * BATCH)


def test_going_back_and_failing(explain, held):
    def action() -> None:
        jobs.release(held[0], using="default")
        jobs.retry(held[1], "no", max_attempts=5, delay_seconds=1, using="default")
        jobs.fail(held[2], "no", using="default")

    assert_bounded(explain(action), 10)


def test_reap(explain):
    # Half of what runs has expired; all that runs is looked at, and nothing else.
    reaped: list[Any] = []
    nodes = explain(lambda: reaped.extend(jobs.reap(max_crashes=3, using="default", limit=5)))

    assert len(reaped) == 5
    assert_bounded(nodes, 1000)


def test_recall(explain):
    # Once after the server's clock was put back: what is not due yet, and what runs.
    nodes = explain(lambda: jobs.recall([SPEC], lease_seconds=60, using="default"))

    assert_bounded(nodes, 100_000)


@pytest.mark.parametrize("scan", [ScanCursor.Scan.MISSING, ScanCursor.Scan.STALE])
def test_a_page_of_the_reconciler(explain, scan):
    spec = specs.get(SPEC)
    pages = []

    def action() -> None:
        live = spaces.live(spec, using="default")
        pages.append(reconcile._next_page(spec, scan, live, rows=BATCH, using="default"))

    ScanCursor.objects.get_or_create(spec=SPEC, scan=scan)
    nodes = explain(action)

    assert pages[0] is not None
    assert Article.objects.count() == 20_000
    assert_bounded(nodes, 2 * BATCH)


def test_the_backlog_is_counted_up_to_its_bound(explain):
    nodes = explain(lambda: reconcile.backlog(specs.get(SPEC), using="default"))

    assert_bounded(nodes, reconcile.MAX_BACKLOG)


def test_retention(explain):
    pruned = []

    nodes = explain(lambda: pruned.append(jobs.prune(keep_seconds=1, using="default", limit=BATCH)))

    assert pruned == [BATCH]
    assert_bounded(nodes, 2 * BATCH)


def test_what_a_person_does_with_failures(explain):
    some = list(Job.objects.filter(status="failed").values_list("pk", flat=True)[:BATCH])

    nodes = explain(
        lambda: (
            jobs.dismiss(some[:50], using="default"),
            jobs.retry_failed(some[50:], using="default"),
        )
    )

    assert_bounded(nodes, 2 * BATCH)


@pytest.mark.parametrize("order", ["pk", "-pk"])
def test_the_states_of_a_page_of_rows_in_the_admin(explain, order):
    rows = Article.objects.annotate(pgembed_state=mixin.state_of(Article)).order_by(order)

    nodes = explain(lambda: list(rows[:BATCH]))

    assert_bounded(nodes, 2 * BATCH)


def test_a_write_and_a_delete(explain):
    """The triggers' own statements, as the functions hold them."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = on")
        cursor.execute("SELECT pg_stat_get_xact_tuples_returned('pgembed_job'::regclass)")
        [before] = cursor.fetchone()
        cursor.execute("UPDATE app_article SET title = 'new' WHERE id BETWEEN 1 AND 100")
        cursor.execute("DELETE FROM app_article WHERE id BETWEEN 101 AND 200")
        cursor.execute("SELECT pg_stat_get_xact_tuples_returned('pgembed_job'::regclass)")
        [after] = cursor.fetchone()

    # Tuples that sequential scans have read: none.
    assert after == before


def test_what_a_worker_sends_prepared_reads_no_more(held):
    """Planned each time: see ``test_grown_tables``."""
    connection.connection.prepare_threshold = 0
    connection.cursor().execute("SET LOCAL plan_cache_mode = force_custom_plan")
    known = [spec.key for spec in specs.all()]
    before = tuples_read()
    try:
        assert len(claim()) == BATCH
        assert len(claim(lowest_first=True)) == BATCH
        jobs.claim_suspect(known, lease=jobs.Lease(1, 60), using="default")
        jobs.is_suspect_due(known, using="default")
        jobs.next_due_seconds(known, using="default")
        assert len(jobs.heartbeat(held, lease_seconds=60, using="default").ours) == BATCH
        jobs.complete({one.id: 1 for one in held}, keep_seconds=60, using="default")
    finally:
        connection.connection.prepare_threshold = None

    assert tuples_read() - before <= 50 * BATCH  # where the table has 650,000


def tuples_read() -> int:
    """Return how many rows and index entries of the job table this transaction has read."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT sum(pg_stat_get_xact_tuples_returned(relation))
                 + sum(pg_stat_get_xact_tuples_fetched(relation))
            FROM (
                SELECT 'pgembed_job'::regclass::oid
              UNION ALL
                SELECT indexrelid FROM pg_index WHERE indrelid = 'pgembed_job'::regclass
            ) AS ours(relation)
            """
        )
        return int(cursor.fetchone()[0])
