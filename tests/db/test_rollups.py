from __future__ import annotations

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from pgembed_django.declaration import specs
from pgembed_django.models import Job, Rollup
from pgembed_django.ops import status
from pgembed_django.queue import rollups
from tests.app.models import Article
from tests.db.conftest import Maintenance

pytestmark = pytest.mark.django_db

KEY = "app.ArticleEmbedding"


def run(worker) -> None:
    while worker.step():
        pass
    worker.held.tally.flush(using="default")


def minute() -> Rollup:
    return Rollup.objects.get(spec=KEY, seconds=60)


def test_what_a_worker_completes_is_summed_up_by_minute_and_quarter(make_article, make_worker):
    make_article()
    make_article()

    run(make_worker())

    for sums in Rollup.objects.filter(spec=KEY):
        assert (sums.completed, sums.failed, sum(sums.waits)) == (2, 0, 2)
    assert sorted(Rollup.objects.values_list("seconds", flat=True)) == [60, 900]


def test_several_workers_add_to_the_same_sums(make_article, make_worker):
    for _ in range(3):
        make_article()
        run(make_worker())

    rows = Rollup.objects.filter(spec=KEY, seconds=900)
    assert sum(row.completed for row in rows) == 3
    assert sum(sum(row.waits) for row in rows) == 3
    assert all(len(row.waits) == len(rollups.BOUNDS) + 1 for row in rows)


def test_jobs_that_have_failed_for_good_are_counted(make_article, make_worker, provider):
    make_article()
    make_article(title="poison")
    make_article(title="trouble")

    run(make_worker())

    assert (minute().completed, minute().failed) == (1, 1)


def test_freshness_is_from_the_write_to_the_vectors_by_the_databases_clock(
    make_article, make_worker
):
    make_article()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgembed_job SET created_at = now() - interval '100 s'")

    run(make_worker())

    assert rollups.Point().add([minute()]).quantile(0.5) == pytest.approx(100, rel=0.25)


def test_only_writes_count_for_freshness(make_article, make_worker):
    make_article()
    Job.objects.update(kind=Job.Kind.BACKFILL, is_awaited=False)

    run(make_worker())

    assert minute().completed == 1
    assert sum(minute().waits) == 0


def test_a_write_that_meets_a_gaps_job_is_as_old_as_the_write(make_article):
    article = make_article()
    Job.objects.update(
        kind=Job.Kind.RECONCILER,
        is_awaited=False,
        priority=-1000,
        created_at="2026-01-01T00:00Z",
    )

    Article.objects.filter(pk=article.pk).update(title="Now")

    job = Job.objects.get()
    assert job.kind == "write"
    assert status.overview(using="default").at.timestamp() - job.created_at.timestamp() < 60


def test_a_write_that_meets_a_write_keeps_its_age(make_article):
    article = make_article()
    Job.objects.update(created_at="2026-01-01T00:00Z", attempts=1)

    Article.objects.filter(pk=article.pk).update(title="Now")

    assert Job.objects.get().created_at.year == 2026
    assert Job.objects.get().created_at.month == 1


def test_old_sums_are_pruned_each_width_in_its_time(make_article, make_worker):
    make_article()
    run(make_worker())
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgembed_rollup SET starts_at = starts_at - interval '3 hours'")

    Maintenance(
        {KEY: specs.get(KEY)},
        settings=make_worker().held.settings,
    ).prune()

    assert list(Rollup.objects.values_list("seconds", flat=True)) == [900]


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_series_of_an_hour_and_of_a_day_have_no_gaps(
    make_article, make_worker, settings, use_tz
):
    settings.USE_TZ = use_tz
    make_article()
    run(make_worker())
    now = status.overview(using="default").at

    hour = status.series(using="default", now=now)
    day = status.series(using="default", hours=24, now=now)

    assert (len(hour), len(day)) == (60, 96)
    assert sum(point.completed for point in hour) == 1
    assert sum(point.completed for point in day) == 1
    assert day[-1].quantile(0.99) is not None
    assert hour[0].quantile(0.5) is None
    assert hour[-1].at.timestamp() <= now.timestamp()


def test_nothing_counted_is_nothing_written(django_assert_num_queries):
    with django_assert_num_queries(0):
        rollups.Tally().flush(using="default")


@given(st.lists(st.floats(0.001, 50_000), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_off_by_a_bucket_at_most(waits: list[float], share: float) -> None:
    tally = rollups.Tally()
    for wait in waits:
        tally.completed(KEY, waited=wait)
    [sums] = tally._sums.values()
    exact = sorted(waits)[max(0, -int(-share * len(waits) // 1) - 1)]

    found = sums.quantile(share)

    assert found is not None
    assert exact / 2**0.5 - 0.005 <= found <= exact * 2**0.5 + 0.005


def test_waits_beyond_the_last_bound_are_counted_and_nothing_has_no_quantile() -> None:
    tally = rollups.Tally()
    tally.completed(KEY, waited=1e9)
    [sums] = tally._sums.values()

    assert sums.quantile(0.5) == rollups.BOUNDS[-1]
    assert rollups.Point().quantile(0.5) is None
