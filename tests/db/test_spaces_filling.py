"""A space that is being built is switched to as soon as it is full, and the looks are cheap."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection
from django.db.models import Q
from django.db.models.functions import Now
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from pgembed_django import spaces
from pgembed_django.core import locks
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space
from pgembed_django.ops import status
from pgembed_django.spaces import indexes, reconcile, upkeep
from pgembed_django.spaces.upkeep import (
    FIRST_FILL,
    HELD_UP_SECONDS,
    INDEXED_SECONDS,
    RESTS,
    SCAN_SECONDS,
    Filling,
)
from tests import played
from tests.app.models import Article, ArticleEmbedding
from tests.db.conftest import backend_pid

pytestmark = pytest.mark.django_db

KEY = "app.ArticleEmbedding"
RECONCILE_SECONDS = 12.0
LOOK = " DESC LIMIT 1"
"""In the statement that looks for the last gap, and in no other."""


@pytest.fixture
def spec() -> specs.Spec:
    return specs.get(KEY)


@pytest.fixture
def clock() -> played.Clock:
    return played.Clock()


@pytest.fixture
def filling(clock: played.Clock) -> Filling:
    return Filling(using="default", reconcile_seconds=RECONCILE_SECONDS, clock=clock)


@pytest.fixture
def swap(spec, make_article, run_jobs):
    """Fill a space with three rows, and open another. Its rows are not queued yet."""
    for _ in range(3):
        make_article()
    run_jobs()
    backend = "pgembed_django.providers.deterministic.DeterministicProvider"
    another = {"BACKEND": backend, "MODEL": "another", "DIMENSIONS": 32}
    with override_settings(PGEMBED_PROVIDERS={"default": another}):
        _, building = spaces.ensure(spec, using="default")
        yield building


def fill(spec: specs.Spec, run_jobs) -> None:
    reconcile.reconcile_once(spec, using="default")
    run_jobs()


def state(space: Space) -> str:
    return Space.objects.get(pk=space.pk).state


def test_a_full_space_is_switched_to_at_the_next_look(spec, swap, run_jobs, filling):
    assert filling.look(spec, swap) == 3
    assert state(swap) == "building"
    run_jobs()

    assert filling.look(spec, swap) == 0
    assert state(swap) == "active"


def test_a_look_costs_one_row_while_that_row_is_a_gap(spec, swap, filling):
    filling.look(spec, swap)
    last = Article.objects.order_by("pk").last()

    with CaptureQueriesContext(connection) as captured:
        filling.look(spec, swap)

    [look] = [query["sql"] for query in captured if LOOK in query["sql"]]
    assert f'"app_article"."id" = {last.pk}' in look


def fail_all() -> None:
    for article in Article.objects.all():
        Job.objects.create(
            spec=KEY,
            source_pk=str(article.pk),
            status="failed",
            last_error="refused",
            finished_at="2026-01-01T00:00Z",
        )


def test_rows_are_not_read_again_and_again_while_failures_hold_up_a_space(
    spec, swap, filling, clock
):
    fail_all()
    filling.look(spec, swap)
    clock.now += HELD_UP_SECONDS - 1

    with CaptureQueriesContext(connection) as captured:
        filling.look(spec, swap)
    assert state(swap) == "building"
    assert len(captured) == 0

    Job.objects.filter(status="failed").update(status="dismissed")
    clock.now += 1
    filling.look(spec, swap)
    assert state(swap) == "active"


def test_failures_that_have_become_few_in_a_growing_table_hold_nothing_up(
    spec, swap, run_jobs, filling, clock
):
    fail_all()
    filling.look(spec, swap)
    Article.objects.bulk_create(
        Article(title="short", published_time="2026-01-01T00:00Z") for _ in range(300)
    )
    run_jobs()
    assert state(swap) == "building"

    clock.now += HELD_UP_SECONDS
    filling.look(spec, swap)
    assert state(swap) == "active"


def test_a_look_that_took_long_is_followed_by_a_rest(spec, swap, run_jobs, filling, clock):
    def slow(execute, statement, *rest):
        clock.now += 3 * (LOOK in statement)
        return execute(statement, *rest)

    with connection.execute_wrapper(slow):
        filling.look(spec, swap)
    run_jobs()
    clock.now += 3 * RESTS - 1
    filling.look(spec, swap)
    assert state(swap) == "building"

    clock.now += 1
    filling.look(spec, swap)
    assert state(swap) == "active"


@pytest.mark.django_db(transaction=True)  # the other one has a connection
def test_one_worker_at_a_time_looks_whether_a_space_is_full(
    spec, swap, run_jobs, filling, second_connection
):
    fill(spec, run_jobs)
    lock = {"name": upkeep.LOCK, "number": swap.pk}
    second_connection.execute(locks.TRY, lock)
    filling.look(spec, swap)
    assert state(swap) == "building"

    second_connection.execute(locks.UNLOCK, lock)
    filling.look(spec, swap)
    assert state(swap) == "active"


@pytest.mark.django_db(transaction=True)  # its connection is killed
def test_a_look_that_loses_its_connection_says_why(swap, connect):
    killer = connect(autocommit=True)

    def look() -> None:
        with locks.session_lock(upkeep.LOCK, swap.pk, using="default"):
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [backend_pid()])
            spaces.prunable(retired_for_seconds=0, using="default")

    with pytest.raises(OperationalError, match="terminating connection"):
        look()
    connection.close()


def test_a_row_that_has_just_been_written_does_not_hold_up_a_switch(
    spec, swap, run_jobs, make_article, filling
):
    fill(spec, run_jobs)
    make_article()  # under a steady load there always is one

    filling.look(spec, swap)

    assert state(swap) == "active"


def test_a_written_row_that_a_search_would_miss_does_hold_it_up(spec, swap, run_jobs, filling):
    fill(spec, run_jobs)
    row = Article.objects.first()
    ArticleEmbedding.objects.filter(source=row, space=swap).delete()
    Article.objects.filter(pk=row.pk).update(title="Changed")
    assert Job.objects.filter(source_pk=str(row.pk), status="pending").exists()

    filling.look(spec, swap)
    assert state(swap) == "building"

    run_jobs()
    filling.look(spec, swap)
    assert state(swap) == "active"


def test_a_new_row_that_nobody_is_at_holds_it_up(spec, swap, run_jobs, make_article, filling):
    fill(spec, run_jobs)
    row = make_article()
    Job.objects.filter(source_pk=str(row.pk)).delete()

    filling.look(spec, swap)

    assert state(swap) == "building"


def test_what_a_scan_has_passed_over_is_found_without_waiting_for_the_next(
    spec, swap, run_jobs, filling, clock
):
    fill(spec, run_jobs)

    def lose_one() -> None:
        ArticleEmbedding.objects.filter(source=Article.objects.first(), space=swap).delete()
        Job.objects.filter(status="pending").delete()

    lose_one()
    assert filling.look(spec, swap) == 1
    lose_one()
    clock.now += SCAN_SECONDS - 1
    assert filling.look(spec, swap) == 0  # not over and over
    clock.now += 1
    assert filling.look(spec, swap) == 1


def test_a_scan_that_takes_turns_with_the_work_is_brought_to_its_end_at_once(
    spec, swap, run_jobs, filling, monkeypatch
):
    fill(spec, run_jobs)
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 1)
    reconcile.reconcile_once(spec, using="default", scans=["missing"], quiet_seconds=0)
    ArticleEmbedding.objects.filter(source=Article.objects.order_by("pk").last()).delete()
    Job.objects.filter(status="pending").delete()

    assert filling.look(spec, swap) == 1


def test_no_scan_is_begun_while_a_job_is_on_its_way(spec, swap, filling, clock):
    filling.look(spec, swap)
    clock.now += RECONCILE_SECONDS
    with CaptureQueriesContext(connection) as queries:
        assert filling.look(spec, swap) == 0

    assert not any(
        "pgembed_scancursor" in query["sql"] and "UPDATE" in query["sql"] for query in queries
    )


@pytest.mark.parametrize("scan", ["missing", "orphaned", "full", "counted"])
def test_gaps_are_looked_up_whatever_the_statistics_say(spec, swap, scan):
    """The planner takes a space that is just being filled for an empty one."""
    with connection.cursor() as cursor:  # as VACUUM has left it
        cursor.execute(
            "UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE relname = 'app_articleembedding'"
        )
    with CaptureQueriesContext(connection) as queries:
        if scan == "missing":
            reconcile.missing(
                spec, spaces.live(spec, using="default"), Q(pk__gt=0), using="default"
            )
        elif scan == "orphaned":
            list(reconcile.orphaned(spec, Q(source_id__gt=0), using="default"))
        elif scan == "full":
            spaces.last_gap(spec, swap, using="default")
        else:
            status.overview(using="default", specs=[spec], is_exact=True)
    plans = []
    for query in queries:
        if query["sql"].startswith("SELECT") and "EXISTS" in query["sql"]:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN " + query["sql"].replace("%", "%%"))
                plans.append("\n".join(line for (line,) in cursor.fetchall()))

    assert plans
    for plan in plans:
        assert "Anti Join" not in plan
        assert "Semi Join" not in plan
        assert "hashed" not in plan


@pytest.mark.django_db(transaction=True)  # indexes are built concurrently
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_the_first_space_gets_its_indexes_once_it_is_full(spec, make_article, run_jobs, filling):
    make_article()
    run_jobs()
    make_article()
    space = spaces.active(spec, using="default")
    filling.look(spec, space)
    assert not indexes.is_complete(spec, space, using="default")

    run_jobs()
    filling.look(spec, space)
    assert indexes.is_complete(spec, space, using="default")
    indexes.drop(spec, space, using="default")


@pytest.mark.django_db(transaction=True)  # indexes are built concurrently
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_a_fill_that_takes_long_is_not_waited_for(spec, make_article, run_jobs, filling):
    make_article()
    run_jobs()
    make_article()
    space = spaces.active(spec, using="default")
    Space.objects.filter(pk=space.pk).update(activated_at=Now() - FIRST_FILL)

    filling.look(spec, space)

    assert indexes.is_complete(spec, space, using="default")
    indexes.drop(spec, space, using="default")


def test_a_worker_learns_of_a_new_space_from_the_first_row_that_lacks_it(
    spec, make_worker, make_article
):
    worker = make_worker()  # whose clock stands still
    row = make_article()
    worker.step()
    backend = "pgembed_django.providers.deterministic.DeterministicProvider"
    another = {"BACKEND": backend, "MODEL": "another", "DIMENSIONS": 32}
    with override_settings(PGEMBED_PROVIDERS={"default": another}):
        opened = spaces.ensure(spec, using="default")

    for _ in range(4):  # given back, planned anew, embedded, stored
        worker.step()

    rows = ArticleEmbedding.objects.filter(source=row, embedding__isnull=False)
    assert {chunk.space_id for chunk in rows} == {space.pk for space in opened}


def test_a_space_that_lacks_no_index_is_left_alone_for_a_while(
    spec, make_article, run_jobs, filling, clock
):
    make_article()
    run_jobs()
    [active] = spaces.live(spec, using="default")

    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            filling.look(spec, active)
        return len(captured)

    assert statements() > 0
    clock.now += INDEXED_SECONDS - 1
    assert statements() == 0
    clock.now += 1
    assert statements() > 0
