from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.test.utils import CaptureQueriesContext, isolate_apps

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.models import Job, Space, Worker
from pgembed_django.ops import coverage, status
from pgembed_django.queue import jobs, rollups
from pgembed_django.queue.liveness import WorkerRecord
from pgembed_django.spaces import reconcile
from pgembed_django.spaces.reembedding import reembed
from tests.app.models import Article, ArticleComment, Note
from tests.db.conftest import Maintenance, Writer, backend_pid, claim
from tests.db.test_plans import assert_bounded, nodes_of

pytestmark = [pytest.mark.usefixtures("without_dead_rows"), pytest.mark.django_db]

KEY = "app.ArticleEmbedding"
CANCEL = "embed_spaces cancel"


@pytest.fixture
def spec() -> specs.Spec:
    found = specs.get(KEY)
    assert found
    return found


@pytest.fixture
def look(spec: specs.Spec) -> Any:
    def once(**options: Any) -> status.SpecStatus:
        [found] = status.overview(specs=[spec], using="default", **options).specs
        return found

    return once


@pytest.fixture
def live_worker() -> Worker:
    return Worker.objects.create(host="here", pid=7, version="1", specs=[KEY])


def backdate(seconds: int, **which: Any) -> None:
    """Let jobs have been asked for so long ago, by the database's clock."""
    with connection.cursor() as cursor:
        for job in Job.objects.filter(**which):
            cursor.execute(
                "UPDATE pgembed_job SET created_at = now() - %s * interval '1 second',"
                " run_at = now() - %s * interval '1 second' WHERE id = %s",
                [seconds, seconds, job.pk],
            )


def make_failures(number: int, *, error: str = "refused", spec: str = KEY) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgembed_job"
            " (spec, source_pk, status, last_error, signature, finished_at)"
            " SELECT %s, md5(%s || n), 'failed', %s, %s, now() - n * interval '1 second'"
            " FROM generate_series(1, %s) AS n",
            [spec, error, error, error, number],
        )


# Verdicts


def test_a_spec_that_nobody_has_started_is_stalled(look, make_article):
    make_article()

    verdict = look().verdict

    assert verdict.state == "stalled"
    assert "embed_worker" in verdict.reason


def test_an_embedded_spec_with_a_worker_is_fresh(look, make_article, run_jobs, live_worker):
    make_article()
    run_jobs()

    found = look()

    assert found.verdict.state == "fresh"
    assert found.active.coverage == status.Coverage(rows=1, covered=1, is_estimated=False)
    assert (found.eta_seconds, found.oldest_change_seconds, found.workers) == (0.0, None, 1)


def test_models_that_have_an_order_are_counted_together_with_others(make_article, run_jobs):
    assert Article._meta.ordering
    make_article()
    Note.objects.create(body="has none")
    run_jobs()
    Space.objects.filter(spec__lt=KEY).delete()  # it is the first

    found = {one.key: one.active for one in status.overview(using="default").specs}

    assert found["app.ArticleEmbedding"].coverage.covered == 1
    assert found["app.NoteEmbedding"].coverage.covered == 1


def test_without_a_worker_it_is_degraded_and_stalled_once_something_waits(
    look, make_article, run_jobs
):
    make_article()
    run_jobs()
    assert look().verdict.state == "degraded"

    make_article()

    assert look().verdict.state == "stalled"
    assert "No worker is running: 1 job is waiting" in look().verdict.reason

    Job.objects.filter(status="pending").delete()

    assert "No worker is running: a search finds 50 % of 2 rows." in look().verdict.reason


def test_a_silent_worker_does_not_count(look, make_article, run_jobs, live_worker):
    run_jobs()
    Worker.objects.update(last_seen_at="2026-01-01T00:00Z")

    assert look().workers == 0
    [worker] = status.overview(using="default").workers
    assert not worker.is_live
    assert worker.silent_seconds > 60


def test_triggers_that_do_not_fire_degrade(look, make_article, run_jobs, live_worker):
    make_article()
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE app_article DISABLE TRIGGER USER")
    Article.objects.update(title="past the trigger")

    found = look()
    _, tables = coverage.read_tables(specs.all(), using="default")
    silent = {key: table.silent_triggers for key, table in tables.items() if table.silent_triggers}

    assert found.verdict.state == "degraded"
    assert "5 of its triggers are missing or disabled" in found.verdict.reason
    assert "manage.py check --database default." in found.verdict.reason
    # Of all that watch the table.
    assert silent.pop(KEY) == 5
    assert set(silent) <= {spec.key for spec in specs.all() if spec.model is Article}


def test_failures_degrade(look, make_article, run_jobs, live_worker):
    run_jobs()
    make_failures(3)

    assert look().verdict.state == "degraded"
    assert look().verdict.reason.startswith("3 rows have failed")
    assert look().open_failures == status.Count(3)


def test_a_failed_row_is_not_said_to_be_out_of_date_for_sure(
    look, spec, make_article, run_jobs, live_worker
):
    article = make_article()
    run_jobs()
    reembed(spec, [str(article.pk)], using="default")  # its vectors are those of its text
    [held] = claim()
    jobs.fail(held, "too bad", using="default")

    reason = "1 row has failed and may not be found with its current text."
    assert look().verdict.reason == reason


@pytest.mark.parametrize(
    ("keys", "said"), [(["1"], "1 job is waiting"), (["1", "2"], "2 jobs are waiting")]
)
def test_what_waits_behind_the_changes_is_told(
    look, make_article, run_jobs, live_worker, keys, said
):
    run_jobs()
    jobs.enqueue(KEY, keys, kind=Job.Kind.BACKFILL, priority=0, using="default")

    assert look().verdict.reason.startswith(said)


def test_a_backlog_behind_the_changes_is_indexing(look, make_article, run_jobs, live_worker):
    run_jobs()
    jobs.enqueue(KEY, ["1", "2"], kind=Job.Kind.BACKFILL, priority=0, using="default")

    found = look()

    assert found.verdict.state == "indexing"
    [backlog] = found.backlog
    assert (backlog.kind, backlog.waiting, backlog.later) == (
        "backfill",
        status.Count(2),
        status.Count(0),
    )
    assert found.oldest_change_seconds is None
    assert found.eta_seconds is None


def test_changes_that_wait_for_long_are_late_or_stuck(look, make_article, run_jobs, live_worker):
    run_jobs()
    make_article()
    assert look().verdict.state == "fresh"

    backdate(90, status="pending")
    assert look().verdict.state == "degraded"
    assert 90 <= look().oldest_change_seconds < 900

    backdate(900, status="pending")
    assert look().verdict.state == "stalled"


def test_a_change_at_work_counts_as_waiting(look, make_article, run_jobs, live_worker):
    run_jobs()
    make_article()
    backdate(90, status="pending")
    claim(worker_id=live_worker.pk)

    assert look().running == status.Count(1)
    assert look().oldest_change_seconds > 89


def test_a_paused_provider_stalls_what_waits(look, make_article, run_jobs, live_worker):
    run_jobs()
    Worker.objects.update(
        paused={"default": "Connection refused."}, paused_seconds={"default": 30.0}
    )
    assert look().verdict.state == "degraded"

    make_article()

    assert look().verdict.state == "stalled"
    assert "Connection refused." in look().verdict.reason
    [provider] = status.overview(using="default").providers
    assert provider.is_down
    assert provider.out_of_reach_of == ("here:7",)
    live_worker.refresh_from_db()
    assert (provider.retries_at - live_worker.last_seen_at).total_seconds() == 30


def test_what_a_base_manager_joins_is_not_counted(make_article, run_jobs):
    class Joining(models.Manager[Article]):
        def get_queryset(self) -> models.QuerySet[Article]:
            return super().get_queryset().annotate(comments=models.Count("articlecomment"))

    with isolate_apps("tests.app"):

        class Joined(Article):
            objects = Joining()

            class Meta:
                proxy = True
                app_label = "app"
                base_manager_name = "objects"

    article = make_article()
    ArticleComment.objects.create(article=article, text="one")
    ArticleComment.objects.create(article=article, text="two")
    run_jobs()
    spec = dataclasses.replace(specs.get(KEY), model=Joined)

    [found] = status.overview(using="default", specs=[spec]).specs

    assert found.active.coverage == status.Coverage(rows=1, covered=1, is_estimated=False)


def test_a_former_model_that_is_lost_is_not_taken_for_the_one_declared_now(
    make_article, run_jobs, make_worker
):
    run_jobs()
    Space.objects.filter(spec=KEY).update(model="former", backend="no.longer.Here")
    make_article()
    Note.objects.create(body="needs the one that is declared now")
    worker = make_worker()
    for _ in range(3):
        worker.step()
    WorkerRecord([KEY, "app.NoteEmbedding"], using="default").report([worker])

    found = status.overview(using="default")

    declared, former = found.providers
    assert (declared.name, declared.is_declared, declared.is_down) == ("default", True, False)
    assert (former.name, former.is_declared, former.is_down) == ("default (former)", False, True)
    assert former.specs == (KEY,)
    reasons = {one.key: one.verdict.reason for one in found.specs}
    assert "The provider is down" in reasons[KEY]
    assert "down" not in reasons["app.NoteEmbedding"]


def test_a_process_with_older_settings_tells_of_the_model_that_is_down_and_no_other(
    look, spec, make_article, run_jobs, make_worker, settings
):
    make_article()
    run_jobs()
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**declared, "MODEL": "newer"}}
    _, newer = spaces.ensure(spec, using="default")
    worker = make_worker()
    pool = worker.handler.embedder.pool(newer)
    down: Future[Any] = Future()
    down.set_exception(ProviderUnavailable("Pull it."))
    pool.ended(down)
    WorkerRecord([KEY], using="default").report([worker])

    settings.PGEMBED_PROVIDERS = {"default": declared}
    found = status.overview(using="default")

    former, newer = found.providers
    assert (former.name, former.is_down) == ("default", False)
    assert (newer.name, newer.is_down, newer.reason) == ("default (newer)", True, "Pull it.")
    assert found.workers[-1].paused == {"default (newer)": "Pull it."}
    assert "The provider is down" not in look().verdict.reason


def test_a_new_model_that_cannot_be_reached_is_told_and_nothing_is_promised(
    look, spec, make_article, run_jobs, live_worker, settings
):
    make_article()
    run_jobs()
    make_article()
    run_jobs()
    declared = settings.PGEMBED_PROVIDERS["default"]
    settings.PGEMBED_PROVIDERS = {"default": {**declared, "MODEL": "another"}}
    _, building = spaces.ensure(spec, using="default")
    reconcile.reconcile_once(spec, using="default")
    Worker.objects.update(paused={"default": "Pull it."}, paused_seconds={"default": 30.0})
    tally = rollups.Tally()
    tally.completed(KEY, waited=1.0)
    tally.flush(using="default")

    found = look()

    assert found.verdict.state == "indexing"
    assert "The new one's provider is down: Pull it." in found.verdict.reason
    assert "to go" not in found.verdict.reason
    assert (found.eta_seconds, found.building.eta_seconds) == (None, None)

    # A change does not wait for that model.
    make_article()
    assert look().eta_seconds

    settings.PGEMBED_PROVIDERS = {"default": declared}
    Worker.objects.update(paused={}, paused_seconds={})
    said = f"than another (64). If no newer code runs, stop building it: manage.py {CANCEL}"
    assert f"{said} {building.pk}" in look().verdict.reason


def test_a_spec_that_all_workers_have_set_aside_stalls(look, make_article, run_jobs, live_worker):
    run_jobs()
    aside = {KEY: "ProgrammingError: no column"}
    Worker.objects.update(
        aside=aside,
        paused={"default": "Connection refused."},
        paused_seconds={"default": 30.0},
    )
    assert look().verdict.state == "degraded"
    assert "Set aside by every worker" in look().verdict.reason

    make_article()

    assert look().verdict.state == "stalled"
    assert "1 job is waiting. ProgrammingError: no column" in look().verdict.reason
    assert status.overview(using="default").workers[0].aside == aside


def test_one_that_some_have_set_aside_only_degrades(look, make_article, run_jobs, live_worker):
    run_jobs()
    Worker.objects.create(host="old", pid=1, version="1", specs=[KEY], aside={KEY: "no column"})
    Worker.objects.create(host="other", pid=1, version="1", specs=[], aside={})
    make_article()

    assert look().verdict.state == "degraded"
    assert "Set aside by 1 of 2 workers" in look().verdict.reason
    assert "no column" in look().verdict.reason


@pytest.mark.parametrize(
    ("what", "name", "said"),
    [
        ("spec", KEY, "Paused by ann"),
        ("provider", "default", "The provider is paused by ann"),
    ],
)
def test_what_is_paused_by_hand_is_said_and_by_whom(
    look, make_article, run_jobs, live_worker, what, name, said
):
    run_jobs()
    jobs.pause(what, name, by="ann", using="default")
    assert look().verdict.state == "degraded"
    assert look().verdict.reason == f"{said}. Nothing is waiting yet."

    make_article()

    assert look().verdict.state == "stalled"
    assert look().verdict.reason == f"{said}: 1 job is waiting."


def test_a_provider_that_is_paused_by_hand_is_not_down(look, make_article, run_jobs, make_worker):
    run_jobs()
    jobs.pause("provider", "default", by="ann", using="default")
    make_article()
    worker = make_worker()
    worker.step()
    WorkerRecord([KEY], using="default").report([worker])

    [provider] = status.overview(using="default").providers
    assert (provider.is_down, provider.out_of_reach_of, provider.reason) == (False, (), "")
    assert status.overview(using="default").workers[0].paused == {"default": "Paused by ann"}
    jobs.resume("provider", "default", using="default")
    assert "down" not in look().verdict.reason


def test_a_worker_whose_row_was_deleted_is_not_taken_for_dead_once_it_has_reported(make_worker):
    presence = WorkerRecord([KEY], using="default")
    # It has long been running.
    presence.row.last_seen_at -= timedelta(days=1)
    Worker.objects.all().delete()

    presence.report([make_worker()])

    [worker] = status.overview(using="default").workers
    assert worker.is_live


def test_one_worker_of_two_that_cannot_reach_the_provider_only_degrades(
    look, make_article, run_jobs, live_worker
):
    run_jobs()
    Worker.objects.create(
        host="there",
        pid=1,
        version="1",
        specs=[KEY],
        paused={"default": "No route."},
        paused_seconds={"default": 1.0},
    )
    make_article()

    assert look().verdict.state == "degraded"
    assert "1 of 2 workers cannot reach the provider" in look().verdict.reason


def test_a_spec_whose_table_is_gone_is_stalled(look, run_jobs, live_worker):
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE app_articleembedding RENAME TO elsewhere")

    assert "migrate" in look().verdict.reason


@pytest.mark.django_db(transaction=True)
def test_the_page_does_not_wait_for_a_writer_that_holds_the_table(
    look, make_article, run_jobs, live_worker, second_connection, impatient
):
    make_article()
    run_jobs()
    second_connection.execute("LOCK TABLE app_article")

    assert look().active.coverage is None

    second_connection.rollback()
    assert look().active.coverage.rows == 1


# Spaces, workers, rates


def test_the_space_being_built_shows_its_progress(
    spec, look, make_article, run_jobs, live_worker, settings
):
    for _ in range(2):
        make_article()
    run_jobs()
    settings.PGEMBED_PROVIDERS = {
        "default": {**settings.PGEMBED_PROVIDERS["default"], "MODEL": "another"}
    }
    spaces.ensure(spec, using="default")
    Article.objects.filter(pk=Article.objects.first().pk).update(title="Changed")
    run_jobs()

    found = look()

    assert found.verdict.state == "indexing"
    assert (found.active.coverage.covered, found.building.coverage.covered) == (2, 1)
    assert "A new space is being built: 50 % of 2 rows" in found.verdict.reason


def test_workers_show_what_they_hold_also_those_that_are_forgotten(make_article, live_worker):
    make_article()
    claim(worker_id=live_worker.pk)
    make_article()
    claim(worker_id=live_worker.pk + 1)

    known, forgotten = status.overview(using="default").workers

    assert [(held.spec, held.jobs) for held in known.held] == [(KEY, 1)]
    assert forgotten.name == f"worker {live_worker.pk + 1}, gone"
    assert not forgotten.is_live
    assert forgotten.held[0].jobs == 1


def complete_lately(count: int) -> None:
    tally = rollups.Tally()
    for _ in range(count):
        tally.completed(KEY, waited=0.5)
    tally.flush(using="default")


def test_the_rate_gives_an_eta(look, make_article, run_jobs, live_worker):
    run_jobs()
    complete_lately(600)
    make_article()

    found = look()

    assert found.units_per_second > 0
    assert found.eta_seconds == pytest.approx(1 / found.units_per_second)
    assert found.p50_seconds == pytest.approx(0.5, rel=0.3)

    live_worker.delete()  # nobody goes on at that rate
    assert look().eta_seconds is None


def test_what_does_not_move_has_no_eta(look, make_article, run_jobs, live_worker):
    run_jobs()
    complete_lately(600)
    make_article()
    assert look().eta_seconds
    assert look().active.eta_seconds

    Worker.objects.update(paused={"default": "No route."}, paused_seconds={"default": 60.0})
    assert look().verdict.state == "stalled"
    assert (look().eta_seconds, look().active.eta_seconds) == (None, None)
    Worker.objects.update(paused={}, paused_seconds={})

    for what, name in (("provider", "default"), ("spec", KEY)):
        jobs.pause(what, name, by="ann", using="default")
        assert (look().eta_seconds, look().active.eta_seconds) == (None, None)
        jobs.resume(what, name, using="default")

    Worker.objects.update(aside={KEY: "no column"})
    assert (look().eta_seconds, look().active.eta_seconds) == (None, None)


@pytest.mark.parametrize("had_vectors", [True, False])
def test_a_dismissed_row_is_not_told_as_found_with_its_present_text(
    look, make_article, run_jobs, live_worker, had_vectors
):
    make_article()
    run_jobs()
    if had_vectors:
        Article.objects.update(title="changed")
    else:
        make_article()
    [held] = claim()
    jobs.fail(held, "too bad", using="default")
    assert look().verdict.state == "degraded"

    jobs.dismiss(Job.objects.filter(status="failed").values_list("pk", flat=True), using="default")

    found = look()
    but = "Every row is found with its current text, except 1 that was dismissed."
    assert (found.verdict.state, found.verdict.reason) == ("fresh", but)
    assert (found.dismissed, found.open_failures) == (status.Count(1), status.Count(0))

    Article.objects.update(title="written again")
    run_jobs()
    assert look().verdict.reason == "Every row is found with its current text."


def test_dismissed_rows_are_counted_up_to_a_bound(look, run_jobs, live_worker):
    run_jobs()
    make_failures(3)
    jobs.dismiss(Job.objects.filter(status="failed").values_list("pk", flat=True), using="default")

    assert str(look(max_count=2).dismissed) == "2+"


def test_dismissed_rows_of_other_specs_may_hide_those_of_a_spec(
    look, make_article, run_jobs, live_worker
):
    make_article()
    run_jobs()
    make_failures(2, spec="app.NoteEmbedding")
    jobs.dismiss(Job.objects.filter(status="failed").values_list("pk", flat=True), using="default")

    assert look(max_count=3).verdict.reason == "Every row is found with its current text."
    found = look(max_count=2)

    assert found.dismissed == status.Count(0, is_capped=True)
    but = "Every row is found with its current text, except perhaps some that were dismissed."
    assert found.verdict.reason == but


def test_a_row_that_has_failed_is_not_on_its_way(look, make_article, run_jobs, live_worker):
    make_article()
    run_jobs()
    tally = rollups.Tally()
    tally.completed(KEY, waited=0.5)
    tally.flush(using="default")
    make_article()
    Job.objects.filter(status="pending").delete()
    make_failures(1)

    found = look()

    assert found.units_per_second > 0
    assert found.active.coverage.missing == 1
    assert found.active.eta_seconds is None


def test_a_jobs_own_backoff_is_told_apart(look, make_article, run_jobs):
    make_article()
    make_article()
    [first, _] = Job.objects.order_by("pk")
    Job.objects.filter(pk=first.pk).update(run_at="2999-01-01T00:00Z", attempts=1)

    [backlog] = look().backlog

    assert (backlog.waiting.value, backlog.later.value) == (2, 1)


def test_failures_of_specs_that_are_gone_are_shown():
    make_failures(2, spec="app.Gone")

    assert status.overview(using="default").unknown == {"app.Gone": status.Count(2)}


def test_no_more_than_a_hundred_specs_are_told_that_nobody_declares():
    """Whoever may write at all may name them, and each is a line, and a series of the metrics."""
    for number in range(101):
        make_failures(1, spec=f"app.Gone{number}")

    assert len(status.overview(using="default").unknown) == 100


def test_without_specs_there_is_nothing_to_say():
    found = status.overview(specs=[], queues=[], using="default")

    assert found.specs == ()
    assert found.verdict.state == "fresh"


def test_the_worst_spec_gives_the_verdict(make_article):
    make_article()

    assert status.overview(using="default").verdict.state == "stalled"


# Kinds of failures


def test_failures_are_grouped_by_what_failed(make_article):
    make_failures(3, error="refused")
    make_failures(2, error="too long")
    make_failures(4, error="refused", spec="app.NoteEmbedding")

    found = status.failure_kinds(using="default")

    assert found.is_whole
    assert [(kind.spec, kind.signature, kind.count.value) for kind in found.kinds] == [
        ("app.NoteEmbedding", "refused", 4),
        (KEY, "refused", 3),
        (KEY, "too long", 2),
    ]
    assert found.kinds[0].first_at < found.kinds[0].last_at
    assert Job.objects.get(pk=found.kinds[1].sample_id).last_error == found.kinds[1].sample
    assert [
        kind.count.value for kind in status.failure_kinds(using="default", specs=[KEY]).kinds
    ] == [3, 2]


def test_more_kinds_than_fit_are_cut_to_the_latest():
    for number in range(4):
        make_failures(1, error=f"kind {'abcd'[number]}")

    found = status.failure_kinds(using="default", limit=2)

    assert (len(found.kinds), found.is_whole) == (2, False)


def test_a_pause_over_the_end_of_summer_time_is_told_as_long_as_it_is(settings):
    Worker.objects.create(
        host="here",
        pid=7,
        version="1",
        specs=[KEY],
        paused={"default": "No route."},
        paused_seconds={"default": 30.0},
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgembed_worker SET last_seen_at = '2026-10-25 00:59:50+00'")
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"

    [worker] = status.overview(using="default").workers

    told = worker.retries_at["default"].timestamp() - worker.last_seen_at.timestamp()
    assert told == 30


def test_a_failing_job_gets_its_signature(make_article, provider, make_worker):
    make_article()
    [held] = claim()

    jobs.fail(held, "http://localhost:11434 answered 400: 9000 tokens", using="default")

    assert Job.objects.get().signature == "http://localhost:# answered 400: # tokens"


def test_jobs_without_a_spec_have_a_signature():
    Job.objects.create(spec="app.Gone", source_pk="1")
    Job.objects.update(created_at="2026-01-01T00:00Z")

    jobs.fail_unknown([KEY], using="default")

    [kind] = status.failure_kinds(using="default").kinds
    assert kind.signature.startswith("No such spec")


# Scale


@pytest.fixture
def million(spec: specs.Spec) -> None:
    """A million jobs, 200,000 of them open failures, and 100,000 rows, half of them covered."""
    spaces.ensure(spec, using="default")
    space = Space.objects.get(spec=KEY)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "INSERT INTO app_article (id, title, contents, author, published_time)"
            " SELECT n, 'title', repeat('x', 300), '', now() FROM generate_series(1, 100000) AS n"
        )
        cursor.execute(
            "INSERT INTO app_articleembedding (source_id, space_id, position, start_offset,"
            " end_offset, chunk_digest, text_digest, embedding)"
            " SELECT n, %s, 0, 0, 1, '', '', '[1,2,3]' FROM generate_series(1, 100000, 2) AS n",
            [space.pk],
        )
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, kind, priority)"
            " SELECT %s, n::text, kind, priority FROM generate_series(1, 200000) AS n,"
            " (VALUES ('write', 0)) AS lane(kind, priority)",
            [KEY],
        )
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, kind, priority)"
            " SELECT 'app.NoteEmbedding', n::text, 'backfill', -2000"
            " FROM generate_series(1, 100000) AS n"
        )
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, status, finished_at)"
            " SELECT %s, n::text, 'succeeded', now() FROM generate_series(1, 500000) AS n",
            [KEY],
        )
        # One kind holds half of them, and 50,000 have an error that is like no other.
        cursor.execute(
            "INSERT INTO pgembed_job (spec, source_pk, status, last_error, signature, finished_at)"
            " SELECT %s, n::text, 'failed', 'error ' || n, CASE"
            "   WHEN n %% 2 = 0 THEN 'timed out'"
            "   WHEN n %% 4 = 1 THEN 'kind ' || n %% 97"
            "   ELSE md5(n::text) END,"
            " now() - n * interval '1 second' FROM generate_series(1, 200000) AS n",
            [KEY],
        )
        cursor.execute("ANALYZE pgembed_job")
        cursor.execute("ANALYZE app_article")
        cursor.execute("ANALYZE app_articleembedding")


# What is rolled back leaves large files and statistics behind.
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_million_jobs_cost_few_queries_and_are_never_read_whole(million):
    def read() -> None:
        status.overview(using="default")
        status.failure_kinds(using="default")

    with CaptureQueriesContext(connection) as queries:
        read()
    assert len(queries) <= 12  # nine that read, one of them in a transaction that gives way
    assert_bounded(nodes_of(read), 20_000)

    overview = status.overview(using="default")
    [found] = [one for one in overview.specs if one.key == KEY]
    assert found.open_failures.is_capped
    assert str(found.waiting).endswith("+")
    assert found.active.coverage.is_estimated
    assert found.active.coverage.ratio == pytest.approx(0.5, abs=0.02)
    assert found.active.coverage.rows == pytest.approx(100_000, rel=0.02)
    kinds = status.failure_kinds(using="default")
    assert not kinds.is_whole
    assert (kinds.kinds[0].signature, str(kinds.kinds[0].count)) == ("timed out", "10,000+")

    for plan in plans_on_jobs():
        assert "Seq Scan on pgembed_job" not in plan
        assert "Bitmap Heap Scan on pgembed_job" not in plan


def plans_on_jobs() -> list[str]:
    """Return how Postgres executes each reading of the job table."""
    with CaptureQueriesContext(connection) as captured:
        status.overview(using="default")
        status.failure_kinds(using="default")
    plans = []
    with connection.cursor() as cursor:
        for query in captured:
            if "pgembed_job" in query["sql"]:
                cursor.execute("EXPLAIN " + query["sql"])
                plans.append("\n".join(row[0] for row in cursor.fetchall()))
    return plans


@pytest.mark.django_db(transaction=True)
def test_a_look_at_all_specs_lets_no_deadlock_choose_a_migration(run_jobs, writer: Writer):
    Note.objects.create(body="owl")
    run_jobs()
    writer.connection.execute("SET deadlock_timeout = '200ms'")  # the migration's would be first

    def lock_in_another_order(execute, sql, *rest):
        if "pgembed_all" in sql and not writer.has_started():
            writer.connection.execute("LOCK TABLE app_note")
            writer.start("LOCK TABLE app_article", once_waits=backend_pid())
        return execute(sql, *rest)

    with connection.execute_wrapper(lock_in_another_order):
        found = {one.key: one.active for one in status.overview(using="default").specs}
    writer.go()
    writer.end()

    assert found["app.PageEmbedding"].coverage is not None
    assert found["app.NoteEmbedding"].coverage is None


def test_a_sample_says_that_it_is_one_and_exact_coverage_can_be_asked_for(
    look, make_article, run_jobs, monkeypatch
):
    for _ in range(5):
        make_article()
    run_jobs()
    monkeypatch.setattr(coverage, "MIN_SAMPLE", 1)
    monkeypatch.setattr(coverage, "MAX_SAMPLE", 1)
    monkeypatch.setattr(coverage, "SAMPLE", coverage.SAMPLE.replace("(%s)", "(%s + 100 - 2.5)"))

    assert str(look().active.coverage).startswith("about 100 % of about ")
    assert str(look(is_exact=True).active.coverage) == "100 % of 5 rows"


@pytest.mark.django_db(transaction=True)
def test_partitions_are_counted_by_the_statistics_of_each():
    spec = specs.get("app.NoteEmbedding")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            ALTER TABLE app_note RENAME TO app_note_whole;
            CREATE TABLE app_note (LIKE app_note_whole) PARTITION BY LIST (seen);
            CREATE TABLE app_note_unseen PARTITION OF app_note FOR VALUES IN (0);
            CREATE TABLE app_note_seen PARTITION OF app_note FOR VALUES IN (1);
            INSERT INTO app_note
            SELECT gen_random_uuid(), repeat('long ', 300), n % 2 FROM generate_series(1, 100) AS n;
            ANALYZE app_note
            """
        )
        _, tables = coverage.read_tables([spec], using="default")
        cursor.execute("DROP TABLE app_note; ALTER TABLE app_note_whole RENAME TO app_note")

    assert round(tables[spec.key].rows) == 100


def test_a_sample_of_a_table_without_statistics_counts_by_its_own_rows(
    look, make_article, run_jobs, monkeypatch
):
    for _ in range(200):
        make_article(contents="long " * 300)
    run_jobs()
    monkeypatch.setattr(coverage, "MIN_SAMPLE", 1)
    monkeypatch.setattr(coverage, "MAX_SAMPLE", 700)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_class SET reltuples = -1 WHERE oid = 'app_article'::regclass")

    found = look().active.coverage

    assert found.is_estimated
    assert 50 < found.rows < 800


def test_a_sample_that_is_empty_says_nothing(spec, make_article, run_jobs, monkeypatch):
    run_jobs()
    _, tables = coverage.read_tables([spec], using="default")
    large = {key: table._replace(rows=1e9) for key, table in tables.items()}
    live = {KEY: spaces.live(spec, using="default")}

    assert coverage.read_coverage([spec], live, large, using="default") == {}


def test_the_reaper_counts_what_it_failed(make_article, spec):
    make_article()
    claim()
    Job.objects.update(lease_expires_at="2026-01-01T00:00Z", crashes=2)

    Maintenance(
        {KEY: spec},
    ).reap()

    now = status.overview(using="default").at
    assert sum(point.failed for point in status.series(using="default", now=now)) == 1
