"""Sessions that have known the tables small, after a bulk load and before the next ANALYZE.

Postgres keeps a plan that it made for all parameters until it has new statistics. One that
was made for ten jobs reads all of them, and then all of a million.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import Q

from pgembed_django import spaces
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.models import Ending, Job, Space
from pgembed_django.queue import jobs, sessions
from pgembed_django.queue.work import Work
from pgembed_django.spaces import reconcile
from tests.app.models import Article

pytestmark = pytest.mark.django_db(transaction=True)

WARM = 12
"""Postgres tries five times before it keeps a plan; psycopg sends some unprepared first."""

GROWN = 20_000
FEW = 1000
"""What five rows may read, in whatever has grown."""

SPEC = "app.ArticleEmbedding"
TABLES = ["pgembed_job", "pgembed_staging", "app_articleembedding"]
LONG = "What is long is cut into more than one chunk. " * 100

ANALYZE = f"ANALYZE {', '.join(TABLES)}"

# Not due, or claims would read over what is dead of it.
BACKLOG = f"""
    INSERT INTO pgembed_job (spec, source_pk, run_at)
    SELECT '{SPEC}', n, '2999-07-01'
    FROM generate_series({GROWN}, {2 * GROWN}) AS n
"""
EMBEDDINGS = f"""
    SET LOCAL session_replication_role = replica;  -- nothing is checked at the commit
    INSERT INTO app_articleembedding (
        source_id, space_id, position, start_offset, end_offset, chunk_digest, text_digest, was_cut
    )
    SELECT n, id, 0, 0, 1, '', '', false
    FROM pgembed_space, generate_series({GROWN}, {2 * GROWN}) AS n
    WHERE spec = '{SPEC}'
"""
NO_BACKLOG = "DELETE FROM pgembed_job WHERE run_at >= '2999-01-01'"
NO_EMBEDDINGS = f"DELETE FROM app_articleembedding WHERE source_id >= {GROWN}"
HISTORIES = {
    "nothing": [],
    "small": [ANALYZE],
    "a backlog": [BACKLOG, NO_BACKLOG, ANALYZE],
    "a backlog, vacuumed": [BACKLOG, NO_BACKLOG, "VACUUM pgembed_job"],
    "many embeddings": [EMBEDDINGS, NO_EMBEDDINGS, ANALYZE],
}
"""What has become of the tables, and what Postgres knows of it."""

# Nothing of it is in the spec's condition, or due.
GROW = """
    INSERT INTO app_articleembedding (
        source_id, space_id, position, start_offset, end_offset, chunk_digest, text_digest, was_cut
    )
    SELECT -n, {space}, 0, 0, 1, '', '', false
    FROM generate_series(1, {rows}) AS n;

    INSERT INTO pgembed_staging (spec, source_pk, space_id, chunk_digest, embedding, was_cut)
    SELECT 'app.ArticleEmbedding', -n, {space}, '', '[1]', false
    FROM generate_series(1, {rows}) AS n;

    INSERT INTO pgembed_job (spec, source_pk, run_at)
    SELECT 'app.ArticleEmbedding', -n, now() + interval '1 hour'
    FROM generate_series(1, {rows}) AS n;
"""

FAILED_AND_AT_WORK = f"""
    INSERT INTO pgembed_job (spec, source_pk, status, finished_at, last_error)
    SELECT '{SPEC}', n, 'failed', now(), 'no'
    FROM generate_series({GROWN}, {2 * GROWN}) AS n;

    INSERT INTO pgembed_job (
        spec, source_pk, status, worker_id, lease_expires_at, started_at, claims
    )
    SELECT '{SPEC}', n, 'running', 2, now(), now(), 1
    FROM generate_series({GROWN}, {2 * GROWN}) AS n
"""

READ = """
    SELECT sum(pg_stat_get_tuples_returned(relation) + pg_stat_get_tuples_fetched(relation))
    FROM (
        SELECT unnest(%(tables)s::regclass[])::oid
      UNION ALL
        SELECT indexrelid FROM pg_index WHERE indrelid = ANY(%(tables)s::regclass[]::oid[])
    ) AS ours(relation)
"""


@pytest.fixture
def worker_session(db: None) -> Iterator[None]:
    sessions.configure_sessions("default", is_direct=True)
    yield
    sessions.leave_sessions("default")
    connection.connection.prepare_threshold = None


@pytest.fixture
def small_tables(db: None) -> None:
    """Rows that tests before have rolled back make a table large."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE app_article, {', '.join(TABLES)} CASCADE")


@pytest.fixture
def count_read(connect: Callable[..., psycopg.Connection]) -> Callable[[], int]:
    """Count the rows and index entries that committed transactions have read of our tables."""
    observer = connect(autocommit=True)

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
        [read] = observer.execute(READ, {"tables": TABLES}).fetchone()
        return int(read)

    return count


def analyze() -> None:
    """Let Postgres know how small the tables are."""
    with connection.cursor() as cursor:
        cursor.execute(ANALYZE)


@pytest.fixture
def grow(connect: Callable[..., psycopg.Connection]) -> Callable[[], None]:
    """Let the tables grow, from a connection of its own: ours keeps its plans."""

    def insert() -> None:
        with connect() as other:
            other.execute("SET session_replication_role = replica")  # no triggers
            other.execute(GROW.format(rows=GROWN, space=Space.objects.get(spec=SPEC).pk))

    return insert


def rewrite(articles: Sequence[Article]) -> None:
    """Change the end of each text, so that its first chunk is kept."""
    for article in articles:
        article.contents = f"{LONG} {uuid.uuid4()}"
        article.save()


def work(worker: Work) -> None:
    """Do what a worker does all day, to the end."""
    while worker.step():
        pass
    known = [spec.key for spec in specs.all()]
    jobs.is_suspect_due(known, using="default")
    jobs.next_due_seconds(known, using="default")


@pytest.mark.parametrize("rows", ["none yet", "stored", "just written"])
@pytest.mark.parametrize("history", HISTORIES)
def test_the_plans_that_a_worker_keeps_serve_any_size(
    history, rows, worker_session, small_tables, count_read, grow, make_worker, make_article
):
    worker = make_worker()
    spaces.ensure(specs.get(SPEC), using="default")
    articles = []
    if rows != "none yet":
        articles = [make_article() for _ in range(5)]
        work(worker)
    if rows == "just written":
        rewrite(articles)
    for statement in HISTORIES[history]:
        connection.cursor().execute(statement)
    articles = articles or [make_article() for _ in range(5)]
    for _ in range(WARM):
        rewrite(articles[:2])
        articles.pop().delete()
        articles.insert(0, make_article())
        work(worker)
    grow()
    before = count_read()

    rewrite(articles)
    work(worker)

    assert count_read() - before < FEW
    assert Job.objects.filter(status="pending").count() == GROWN


SETTINGS = """
    SELECT
        current_setting('synchronous_commit'),
        current_setting('enable_seqscan'),
        current_setting('enable_sort'),
        current_setting('jit'),
        current_setting('plan_cache_mode')
"""


def test_what_plans_are_kept_by_does_not_outlive_its_transaction(worker_session):
    [before] = database.rows("default", SETTINGS)
    planned = ("off", "off", "off", "force_generic_plan")

    with database.giving_way("default", pipelined=True, keep_plans=True):
        stored = database.send_prepared("default", SETTINGS)
    with database.giving_way("default", pipelined=True):
        database.keep_plans("default")
        read = database.send_prepared("default", SETTINGS)

    with transaction.atomic():  # the application's: its own plans are not ours to change
        database.keep_plans("default")
        assert database.rows("default", SETTINGS) == [before]

    assert database.by_kept_plan("default", SETTINGS, flush=False) == [("off", *planned)]
    assert database.by_kept_plan("default", SETTINGS) == [(before[0], *planned)]
    assert stored() == read() == [(before[0], *planned)]
    assert database.rows("default", SETTINGS) == [before]
    assert before[1:3] == ("on", "on")
    assert before[4] == "force_custom_plan"


def test_a_writer_does_not_keep_the_plans_of_a_small_table(
    small_tables, count_read, grow, make_article
):
    spaces.ensure(specs.get(SPEC), using="default")
    articles = [make_article() for _ in range(WARM + 2)]
    analyze()
    for article in articles[:WARM]:
        article.delete()
    grow()
    before = count_read()

    articles[WARM].delete()
    Article.objects.filter(pk=articles[WARM + 1].pk).update(published_time=None)

    assert count_read() - before < FEW
    assert Job.objects.count() > GROWN


def add_jobs(count: int, *, run_at: str = "now", first: int = 1) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, run_at) "
            "SELECT %s, n::text, %s FROM generate_series(%s, %s) AS n ON CONFLICT DO NOTHING",
            [SPEC, run_at, first, first + count - 1],
        )


def test_a_claim_does_not_read_all_that_is_due(worker_session, small_tables, count_read):
    """Its plan was kept from when few jobs lay in many pages, where a bitmap is thought cheaper."""
    wanted = {"limit": 256, "lease": jobs.Lease(1, 60), "using": "default"}
    add_jobs(5)
    # Not due, or the claims would read over what is dead of them.
    add_jobs(GROWN, run_at="2999-07-01")
    Job.objects.filter(run_at__year=2999).delete()
    analyze()
    jobs.claim([SPEC], **wanted)
    jobs.is_suspect_due([SPEC], using="default")
    add_jobs(GROWN)
    before = count_read()

    assert jobs.next_due_seconds([SPEC], using="default") <= 0
    assert not jobs.is_suspect_due([SPEC], using="default")
    assert len(jobs.claim([SPEC], **wanted)) == 256

    assert count_read() - before < 10 * 256


@pytest.mark.parametrize("history", HISTORIES)
def test_a_look_for_the_job_of_a_row_does_not_read_its_lane(
    history, small_tables, count_read, make_article, run_jobs
):
    """Where Postgres knows few jobs, the index of lanes seems to be as good as that of units."""
    spec = specs.get(SPEC)
    articles = [make_article() for _ in range(20)]
    run_jobs()
    for statement in HISTORIES[history]:
        connection.cursor().execute(statement)
    spec.embedding_model._base_manager.all().delete()
    rewrite(articles[:2])
    wanted = {"limit": 2, "lease": jobs.Lease(1, 60), "using": "default"}
    released, failed = jobs.claim([SPEC], **wanted)
    add_jobs(GROWN, run_at="2999-07-01", first=GROWN)
    [space] = spaces.live(spec, using="default")
    before = count_read()

    assert len(reconcile.missing(spec, [space], Q(), using="default")) == len(articles) - 2
    assert spaces.last_gap(spec, space, using="default")
    assert jobs.release(released, using="default") is Ending.REQUEUED
    assert jobs.fail(failed, "no", using="default") is Ending.FAILED

    assert count_read() - before < FEW


@pytest.mark.parametrize("known", ["at work", "empty"])
def test_storing_does_not_read_all_that_is_at_work_or_has_failed(
    known, worker_session, small_tables, count_read
):
    """Its plans were kept from when the index of these was nearly empty."""

    def store(claims: Sequence[jobs.Claim]) -> None:
        with database.giving_way("default", pipelined=True, keep_plans=True):
            assert len(jobs.hold(claims, using="default").ours) == len(claims)
            jobs.complete({claim.id: 1 for claim in claims}, keep_seconds=0, using="default")

    wanted = {"limit": 5, "lease": jobs.Lease(1, 60), "using": "default"}
    if known == "empty":
        analyze()
    add_jobs(50)
    claims = jobs.claim([SPEC], **wanted)
    if known == "at work":
        analyze()
    store(claims)
    claims = jobs.claim([SPEC], **wanted)
    with connection.cursor() as cursor:
        cursor.execute(FAILED_AND_AT_WORK)
    before = count_read()

    store(claims)

    assert count_read() - before < FEW
