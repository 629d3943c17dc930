"""Sessions that have known the tables small, after a bulk load and before the next ANALYZE.

Postgres keeps a plan that it made for all parameters until it has new statistics. One that
was made for ten jobs reads all of them, and then all of a million.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from pgembed_django import database, jobs, specs
from pgembed_django.models import Job
from tests.app.models import Article
from tests.db.conftest import claim
from tests.db.test_plans import tuples_read

pytestmark = pytest.mark.django_db

WARM = 12
"""Postgres tries five times before it keeps a plan; psycopg sends some unprepared first."""

GROWN = 20_000
BATCH = 100

GROW = """
    INSERT INTO pgembed_job (spec, source_pk, run_at)
    SELECT 'app.ArticleEmbedding', -n, now()
    FROM generate_series(1, %s) AS n
"""


@pytest.fixture
def worker_session(db: None) -> Iterator[None]:
    database.settle_session("default", is_direct=True)
    yield
    database.unsettle_sessions("default")
    connection.connection.prepare_threshold = None


@pytest.fixture
def small_tables(db: None) -> None:
    """Rows that tests before have rolled back make a table large."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgembed_job, pgembed_staging CASCADE")


def analyze() -> None:
    """Let Postgres know how small the tables are."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgembed_job, pgembed_staging")


def grow() -> None:
    with connection.cursor() as cursor:
        cursor.execute(GROW, [GROWN])


def work(units: int) -> None:
    """Send what a worker sends all day, for so many units."""
    known = [spec.key for spec in specs.all()]
    held = claim(limit=units)
    assert len(held) == units
    jobs.special_due(known, using="default")
    jobs.next_due_seconds(known, using="default")
    jobs.heartbeat(held, lease_seconds=60, using="default")
    assert len(jobs.hold(held, using="default").ours) == units
    jobs.complete({one.id: 1 for one in held}, keep_seconds=60, using="default")()


def test_a_worker_does_not_keep_the_plans_of_a_small_table(
    worker_session, small_tables, make_article
):
    for _ in range(WARM):
        make_article()
    analyze()
    for _ in range(WARM):
        work(1)
    grow()
    before = tuples_read()

    work(BATCH)

    # Not once for each unit, and not in each statement.
    assert tuples_read() - before < 2 * GROWN


def test_a_writer_does_not_keep_the_plans_of_a_small_table(small_tables, make_article):
    articles = [make_article() for _ in range(WARM + 2)]
    analyze()
    for article in articles[:WARM]:
        article.delete()
    grow()
    before = tuples_read()

    articles[WARM].delete()
    Article.objects.filter(pk=articles[WARM + 1].pk).update(published_time=None)

    assert tuples_read() - before < BATCH
    assert Job.objects.count() > GROWN
