from __future__ import annotations

import dataclasses
import threading

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from pgembed_django import conf, providers, spaces
from pgembed_django.core import locks
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.embedding.units import READ_SECONDS
from pgembed_django.models import Job, Space, StagedVector, Worker
from pgembed_django.ops import status
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import fusion, query_vectors, search, statistics, targets
from pgembed_django.spaces import indexes, reconcile, stored
from pgembed_django.testing import assert_fresh
from tests.app.models import Article, ArticleEmbedding
from tests.db.conftest import Maintenance, Writer, backend_pid, make_due

KEY = "app.ArticleEmbedding"
BACKEND = "pgembed_django.providers.deterministic.DeterministicProvider"


def provider(
    *,
    model: str = "bag-of-words",
    dimensions: int = 64,
    backend: str = BACKEND,
    **options: object,
) -> object:
    config = {"BACKEND": backend, "MODEL": model, "DIMENSIONS": dimensions, "OPTIONS": options}
    return override_settings(PGEMBED_PROVIDERS={"default": config})


def picky_provider(*, max_characters: int, model: str = "another") -> object:
    backend = "tests.providers.PickyProvider"
    return provider(model=model, backend=backend, max_characters=max_characters)


@pytest.fixture
def spec() -> specs.Spec:
    found = specs.get(KEY)
    assert found is not None
    return found


@pytest.fixture
def maintain(spec: specs.Spec):
    def once(**settings: object) -> Maintenance:
        return Maintenance(
            {KEY: spec},
            settings=dataclasses.replace(conf.current(), **settings),
        )

    return once


@pytest.fixture
def fill(maintain, run_jobs):
    """Find what a building space lacks, embed it, and switch where it is full."""

    def fill() -> Maintenance:
        maintain().upkeep.reconcile()
        run_jobs()
        watching = maintain()
        watching.upkeep.build()
        return watching

    return fill


@pytest.fixture
def retired(spec: specs.Spec, make_article, run_jobs, fill) -> Space:
    """A space with an article's vector, after the switch to another model's."""
    make_article()
    run_jobs()
    old = spaces.active(spec, using="default")
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        fill()
    return old


def states() -> list[tuple[str, str]]:
    return list(Space.objects.filter(spec=KEY).order_by("pk").values_list("model", "state"))


@pytest.mark.django_db
def test_the_first_space_is_active_at_once(spec):
    [space] = spaces.ensure(spec, using="default")

    assert space.state == "active"
    assert spaces.ensure(spec, using="default") == [space]


@pytest.mark.django_db
def test_a_new_model_is_filled_behind_the_active_one_and_then_switched_to(
    spec, make_article, run_jobs, maintain
):
    article = make_article()
    run_jobs()
    old = spaces.active(spec, using="default")
    with provider(model="another", dimensions=32):
        spaces.ensure(spec, using="default")
        assert spaces.active(spec, using="default") == old
        maintain().upkeep.build()
        assert states() == [("bag-of-words", "active"), ("another", "building")]

        maintain().upkeep.reconcile()
        run_jobs()
        [found] = search(Article, article.title)  # still with the old model
        assert found == article
        maintain().upkeep.build()

        assert states() == [("bag-of-words", "retired"), ("another", "active")]
        [found] = search(Article, article.title)
        assert found == article


@pytest.mark.django_db
def test_live_writes_are_kept_fresh_in_both_spaces(spec, make_article, run_jobs):
    article = make_article()
    run_jobs()
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        Article.objects.filter(pk=article.pk).update(title="Changed")
        run_jobs()

    rows = ArticleEmbedding.objects.filter(source=article, embedding__isnull=False)
    assert [("Changed" in row.passage) for row in rows] == [True, True]


@pytest.mark.django_db
def test_a_retired_declaration_does_not_reopen_its_space(spec, make_article, run_jobs, maintain):
    spaces.ensure(spec, using="default")
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        maintain().upkeep.build()

    spaces.ensure(spec, using="default")  # an old worker, with the old settings

    assert states() == [("bag-of-words", "retired"), ("another", "active")]


@pytest.mark.django_db
def test_a_third_model_takes_the_place_of_the_one_being_built(spec, make_article, run_jobs):
    make_article()
    run_jobs()
    for model in ("second", "third"):
        with provider(model=model):
            spaces.ensure(spec, using="default")

    assert states() == [("bag-of-words", "active"), ("second", "retired"), ("third", "building")]


@pytest.mark.django_db
def test_a_reopened_space_is_topped_up_before_it_is_searched(
    spec, make_article, run_jobs, maintain, fill
):
    article = make_article(title="Before")
    run_jobs()
    [old] = Space.objects.filter(spec=KEY)
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        fill()
        Article.objects.filter(pk=article.pk).update(title="After")
        run_jobs()

        assert spaces.reopen(old, using="default")
        maintain().upkeep.build()
        assert Space.objects.get(pk=old.pk).state == "building"  # its text is an old one

        fill()

        assert spaces.active(spec, using="default") == old
        [row] = ArticleEmbedding.objects.filter(source=article, space=old)
        assert "After" in row.passage


@pytest.mark.django_db
@pytest.mark.parametrize(("refused", "others"), [(1, 2), (2, 198)])
def test_a_few_failed_units_do_not_hold_up_a_switch(
    make_article, run_jobs, spec, fill, refused, others
):
    for _ in range(refused):
        make_article(title="x" * 80)
    Article.objects.bulk_create(
        Article(title="short", published_time="2026-01-01T00:00Z") for _ in range(others)
    )
    run_jobs()
    with picky_provider(max_characters=60):
        spaces.ensure(spec, using="default")
        fill()

    assert states() == [("bag-of-words", "retired"), ("another", "active")]
    assert Job.objects.filter(status="failed").count() == refused


@pytest.mark.django_db
def test_one_failed_unit_is_not_said_to_hold_up_a_switch(make_article, run_jobs, spec, maintain):
    make_article(title="x" * 80)
    make_article(title="short")
    run_jobs()
    with picky_provider(max_characters=60):
        spaces.ensure(spec, using="default")
        maintain().upkeep.reconcile()
        run_jobs()

        [seen] = status.overview(using="default", specs=[spec]).specs

    assert seen.building
    assert "1 row has failed" in seen.verdict.reason
    assert "is not searched" not in seen.verdict.reason


@pytest.mark.django_db
@pytest.mark.parametrize("way", ["dismiss", "activate", "retry"])
def test_a_model_that_refuses_the_rows_does_not_replace_one_that_finds_them(
    make_article, run_jobs, spec, fill, caplog, way
):
    for _ in range(3):
        make_article(title="x" * 80)
    run_jobs()
    old = spaces.active(spec, using="default")
    with picky_provider(max_characters=60):
        space = spaces.ensure(spec, using="default")[-1]
        watching = fill()
        watching.once()
    assert spaces.active(spec, using="default") == old
    [told] = [one for one in caplog.records if one.event == "pgembed.space_held_up"]
    assert "missing in app.ArticleEmbedding: another (64) to search it: 3." in told.getMessage()
    assert f"embed_spaces activate {space.pk}" in told.getMessage()
    [seen] = status.overview(using="default", specs=[spec]).specs
    assert "3 rows have failed" in seen.verdict.reason
    assert seen.verdict.reason.endswith("is not searched until they are fixed or dismissed.")

    with picky_provider(max_characters=60 if way != "retry" else 1000):
        if way == "activate":
            call_command("embed_spaces", "activate", str(space.pk))
        else:
            call_command(f"embed_{way}", "--all", "--yes")
        fill()

    assert spaces.active(spec, using="default") == space


@pytest.mark.django_db
def test_rows_that_the_searched_space_lacks_too_do_not_hold_up_a_switch(
    make_article, run_jobs, spec, fill
):
    make_article(title="x" * 80)
    with picky_provider(max_characters=60, model="bag-of-words"):
        run_jobs()
    with picky_provider(max_characters=60):
        spaces.ensure(spec, using="default")
        fill()

    assert states()[-1] == ("another", "active")


@pytest.mark.django_db(transaction=True)
def test_a_retired_space_is_pruned_after_its_grace_time(spec, make_article, run_jobs, maintain):
    make_article()
    run_jobs()
    old = spaces.active(spec, using="default")
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        maintain().upkeep.reconcile()
        run_jobs()
        with override_settings(PGEMBED_INDEX_ROWS=1):
            indexes.build(spec, old, using="default")
        maintain().upkeep.build()
        StagedVector.objects.bulk_create(
            StagedVector(spec=spec.key, source_pk="1", space=one, chunk_digest=b"", embedding=[1])
            for one in [*spaces.live(spec, using="default"), old]
        )

        maintain(retired_seconds=3600).upkeep.prune_spaces()
        assert ArticleEmbedding.objects.filter(space=old).exists()
        maintain(retired_seconds=0).upkeep.prune_spaces()

    assert not ArticleEmbedding.objects.filter(space=old).exists()
    assert StagedVector.objects.get().space == spaces.active(spec, using="default")
    assert vector_indexes(old) == []
    assert ArticleEmbedding.objects.exists()
    assert Space.objects.get(pk=old.pk).pruned_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_pruned_space_is_begun_anew_when_a_person_asks(spec, retired, maintain, caplog, fill):
    old = retired
    maintain(retired_seconds=0).upkeep.prune_spaces()
    assert states() == [("bag-of-words", "retired"), ("another", "active")]

    spaces.ensure(spec, using="default")
    spaces.ensure(spec, using="default")
    [told] = [one for one in caplog.records if one.event == "pgembed.space_not_reopened"]
    assert f"embed_spaces rollback {old.pk}" in told.getMessage()
    assert states()[-1] == ("another", "active")

    begun = spaces.reopen(old, using="default")

    assert begun.pk != old.pk
    assert spaces.active(spec, using="default").model == "another"
    assert spaces.ensure(spec, using="default")[-1] == begun
    fill()
    assert spaces.active(spec, using="default") == begun
    assert ArticleEmbedding.objects.filter(space=begun, source=Article.objects.get()).exists()
    assert not ArticleEmbedding.objects.filter(space=old).exists()


@pytest.mark.django_db
def test_a_space_that_another_worker_has_just_opened_is_not_told_as_retired(spec, caplog):
    others: list[Space] = []

    def open_meanwhile(execute, sql, *rest):
        result = execute(sql, *rest)
        if not others and sql.startswith("SELECT") and "pgembed_space" in sql:
            others.append(Space())
            others[:] = spaces.ensure(spec, using="default")
        return result

    with connection.execute_wrapper(open_meanwhile):
        assert spaces.ensure(spec, using="default") == others

    assert states() == [("bag-of-words", "active")]
    assert "pgembed.space_not_reopened" not in [record.event for record in caplog.records]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_full", [False, True])
def test_a_pruned_space_is_begun_anew_once(retired, maintain, fill, is_full):
    maintain(retired_seconds=0).upkeep.prune_spaces()
    begun = spaces.reopen(retired, using="default")
    if is_full:
        fill()
    before = states()

    assert spaces.reopen(retired, using="default") is None

    assert states() == before
    retired.refresh_from_db()
    assert spaces.renewed(retired, using="default") == begun
    assert spaces.renewed(begun, using="default") is None


@pytest.mark.django_db(transaction=True)
def test_a_space_that_was_reopened_while_it_was_pruned_is_not_taken_for_pruned_once_it_is_retired(
    spec, retired, monkeypatch
):
    """A pass over a space that is not retired ends at once, and finds nothing to delete."""
    prune = stored.prune

    def reopened_meanwhile(*arguments, first_only, **options):
        if first_only:
            spaces.reopen(retired, using="default")
        last = prune(*arguments, first_only=first_only, **options)
        if not first_only:
            spaces.cancel(spec.key, using="default")
        return last

    monkeypatch.setattr(stored, "prune", reopened_meanwhile)
    assert not spaces.prune(spec, retired, using="default")
    monkeypatch.undo()

    retired.refresh_from_db()
    assert (retired.state, retired.pruned_at) == ("retired", None)
    assert spaces.prune(spec, retired, using="default")
    assert not ArticleEmbedding.objects.filter(space=retired).exists()


@pytest.mark.django_db
def test_a_space_that_is_reopened_is_pruned_no_further(spec, retired):
    assert spaces.prunable(retired_for_seconds=0, using="default") == [retired]
    spaces.reopen(retired, using="default")

    assert (
        stored.prune(spec, retired.pk, after=0, limit=9, first_only=True, using="default") is None
    )
    assert not spaces.mark_pruned(retired, using="default")

    assert ArticleEmbedding.objects.filter(space=retired).exists()
    retired.refresh_from_db()
    assert retired.pruned_at is None


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_is_pruned_waits_for_who_reopens_its_space(spec, retired, writer: Writer):
    reopening = "UPDATE pgembed_space SET state = 'building' WHERE id = %s"
    writer.connection.execute(reopening, [retired.pk])
    writer.start("COMMIT", once_waits=backend_pid())

    assert (
        stored.prune(spec, retired.pk, after=0, limit=9, first_only=True, using="default") is None
    )
    writer.end()

    assert ArticleEmbedding.objects.filter(space=retired).exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("dimensions", [64, 2001, 4001])
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_indexes_are_built_for_every_width(spec, make_article, run_jobs, maintain, dimensions):
    with provider(dimensions=dimensions):
        make_article()
        run_jobs()
        maintain().upkeep.build()
        space = spaces.active(spec, using="default")

        assert indexes.is_complete(spec, space, using="default")
        assert indexes.build(spec, space, using="default") == 0
        indexes.drop(spec, space, using="default")


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_an_index_that_a_crash_left_invalid_is_built_anew(spec, make_article, run_jobs, maintain):
    make_article()
    run_jobs()
    maintain().upkeep.build()
    space = spaces.active(spec, using="default")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
            [indexes.vector_name(space)],
        )
    assert not indexes.is_complete(spec, space, using="default")

    assert indexes.build(spec, space, using="default") == 1
    assert indexes.is_complete(spec, space, using="default")


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
@pytest.mark.parametrize("workers", [0, 3])
def test_an_index_is_built_by_as_many_processes_as_the_setting_says(
    spec, make_article, run_jobs, workers
):
    make_article()
    run_jobs()
    space = spaces.active(spec, using="default")
    with override_settings(PGEMBED_INDEX_WORKERS=workers):
        indexes.build(spec, space, using="default")

    with connection.cursor() as cursor:
        cursor.execute("SHOW max_parallel_maintenance_workers")
        assert cursor.fetchone() == (str(workers),)
        cursor.execute("RESET max_parallel_maintenance_workers")
    indexes.drop(spec, space, using="default")


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_rows_are_only_counted_for_an_index_that_is_not_there(spec, make_article, run_jobs):
    make_article()
    run_jobs()
    space = spaces.active(spec, using="default")

    def counts() -> int:
        with CaptureQueriesContext(connection) as queries:
            indexes.build(spec, space, using="default")
        return sum("AS counted" in query["sql"] for query in queries)

    assert counts() == 1
    assert counts() == 0
    indexes.drop(spec, space, using="default")


def vector_indexes(space: Space) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname FROM pg_indexes"
            " WHERE indexdef LIKE '%%USING hnsw%%' AND starts_with(indexname, %s)",
            [f"pgembed_{space.pk}_"],
        )
        return [name for (name,) in cursor.fetchall()]


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_an_index_of_another_type_takes_the_place_of_the_one_before(
    spec, make_article, run_jobs, maintain
):
    article = make_article()
    run_jobs()
    maintain().upkeep.build()
    space = spaces.active(spec, using="default")
    before = indexes.vector_name(space)

    with override_settings(PGEMBED_INDEX_TYPE="halfvec"):
        assert not indexes.is_complete(spec, space, using="default")
        survey = statistics.survey(targets.of(Article, name=None), "text")
        assert survey.vector_index.kind.name == "vector"  # until the other is built

        maintain().upkeep.build()

        assert indexes.vector_name(space) != before
        assert vector_indexes(space) == [indexes.vector_name(space)]
        survey = statistics.survey(targets.of(Article, name=None), "text")
        assert survey.vector_index.kind.name == "halfvec"
        [found] = search(Article, article.title)
        assert found == article
    indexes.drop(spec, space, using="default")
    assert vector_indexes(space) == []


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_a_build_that_has_to_wait_does_not_run_into_a_timeout(
    spec, make_article, run_jobs, connect, second_connection
):
    make_article()
    run_jobs()
    space = spaces.active(spec, using="default")
    second_connection.execute("UPDATE app_articleembedding SET was_cut = was_cut")
    watching = connect()
    watching.autocommit = True
    waits_for_long = """
        SELECT FROM pg_stat_activity
        WHERE query LIKE '%CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
          AND query_start < clock_timestamp() - interval '300 ms'
    """

    def end_the_wait() -> None:
        looks = (watching.execute(waits_for_long).rowcount for _ in range(100_000))
        next(look for look in looks if look)
        second_connection.commit()

    thread = threading.Thread(target=end_the_wait)
    thread.start()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '200ms'")
    try:
        assert indexes.build(spec, space, using="default") == 2
    finally:
        thread.join()
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout")
        indexes.drop(spec, space, using="default")


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_of_all_workers_one_builds_an_index(spec, make_article, run_jobs, second_connection):
    make_article()
    run_jobs()
    space = spaces.active(spec, using="default")
    second_connection.execute(locks.TRY, {"name": indexes.LOCK, "number": 0})

    assert indexes.build(spec, space, using="default") == 0
    assert not indexes.drop(spec, space, using="default")

    second_connection.execute("SELECT pg_advisory_unlock_all()")
    second_connection.commit()
    assert indexes.build(spec, space, using="default") == 2
    indexes.drop(spec, space, using="default")


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_a_build_that_loses_a_deadlock_is_tried_again(
    spec, make_article, run_jobs, connect, second_connection
):
    make_article()
    run_jobs()
    space = spaces.active(spec, using="default")
    table = "app_articleembedding"
    # It waits for this writer, which then wants the table that it holds.
    second_connection.execute(f"UPDATE {table} SET was_cut = was_cut")
    second_connection.execute("SET deadlock_timeout = '1h'")  # the other one finds it
    watching = connect()
    watching.autocommit = True
    is_waiting = """
        SELECT FROM pg_stat_activity
        WHERE query LIKE '%CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
    """

    def want_the_table() -> None:
        looks = (watching.execute(is_waiting).rowcount for _ in range(100_000))
        next(look for look in looks if look)
        second_connection.execute(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")
        second_connection.commit()

    thread = threading.Thread(target=want_the_table)
    thread.start()
    with connection.cursor() as cursor:
        cursor.execute("SET deadlock_timeout = '500ms'")
    try:
        assert indexes.build(spec, space, using="default") < 2
    finally:
        thread.join()
        with connection.cursor() as cursor:
            cursor.execute("RESET deadlock_timeout")

    indexes.build(spec, space, using="default")
    assert indexes.is_complete(spec, space, using="default")
    indexes.drop(spec, space, using="default")


@pytest.mark.django_db(transaction=True)
@override_settings(PGEMBED_INDEX_ROWS=1)
def test_a_build_holds_the_oldest_snapshot_back_until_it_ends(spec, connect):
    """As docs/how-it-works.md says. Should Postgres ever do better, the page is to be mended."""
    [space] = spaces.ensure(spec, using="default")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            """
            INSERT INTO app_articleembedding (
                source_id, space_id, position, start_offset, end_offset,
                passage, chunk_digest, text_digest, embedding
            )
            SELECT n, %s, 0, 0, 1, '', '', '',
                ARRAY(SELECT random() - 0.5 + 0 * n FROM generate_series(1, 64))::vector
            FROM generate_series(1, 5000) AS n
            """,
            [space.pk],
        )
    watching = connect()
    watching.autocommit = True
    is_over = threading.Event()
    held: list[bool] = []

    def watch() -> None:
        while not is_over.is_set():
            held.extend(
                has_snapshot
                for (has_snapshot,) in watching.execute(
                    "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity"
                    " WHERE query LIKE '%CREATE INDEX CONCURRENTLY%hnsw%' AND state = 'active'"
                    " AND pid <> pg_backend_pid()"
                )
            )

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        indexes.build(spec, space, using="default")
    finally:
        is_over.set()
        thread.join()
        indexes.drop(spec, space, using="default")

    assert sum(held) > len(held) / 2 > 0


@pytest.mark.django_db
def test_vectors_are_not_compressed_in_vain():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attstorage FROM pg_attribute"
            " WHERE attrelid = 'app_articleembedding'::regclass AND attname = 'embedding'"
        )
        assert cursor.fetchone() == ("e",)  # EXTERNAL


@pytest.mark.django_db(transaction=True)
def test_a_job_planned_for_a_space_that_a_flush_has_deleted_waits_for_the_next_one(
    spec, make_article, make_worker
):
    article = make_article(title="Database")
    worker = make_worker()
    worker.step()
    Space.objects.all().delete()

    while worker.step():
        pass

    assert not ArticleEmbedding.objects.exists()
    assert Job.objects.get().attempts == 0
    spaces.ensure(spec, using="default")
    make_due()
    worker.handler.live.outdate()
    while worker.step():
        pass
    [space] = spaces.live(spec, using="default")
    assert {chunk.space_id for chunk in ArticleEmbedding.objects.filter(source=article)} == {
        space.pk
    }


@pytest.mark.django_db(transaction=True)
def test_a_worker_soon_embeds_what_is_written_after_a_flush(
    maintain, make_article, make_worker, clock
):
    worker = make_worker()
    worker.step()
    call_command("flush", interactive=False, verbosity=0)
    article = make_article(title="Database")

    maintain().upkeep.build()
    clock.now += READ_SECONDS
    while worker.step():
        pass

    assert_fresh(article)


@pytest.mark.django_db(transaction=True)
def test_a_job_planned_before_a_space_was_opened_does_not_leave_a_gap_in_it(
    spec, make_article, run_jobs, maintain
):
    from pgembed_django.queue.work import Work

    article = make_article(title="Before")
    run_jobs()
    pipeline = Work(
        EmbeddingHandler({KEY: spec}, using="default"),
        using="default",
        worker_id=1,
        settings=conf.current(),
        inline=True,
    )
    Article.objects.filter(pk=article.pk).update(title="After")
    pipeline.claim()
    pipeline.handler.planner.step()  # with one space
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        while pipeline.step(claim=False):
            pass
        assert Job.objects.filter(status="pending").count() == 1  # given back, to be planned anew

        run_jobs()

    assert ArticleEmbedding.objects.filter(passage__contains="After").count() == 2


@pytest.mark.django_db
def test_a_changed_recipe_re_embeds_every_row_in_the_same_space(
    spec, make_article, run_jobs, maintain
):
    articles = [make_article() for _ in range(3)]
    run_jobs()
    maintain().upkeep.look_for_stale_rows()  # which notes the recipe
    changed = dataclasses.replace(spec, fields=("contents", "title"))
    maintenance = Maintenance(
        {KEY: changed},
    )

    assert maintenance.upkeep.continue_scans() == len(articles)

    assert Job.objects.filter(status="pending", kind="reconciler").count() == len(articles)
    assert Space.objects.filter(spec=KEY).count() == 1


@pytest.mark.django_db
def test_a_drain_embeds_the_rows_of_a_changed_recipe(spec, make_article, run_jobs, maintain):
    """Also where no other worker ever runs."""
    articles = [make_article() for _ in range(3)]
    run_jobs()
    assert maintain().once() == 0
    changed = dataclasses.replace(spec, fields=("contents", "title"))
    draining = Maintenance(
        {KEY: changed},
    )

    assert draining.once() == len(articles)


@pytest.mark.django_db
def test_a_scan_with_a_changed_recipe_goes_on_at_full_speed(spec, make_article, run_jobs, maintain):
    for _ in range(3):
        make_article()
    run_jobs()
    maintain().upkeep.look_for_stale_rows()
    changed = dataclasses.replace(spec, fields=("contents", "title"))

    assert reconcile.under_way([spec], using="default").get(spec, []) == []
    assert reconcile.under_way([changed], using="default").get(changed, []) == ["stale"]
    assert reconcile.reconcile_once(changed, using="default", scans=["stale"]) == 3
    assert reconcile.under_way([changed], using="default").get(changed, []) == []


@pytest.mark.django_db
def test_a_recipe_that_changes_in_the_midst_of_a_scan_has_all_rows_compared(
    spec, make_article, run_jobs, monkeypatch
):
    monkeypatch.setattr(reconcile, "PAGE_ROWS", 2)
    articles = [make_article() for _ in range(3)]
    run_jobs()
    page = reconcile.reconcile_page(spec, "stale", using="default")
    assert not page.is_last
    changed = dataclasses.replace(spec, fields=("contents", "title"))

    assert reconcile.reconcile_once(changed, using="default", scans=["stale"]) == len(articles)

    assert reconcile.under_way([changed], using="default").get(changed, []) == []


@pytest.mark.django_db
def test_only_a_person_switches_to_a_space_that_is_not_full(spec, make_article, run_jobs, maintain):
    make_article()
    run_jobs()
    Space.objects.filter(spec=KEY).update(
        backend="pgembed_django.providers.ollama.OllamaProvider",
        options={"base_url": "http://127.0.0.1:9", "connect_timeout_seconds": 1},
    )
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        worker = maintain()
        worker.upkeep.build()
        assert states()[-1] == ("another", "building")

        call_command("embed_spaces", "activate", Space.objects.get(state="building").pk)
        assert spaces.active(spec, using="default").is_partial
        assert search(Article, "title").note == fusion.PARTIAL

        worker.upkeep.reconcile()
        run_jobs()
        worker.upkeep.build()
        assert not spaces.active(spec, using="default").is_partial
        assert search(Article, "title").note == ""


@pytest.fixture(
    params=[
        {"backend": "shop.Removed"},
        {"options": {"of_an_older_version": 1}},
        {"backend": "pgembed_django.providers.wordllama.WordLlamaProvider"},
    ],
    ids=["class", "option", "width"],
)
def lost(request, spec, make_article, run_jobs) -> Article:
    """An article of a space that is searched, and whose provider cannot be built any more."""
    article = make_article(title="A trout")
    run_jobs()
    Space.objects.filter(spec=KEY).update(**request.param)
    query_vectors.vectors.clear()  # of other files' tests in this process
    return article


def waiting_worker(lost: Article, make_worker) -> Work:
    """Return a worker that has given a changed row back: one of its providers is gone."""
    Article.objects.filter(pk=lost.pk).update(title="Another trout")
    worker = make_worker()
    while worker.step():
        pass
    assert worker.handler.hindrances(for_people=True).paused
    return worker


@pytest.mark.django_db(transaction=True)
def test_a_provider_that_is_gone_stops_no_worker(lost, caplog):
    [space] = Space.objects.filter(spec=KEY)
    with provider(model="another"):
        call_command("embed_worker", "--drain", verbosity=0)

    assert states() == [("bag-of-words", "retired"), ("another", "active")]
    assert not Worker.objects.exists()
    [loading] = [one for one in caplog.records if one.msg.startswith("Cannot load")]
    assert f"Space {space.pk} ({space}) has lost its provider." in loading.getMessage()
    assert "PGEMBED_PROVIDERS" not in loading.getMessage()


@pytest.mark.django_db(transaction=True)
def test_a_provider_that_raises_errors_of_its_own_is_waited_for_like_one_that_is_down(
    settings, make_article, caplog
):
    backend = "tests.played.provider.RaisingProvider"
    declared = {"BACKEND": backend, "MODEL": "mine", "DIMENSIONS": 8}
    settings.PGEMBED_PROVIDERS = {"default": declared}
    make_article()

    with pytest.raises(CommandError, match="1 still waiting for a provider that is down") as raised:
        call_command("embed_worker", "--drain", verbosity=0)

    told = "".join(record.getMessage() for record in caplog.records)
    assert "mine (provider 'default') raised RuntimeError." in str(raised.value)
    assert "raised ConnectionError." in told  # asked for the model's digest
    assert "raised OSError." in told  # asked to load it
    assert Job.objects.get().attempts == 0


@pytest.mark.django_db
def test_what_needs_a_provider_that_is_gone_waits_like_in_an_outage(lost, make_worker, maintain):
    with provider(model="another"):
        worker = waiting_worker(lost, make_worker)

        [job] = Job.objects.filter(status="pending")
        assert job.attempts == 0
        assert "has lost its provider" in job.last_error
        # The spaces of other specs have the same provider, and it can be built for them.
        [(name, why)] = worker.handler.hindrances(for_people=True).paused.items()
        space = Space.objects.get(spec=KEY, state="active")
        assert name == f"default (bag-of-words) of space {space.pk}"
        assert "has lost its provider" in why
        found = search(Article, "trout")
        assert (found.ranking, found.degraded, list(found)) == ("lexical", True, [lost])

        maintain().upkeep.build()  # the next space has it, and is full

        assert states()[-1] == ("another", "active")
        found = search(Article, "trout")
        assert (found.ranking, found.degraded, list(found)) == ("hybrid", False, [lost])


@pytest.mark.django_db
def test_what_fills_the_next_space_does_not_wait_for_a_provider_that_is_gone(lost, make_worker):
    with provider(model="another"):
        worker = waiting_worker(lost, make_worker)
        # Given back once: of a provider that is down only what was never started is claimed.
        fill = Job.objects.create(spec=KEY, source_pk="0", kind="reconciler", claims=1)

        [claim] = worker.claiming.up_to(9)

    assert claim.id == fill.pk


@pytest.mark.django_db
def test_a_provider_that_is_gone_is_no_matter_once_another_space_is_searched(lost, make_worker):
    with provider(model="another"):
        worker = waiting_worker(lost, make_worker)

        spaces.activate(Space.objects.get(spec=KEY, state="building"), using="default")
        worker.handler.live.outdate()
        worker.step()

        assert worker.handler.hindrances(for_people=True).paused == {}


@pytest.mark.django_db
def test_a_provider_that_is_there_again_is_asked_again(lost, spec):
    [space] = Space.objects.filter(spec=KEY)
    with provider(model="another"):
        assert not spaces.provider_of(space).probe().ok

        space.backend = "pgembed_django.providers.deterministic.DeterministicProvider"
        space.options = {}

        assert spaces.provider_of(space).probe().ok


@pytest.mark.django_db
def test_an_option_that_makes_no_other_vectors_counts_at_once(
    spec, make_article, run_jobs, settings
):
    article = make_article()
    run_jobs()
    before = spaces.active(spec, using="default")
    mended = {**settings.PGEMBED_PROVIDERS["default"], "OPTIONS": {"batch_size": 7}}
    settings.PGEMBED_PROVIDERS = {"default": mended}

    assert spaces.provider_of(before).batch_size == 7
    spaces.ensure(spec, using="default")

    after = spaces.active(spec, using="default")
    assert (after.pk, after.options) == (before.pk, {"batch_size": 7})
    assert ArticleEmbedding.objects.get(source=article).space_id == after.pk


@pytest.mark.django_db
def test_the_batch_size_counts_for_a_space_whose_model_the_settings_have_left(
    spec, make_article, run_jobs, settings
):
    make_article()
    run_jobs()
    space = spaces.active(spec, using="default")
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**declared, "MODEL": "newer"}}

    assert spaces.provider_of(space).batch_size == 32
    settings.PGEMBED_BATCH_SIZE = 7
    assert spaces.provider_of(space).batch_size == 7


@pytest.mark.django_db
def test_so_it_does_where_the_backend_is_named_by_another_path(spec, settings):
    """By that of a package that imports it, say."""
    here = f"{__name__}.{DeterministicProvider.__qualname__}"
    declared = {"BACKEND": here, "MODEL": "bag-of-words", "DIMENSIONS": 64}
    settings.PGEMBED_PROVIDERS = {"default": declared}
    [space] = spaces.ensure(spec, using="default")
    settings.PGEMBED_PROVIDERS = {"default": {**declared, "OPTIONS": {"batch_size": 7}}}

    assert spaces.provider_of(space) is providers.get("default")
    assert [one.pk for one in spaces.ensure(spec, using="default")] == [space.pk]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "other",
    [
        {"BACKEND": "no.such.Provider"},
        {"BACKEND": "tests.played.provider.PlayedProvider"},
        {"OPTIONS": {"query_prefix": "query: "}},
        {"OPTIONS": {"truncate_dimensions": True}},
        {"MODEL": "another"},
    ],
)
def test_a_space_keeps_its_provider_where_another_one_is_declared(spec, settings, other):
    [space] = spaces.ensure(spec, using="default")
    before = spaces.provider_of(space)
    config = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**config, **other}}

    assert spaces.provider_of(space).declared_identity() == before.declared_identity()


@pytest.mark.django_db
def test_an_option_that_changes_vectors_begins_a_space_and_others_do_not(spec):
    with provider():
        [space] = spaces.ensure(spec, using="default")
    with provider(truncate_dimensions=False, batch_size=7):
        assert spaces.ensure(spec, using="default") == [space]

    for _ in range(2):
        with provider(truncate_dimensions=True):
            active, building = spaces.ensure(spec, using="default")

            assert spaces.provider_of(building) is providers.get("default")
            assert spaces.provider_of(active) is not providers.get("default")


@pytest.mark.django_db
def test_fields_of_a_requests_body_begin_a_space(spec):
    backend = "pgembed_django.providers.openai.OpenAIProvider"
    with provider(backend=backend):
        spaces.ensure(spec, using="default")

    for _ in range(2):
        with provider(backend=backend, query_body={"input_type": "query", "of": (1, 2)}):
            active, building = spaces.ensure(spec, using="default")

            assert spaces.provider_of(building) is providers.get("default")
            assert spaces.provider_of(active).query_body == {}


@pytest.mark.django_db
def test_a_vector_of_another_space_is_never_compared_with(spec, make_article, run_jobs):
    article = make_article(title="Trout", contents="")
    run_jobs()
    with provider(model="another"):
        spaces.ensure(spec, using="default")
        run_jobs()
    [building] = Space.objects.filter(spec=KEY, state="building")
    # As near to the query as can be, and in the wrong space.
    query = providers.get("default").embed_query("granite")
    Job.objects.all().delete()
    ArticleEmbedding.objects.filter(source=article).update(space=building, embedding=query)

    assert list(search(Article, "granite", mode="semantic")) == []
