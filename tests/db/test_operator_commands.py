from __future__ import annotations

import bisect
import io
import json
import re
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.models import Job, Rollup, ScanCursor, Space, Worker
from pgembed_django.ops.formatting import progress
from pgembed_django.queue import jobs, rollups
from pgembed_django.spaces import backfill, reconcile
from pgembed_django.spaces.backfill import Backfill
from pgembed_django.spaces.reembedding import MAX_BUSY
from tests.app.models import Article, ArticleComment, ArticleEmbedding, Note
from tests.conftest import PUBLISHED
from tests.db.conftest import Maintenance, claim
from tests.db.test_status import make_failures
from tests.played.provider import PlayedProvider

pytestmark = [pytest.mark.usefixtures("without_dead_rows"), pytest.mark.django_db]

KEY = "app.ArticleEmbedding"


@pytest.fixture
def spec() -> specs.Spec:
    found = specs.get(KEY)
    assert found
    return found


def run(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=out, **options)
    return out.getvalue()


def exit_status(*arguments: str) -> int:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return caught.value.returncode


def patience(monkeypatch: Any, command: str, sleep: Any) -> None:
    """Let a command wait in another way. Only that command: no test waits for seconds to pass."""
    module = f"pgembed_django.management.commands.{command}.time"
    monkeypatch.setattr(module, SimpleNamespace(sleep=sleep))


def cut_off(other: psycopg.Connection) -> None:
    """Let the server end the session of the test, as a failover does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    other.commit()


def make_gaps(number: int) -> None:
    """Rows that were written past the triggers, and have no job."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO app_article (title, contents, author, published_time)"
            " SELECT 'Title ' || n, 'Contents', '', now() FROM generate_series(1, %s) AS n",
            [number],
        )
    Job.objects.all().delete()


# embed_status


def test_the_status_tells_what_is_to_be_known(make_article, run_jobs):
    make_article()
    run_jobs()
    make_article()
    make_failures(3, error="timed out")
    make_failures(1, error="gone", spec="app.Gone")
    Worker.objects.create(
        host="here",
        pid=7,
        version="1",
        specs=[KEY],
        paused={"default": "No route."},
        paused_seconds={"default": 30.0},
        aside={"app.NoteEmbedding": "no column"},
    )

    told = run("embed_status", "--specs", KEY)

    assert f"{KEY}  stalled" in told
    assert "The provider is down: 1 job is waiting. No route." in told
    number = Space.objects.get(spec=KEY).pk
    assert f"searched   space {number}, bag-of-words, 64 dimensions: 50 % of 2 rows" in told
    assert "1 write" in told
    assert "3  timed out" in told
    assert "app.Gone  is not declared here" in run("embed_status")
    assert (
        "here:7  last seen 0 s ago, holds nothing, has set app.NoteEmbedding aside: no column"
        in told
    )
    assert "default  bag-of-words, down for all workers, next try in 30 s: No route." in told

    Worker.objects.update(paused_seconds={"default": 0.2})
    told = run("embed_status", "--specs", KEY)
    assert "down for all workers, next try is due: No route." in told


def test_the_status_as_json_is_whole(make_article, run_jobs):
    make_article()
    run_jobs()
    make_failures(2)

    told = json.loads(run("embed_status", "--specs", KEY, "--json"))

    [spec] = told["specs"]
    assert spec["open_failures"] == {"value": 2, "is_capped": False}
    assert spec["active"]["coverage"]["covered"] == 1
    assert told["failures"]["kinds"][0]["signature"] == "refused"
    assert told["verdict"]["state"] == "degraded"


@pytest.mark.parametrize("is_aware", [True, False])
def test_the_status_tells_times_in_utc_as_json_and_in_the_projects_zone_to_people(
    settings, make_article, run_jobs, is_aware
):
    make_article()
    run_jobs()
    make_failures(1)
    Job.objects.filter(status="failed").update(finished_at="2026-03-02T09:14:51Z")
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Kathmandu", is_aware

    told = json.loads(run("embed_status", "--specs", KEY, "--json"))
    [kind] = told["failures"]["kinds"]
    assert (kind["first_at"], kind["last_at"]) == ("2026-03-02 09:14:51+00:00",) * 2
    assert told["at"].endswith("+00:00")
    assert "last 2026-03-02 14:59:51: refused" in run("embed_status", "--specs", KEY)


EVERY_CONDITION = (
    *("embed_status", "--specs", KEY, "--fail-on-open-failures"),
    *("--fail-below-coverage", "100", "--fail-above-oldest-seconds", "60"),
)


def test_the_exit_status_answers_the_question(make_article, run_jobs):
    make_article()
    run_jobs()
    run(*EVERY_CONDITION)
    make_failures(1)

    assert exit_status(*EVERY_CONDITION) == 1
    with pytest.raises(CommandError, match=rf"^{KEY}: 1 open failure$"):
        run("embed_status", fail_on_open_failures=True)
    run("embed_status", "--specs", KEY, "--fail-below-coverage", "100")


def test_all_conditions_that_hold_are_named(make_article, run_jobs):
    make_article()
    run_jobs()
    make_article()
    Job.objects.filter(status="pending").update(created_at=timezone.now() - timedelta(minutes=6))
    make_failures(1200)

    with pytest.raises(CommandError) as caught:
        run(*EVERY_CONDITION)

    assert str(caught.value) == (
        f"{KEY}: 1,200 open failures, coverage 50 % of 2 rows, the oldest change has waited 6 min"
    )
    run("embed_status", fail_below_coverage=50, fail_above_oldest_seconds=400)


def test_nothing_is_covered_before_the_first_worker_and_unknown_coverage_fails_nothing(
    make_article, run_jobs, second_connection
):
    below = ("embed_status", "--specs", KEY, "--fail-below-coverage", "99.5")
    with pytest.raises(CommandError, match=rf"^{KEY}: coverage 0 %, nothing was embedded yet$"):
        run(*below)
    Space.objects.create(
        spec=KEY,
        fingerprint="f",
        backend="b",
        model="m",
        dimensions=3,
        state="active",
        activated_at=timezone.now(),
    )
    second_connection.execute("LOCK app_article IN ACCESS EXCLUSIVE MODE")

    run(*below)


def test_failures_of_a_spec_that_is_gone_count_where_they_are_told():
    make_failures(2, spec="app.Gone")

    with pytest.raises(CommandError, match=r"^app\.Gone: 2 open failures$"):
        run("embed_status", "--fail-on-open-failures")
    told = run("embed_status", "--specs", KEY, "--fail-on-open-failures")
    as_json = json.loads(run("embed_status", "--specs", KEY, "--json"))

    assert "app.Gone" not in told
    assert as_json["unknown"] == {}


@pytest.mark.parametrize("given", ["most", "0.99", "1", "101", "nan"])
def test_a_coverage_that_is_no_percentage_is_refused(given):
    with pytest.raises(CommandError, match=f"'{given}' is not a percentage above 1"):
        run("embed_status", "--fail-below-coverage", given)


def test_what_is_watched_reaches_a_pipe_at_once(make_article, monkeypatch):
    make_article()
    written = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            written.append(self.getvalue())

    def sleep(seconds: float) -> None:
        assert KEY in written[-1]
        raise KeyboardInterrupt

    patience(monkeypatch, "embed_status", sleep)

    call_command("embed_status", "--watch", "--json", stdout=Pipe())


def test_watching_goes_on_until_it_is_stopped(make_article, run_jobs, monkeypatch):
    make_article()
    run_jobs()
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    patience(monkeypatch, "embed_status", sleep)

    told = run("embed_status", "--specs", KEY, "--watch")

    assert waits == [2.0, 2.0]
    assert told.count(f"{KEY}  ") == 2


@pytest.mark.django_db(transaction=True)
def test_watching_goes_on_when_the_database_is_back(make_article, second_connection, monkeypatch):
    make_article()
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            cut_off(second_connection)
        elif len(waits) == 3:
            raise KeyboardInterrupt

    patience(monkeypatch, "embed_status", sleep)

    told = run("embed_status", "--specs", KEY, "--watch")

    assert told.count("Cannot read the database 'default': ") == 1
    assert told.count(f"{KEY}  ") == 2


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_is_lost_on_the_way_is_told_in_a_sentence(second_connection, monkeypatch):
    make_gaps(1)
    call_command("embed_worker", "--drain", verbosity=0)
    patience(monkeypatch, "embed_backfill", lambda _: cut_off(second_connection))

    with pytest.raises(CommandError, match="The connection to the database was lost: ") as caught:
        run("embed_backfill", "--force")

    assert caught.value.returncode == 1
    connection.close()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.3, r"0\.\d+ s \(p50\), 0\.\d+ s"),
        (30, r"\d\d s \(p50\), \d\d s"),
        (3000, r"\d\d min \(p50\), \d\d min"),
    ],
)
def test_the_status_tells_long_waits_without_powers_of_ten(seconds, told):
    waits = [0] * len(rollups.BOUNDS)
    waits[bisect.bisect(rollups.BOUNDS, seconds)] = 100
    Rollup.objects.create(spec=KEY, seconds=60, starts_at=timezone.now(), waits=waits)

    assert re.search(rf"from write to vector {told} \(p99\)", run("embed_status"))


# embed_retry and embed_dismiss


def test_retry_says_exactly_what_happened(make_article):
    make_failures(3)
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    superseded, gone = Job.objects.get(pk=ids[0]), ids[1]
    Job.objects.create(spec=superseded.spec, source_pk=superseded.source_pk)

    def settled_meanwhile(execute: Any, statement: str, *rest: Any) -> Any:
        if "WITH failure" in statement:
            Job.objects.filter(pk=gone).update(settled_at="2026-01-01T00:00Z")
        return execute(statement, *rest)

    with connection.execute_wrapper(settled_meanwhile):
        told = run("embed_retry", "--all", "--yes")

    assert told == "1 retried, 1 superseded by newer work, 1 gone\n"


def test_control_characters_of_an_error_do_not_reach_the_terminal():
    make_failures(1, error="cannot price \x1b]0;owned\x07")

    written = run("embed_status")

    assert "cannot price" in written
    assert written.isascii()
    assert "\x1b" not in written


def test_a_kind_is_chosen_by_its_signature():
    make_failures(2, error="refused")
    make_failures(1, error="too long")
    make_failures(1, error="refused", spec="app.Gone")

    assert run("embed_retry", "--signature", "refused", "--dry-run") == "3 open failures.\n"
    assert "2 retried," in run("embed_retry", "--signature", "refused", "--specs", KEY, "--yes")
    assert "1 dismissed," in run("embed_dismiss", "--specs", "app.Gone", "--yes")
    assert Job.objects.filter(status="failed", settled_at=None).count() == 1


def test_rows_are_chosen_by_their_keys():
    make_failures(3)
    [first, *_] = Job.objects.order_by("pk")

    assert "1 dismissed, 0 gone" in run("embed_dismiss", "--unit", first.source_pk, "--yes")
    assert run("embed_dismiss", "--unit", "nobody", "--yes") == ("No open failure matches.\n")


def test_an_option_that_is_given_again_adds_to_it():
    make_failures(3)
    [first, second, _] = Job.objects.order_by("pk")
    units = ("--unit", first.source_pk, "--unit", second.source_pk)

    assert run("embed_retry", *units, "--dry-run") == "2 open failures.\n"
    assert run("embed_retry", "--specs", KEY, "--specs", "app.NoteEmbedding", "--dry-run") == (
        "3 open failures.\n"
    )


def test_nothing_is_done_without_a_choice_or_an_answer(monkeypatch):
    make_failures(2)

    assert exit_status("embed_retry") == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandError, match=r"Retry 2 open failures.*pass --yes"):
        run("embed_retry", "--all")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    with pytest.raises(CommandError, match="Nothing was done"):
        run("embed_retry", "--all")
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert run("embed_retry", "--all").startswith("2 retried")


def test_a_spec_that_nobody_knows_is_refused():
    assert exit_status("embed_retry", "--specs", "app.Nothing", "--yes") == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("command", "done"), [("embed_retry", "1 retried"), ("embed_dismiss", "1 dismissed, 0 gone")]
)
def test_what_a_writer_has_locked_is_said(second_connection, impatient, command, done):
    make_failures(2)
    [first, _] = Job.objects.order_by("pk")
    second_connection.execute("SELECT FROM pgembed_job WHERE id = %s FOR UPDATE", [first.pk])

    with pytest.raises(CommandError, match=f"{done}.*1 locked by an open transaction") as caught:
        run(command, "--all", "--yes")

    assert caught.value.returncode == 1


# embed_reconcile


def test_reconcile_queues_gaps_and_deeply_also_stale_texts(make_article, run_jobs):
    make_article()
    run_jobs()
    assert f"{KEY}: 0 rows queued" in run("embed_reconcile", "--specs", KEY)
    make_gaps(2)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE app_article SET title = 'Past' WHERE id = (SELECT min(id) FROM app_article)"
        )
        cursor.execute("SET LOCAL session_replication_role = origin")

    assert f"{KEY}: 2 rows queued" in run("embed_reconcile", "--specs", KEY)
    assert f"{KEY}: 1 rows queued" in run("embed_reconcile", "--specs", KEY, "--deep")


def test_reconcile_begins_at_the_first_row_wherever_a_worker_was(make_article, run_jobs):
    run_jobs()
    make_gaps(3)
    last = Article.objects.latest("pk").pk
    ScanCursor.objects.create(spec=KEY, scan="missing", cursor=str(last))

    assert f"{KEY}: 3 rows queued" in run("embed_reconcile", "--specs", KEY)


def test_reconcile_says_where_the_backlog_is_full(make_article, run_jobs, monkeypatch):
    run_jobs()
    make_gaps(3)
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 2)

    with pytest.raises(CommandError, match=rf"Not finished: {KEY} \(missing\)") as caught:
        run("embed_reconcile", "--specs", KEY)

    assert caught.value.returncode == 1


def test_reconcile_needs_a_space():
    with pytest.raises(CommandError, match="embed_worker once"):
        run("embed_reconcile", "--specs", KEY)


# embed_backfill


def test_a_backfill_queues_gaps_behind_everything_else(run_jobs):
    run_jobs()
    make_gaps(3)

    told = run("embed_backfill", KEY, "--no-wait")

    assert f"{KEY}: checked 3 rows, 3 queued." in told
    assert "No worker is running" in told
    assert set(Job.objects.values_list("kind", "priority")) == {("backfill", -2000)}


def test_rows_can_be_chosen_and_what_is_no_field_is_refused(run_jobs):
    run_jobs()
    make_gaps(3)

    told = run(
        "embed_backfill",
        KEY,
        "--no-wait",
        "--where",
        "title__in=Title 1,Title 2",
        "--where",
        "category__isnull=true",
    )

    assert "checked 2 rows, 2 queued" in told
    assert exit_status("embed_backfill", KEY, "--where", "nothing=1") == 2
    assert exit_status("embed_backfill", KEY, "--where", "pk=x") == 2
    with pytest.raises(CommandError, match="not of the form FIELD=VALUE"):
        run("embed_backfill", KEY, "--where", "title")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("title__regex=[", "--where on Article: invalid regular expression"),
        ("published_time__year=" + "9" * 20, "--where on Article: Python int too large"),
        ("title=\0", "--where on Article: PostgreSQL text fields cannot contain NUL"),
        ("title__range=abc", "'title__range=abc': a range is two values with a comma"),
        ("category__isnull=perhaps", "'category__isnull=perhaps': 'perhaps' is not true or false"),
    ],
)
def test_what_no_row_can_be_compared_with_is_refused(make_article, run_jobs, where, said):
    make_article()
    run_jobs()

    with pytest.raises(CommandError, match=re.escape(said)):
        run("embed_backfill", KEY, "--no-wait", "--where", where)


def test_rows_are_chosen_from_a_program_as_from_a_shell(run_jobs):
    run_jobs()
    make_gaps(3)

    told = run(
        "embed_backfill", KEY, no_wait=True, where=[("title__range", ["Title 1", "Title 2"])]
    )

    assert "checked 2 rows, 2 queued" in told


def test_conditions_on_one_field_have_to_hold_together(run_jobs):
    run_jobs()
    make_gaps(12)
    wheres = ("--where", "title__contains=1", "--where", "title__contains=2")

    assert "checked 1 row, 1 queued" in run("embed_backfill", KEY, "--no-wait", *wheres)


def test_a_row_counts_once_however_many_related_ones_it_is_chosen_by(run_jobs):
    run_jobs()
    make_gaps(2)
    for article in Article.objects.all():
        ArticleComment.objects.bulk_create(ArticleComment(article=article) for _ in range(3))
    where = ("--where", "articlecomment__isnull=false")

    told = run("embed_backfill", KEY, "--no-wait", "--force", *where)

    assert "checked 2 rows, 2 queued" in told


def test_a_backfill_goes_on_where_it_was_stopped(spec, run_jobs):
    run_jobs()
    make_gaps(5)
    Backfill(spec, using="default", where=()).step(limit=2)

    told = run("embed_backfill", KEY, "--no-wait")

    assert f"{KEY}: continuing after" in told
    assert "checked 3 rows, 3 queued" in told
    assert Job.objects.count() == 5
    assert "checked 5 rows, 0 queued" in run("embed_backfill", KEY, "--no-wait")


def test_another_condition_is_another_backfill(spec, run_jobs):
    run_jobs()
    make_gaps(5)
    Backfill(spec, using="default", where=()).step(limit=2)
    assert Backfill(spec, using="default", where=[("title", "x")]).resumed_from is None


def test_the_workers_do_not_take_a_backfills_cursor_for_their_own(spec, run_jobs):
    run_jobs()
    make_gaps(5)
    Backfill(spec, using="default", where=()).step(limit=2)

    assert "backfill" not in reconcile.under_way([spec], using="default").get(spec, [])


def test_the_backlog_of_a_backfill_is_bounded(spec, run_jobs, monkeypatch):
    run_jobs()
    make_gaps(5)
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 2)
    filling = Backfill(spec, using="default", where=())

    assert filling.step().enqueued == 2
    assert filling.step() is None
    run_jobs()
    assert filling.step().enqueued == 2
    run_jobs()
    assert filling.step() == backfill.Step(rows=1, enqueued=1, is_last=True)


def test_a_backfill_waits_until_all_is_embedded(run_jobs, monkeypatch):
    run_jobs()
    make_gaps(4)
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        run_jobs()

    patience(monkeypatch, "embed_backfill", sleep)

    told = run("embed_backfill", KEY)

    assert waits == [0.5]
    assert "checked 4 rows, 4 embedded or failed" in told
    assert ArticleEmbedding.objects.count() == 4


def test_a_backfill_waits_for_what_is_at_work_too(run_jobs, monkeypatch):
    run_jobs()
    make_gaps(2)
    held, waits = [], []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if not held:
            held.extend(claim(limit=2))
        else:
            Job.objects.filter(pk__in=[one.id for one in held]).delete()

    patience(monkeypatch, "embed_backfill", sleep)

    run("embed_backfill", KEY)

    assert len(waits) == 2  # while they wait, and while they are at work


def test_ctrl_c_leaves_what_is_queued(run_jobs, monkeypatch):
    run_jobs()
    make_gaps(4)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    patience(monkeypatch, "embed_backfill", interrupt)

    assert exit_status("embed_backfill", KEY) == 130
    assert Job.objects.filter(status="pending").count() == 4


def test_a_backfill_that_has_ended_is_forgotten_after_a_day():
    now = timezone.now()
    for name, finished_at in (("old", now - timedelta(days=2)), ("new", now), ("open", None)):
        ScanCursor.objects.create(
            spec=KEY, scan="backfill", selection=name, finished_at=finished_at
        )
    ScanCursor.objects.create(spec=KEY, scan="missing", finished_at=now - timedelta(days=2))

    Maintenance({}).upkeep.prune_spaces()

    assert set(ScanCursor.objects.values_list("scan", "selection")) == {
        ("backfill", "new"),
        ("backfill", "open"),
        ("missing", ""),
    }


def test_force_embeds_anew_what_is_fresh(make_article, run_jobs, make_worker, provider):
    make_article()
    run_jobs()
    provider.reset()

    assert "checked 1 row, 0 queued" in run("embed_backfill", KEY, "--no-wait")
    assert "checked 1 row, 1 queued" in run("embed_backfill", KEY, "--no-wait", "--force")
    run_jobs()

    assert len(provider.embedded) == 1
    assert ArticleEmbedding.objects.count() == 1


@pytest.fixture
def written(make_article, run_jobs, connect, monkeypatch, transactional_db):
    """Three rows, of which another session is writing the second. Yields them and the session.

    The command waits no longer than it takes to note that it did.
    """
    articles = [make_article() for _ in range(3)]
    run_jobs()
    other = connect()
    other.execute("UPDATE app_article SET title = 'x' WHERE id = %s", [articles[1].pk])
    patience(monkeypatch, "embed_backfill", lambda seconds: None)
    yield articles, other
    other.rollback()


def outdated() -> set[int]:
    """The rows of which nothing will be reused."""
    rows = ArticleEmbedding.objects.filter(chunk_digest=b"")
    return set(rows.values_list("source_id", flat=True))


def test_force_comes_back_to_rows_that_were_being_written(written, monkeypatch):
    articles, other = written
    patience(monkeypatch, "embed_backfill", lambda seconds: other.rollback())

    told = run("embed_backfill", KEY, "--no-wait", "--force")

    assert "checked 3 rows, 3 queued" in told
    assert outdated() == {article.pk for article in articles}


def test_force_tells_which_rows_it_could_not_have_embedded_anew(written):
    articles, other = written

    with pytest.raises(CommandError) as raised:
        run("embed_backfill", KEY, "--no-wait", "--force")

    assert raised.value.returncode == 1
    assert "1 row locked by an open transaction" in str(raised.value)
    assert "not queued yet. Run the same command again" in str(raised.value)
    assert outdated() == {articles[0].pk, articles[2].pk}

    other.rollback()
    told = run("embed_backfill", KEY, "--no-wait", "--force")

    assert "with 1 row locked before" in told
    assert "checked no rows, 1 queued" in told
    assert outdated() == {article.pk for article in articles}
    assert "checked 3 rows, 3 queued" in run("embed_backfill", KEY, "--no-wait", "--force")


def test_stopped_it_tells_them_too(written, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    patience(monkeypatch, "embed_backfill", interrupt)
    out = io.StringIO()

    with pytest.raises(CommandError):
        call_command("embed_backfill", KEY, "--force", stdout=out, stderr=out)

    assert "1 row locked by an open transaction and not queued yet. Run the" in out.getvalue()


BULK = 400


@pytest.fixture
def bulk(run_jobs, connect, monkeypatch, transactional_db):
    """Rows that another session is writing, all of them, and that session."""
    Article.objects.bulk_create(
        Article(title=f"Title {n}", contents="Contents", published_time=PUBLISHED)
        for n in range(BULK)
    )
    run_jobs()
    other = connect()
    other.execute("UPDATE app_article SET title = 'x'")
    patience(monkeypatch, "embed_backfill", lambda seconds: None)
    yield other
    other.rollback()


def test_force_asks_a_bulk_write_for_many_rows_at_once(bulk):
    with CaptureQueriesContext(connection) as asked, pytest.raises(CommandError) as raised:
        run("embed_backfill", KEY, "--no-wait", "--force")

    assert f"{BULK:,} rows locked by an open transaction" in str(raised.value)
    waits = [one for one in asked if "INSERT INTO pgembed_job" in one["sql"]]
    assert len(waits) <= 21 * MAX_BUSY


def test_force_that_comes_back_keeps_to_the_bound_of_the_backlog(bulk, spec, monkeypatch):
    filling = Backfill(spec, using="default", where=(), force=True)
    filling.step()
    bulk.rollback()
    monkeypatch.setattr(reconcile, "MAX_BACKLOG", 100)

    assert filling.step() == backfill.Step(rows=0, enqueued=100, is_last=False)
    assert filling.step() is None
    assert len(filling.left) == BULK - 100


def test_force_walks_on_only_while_few_rows_are_left_behind(bulk, spec, monkeypatch):
    monkeypatch.setattr(backfill, "MAX_LEFT", 50)

    with pytest.raises(CommandError) as raised:
        run("embed_backfill", KEY, "--no-wait", "--force")

    assert "50 rows locked by an open transaction" in str(raised.value)
    bulk.rollback()
    told = run("embed_backfill", KEY, "--no-wait", "--force")
    assert f"checked {BULK - 50} rows, {BULK} queued" in told
    assert len(outdated()) == BULK


def test_a_dry_run_counts_and_queues_nothing(make_article, run_jobs):
    make_article()
    run_jobs()
    make_gaps(2)

    told = run("embed_backfill", KEY, "--dry-run", "--price", "1000000")
    cheap = run("embed_backfill", KEY, "--dry-run", "--price", "0.02")
    forced = run("embed_backfill", KEY, "--dry-run", "--force")

    assert "bag-of-words: 2 rows, 2 chunks, about" in told
    assert "costs about" in told
    assert "costs less than 0.01\n" in cheap
    assert "bag-of-words: 3 rows, 3 chunks" in forced
    assert not Job.objects.filter(status="pending").exists()


def test_a_dry_run_before_the_first_worker_counts_all(make_article):
    make_article()

    assert "bag-of-words: 1 rows" in run("embed_backfill", KEY, "--dry-run")
    assert exit_status("embed_backfill", KEY) == 2


def test_a_dry_run_counts_tokens_where_the_provider_can(settings):
    settings.PGEMBED_PROVIDERS = {
        "default": {
            "BACKEND": "pgembed_django.providers.wordllama.WordLlamaProvider",
            "MODEL": "l2_supercat",
            "DIMENSIONS": 64,
            "OPTIONS": {"document_prefix": "a "},
        }
    }
    Note.objects.create(body="b c d e f g h")

    told = run("embed_backfill", "app.NoteEmbedding", "--dry-run")

    assert "1 rows, 1 chunks, about 8 tokens" in told


class Unloadable(PlayedProvider):
    def count_tokens(self, text: str) -> int:
        raise ProviderMisconfigured("The model cannot be loaded.")


def test_a_dry_run_says_why_tokens_cannot_be_counted(settings, make_article):
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Unloadable", "MODEL": "gone", "DIMENSIONS": 64}
    }
    make_article()

    with pytest.raises(CommandError, match=r"^The model cannot be loaded\.$"):
        run("embed_backfill", KEY, "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run", "--price", "-1"], "'-1' is not a number above zero"),
        (["--price", "2"], "--price needs --dry-run"),
        (["--dry-run", "--price", "none"], "'none' is not a number above zero"),
        (["--dry-run", "--no-wait"], "--dry-run cannot be combined with --no-wait"),
        (["--specs", "app.Nothing"], "No spec named 'app.Nothing'"),
    ],
)
def test_a_backfill_leaves_no_option_out_of_account(arguments, message):
    with pytest.raises(CommandError, match=re.escape(message)):
        run("embed_backfill", KEY, *arguments)


def test_a_backfill_never_goes_before_a_write(run_jobs, make_article):
    run_jobs()
    make_gaps(5)
    run("embed_backfill", KEY, "--no-wait")
    written = make_article()

    [held] = jobs.claim([KEY], lease=jobs.Lease(1, 60), limit=1, using="default")

    assert held.source_pk == str(written.pk)


def test_ctrl_c_is_an_answer_and_no_traceback(run_jobs):
    run_jobs()

    def interrupt(execute: Any, statement: str, *rest: Any) -> Any:
        if "pgembed_scancursor" in statement:
            raise KeyboardInterrupt
        return execute(statement, *rest)

    with (
        connection.execute_wrapper(interrupt),
        pytest.raises(CommandError, match=r"^Stopped\.$") as caught,
    ):
        run("embed_reconcile", "--specs", KEY)

    assert caught.value.returncode == 130


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_in_a_terminal_and_lines_elsewhere():
    terminal, log = Terminal(), io.StringIO()
    now = 0.0
    with progress(10, what="Retry", unit="rows", out=OutputWrapper(terminal)) as show:
        show(4)
    with progress(10, what="Retry", unit="rows", out=OutputWrapper(log), clock=lambda: now) as show:
        show(2)
        now = 10.0
        show(5)
        show(4)

    assert "4/10" in terminal.getvalue()
    assert log.getvalue() == "Retry: 5 of 10 rows, 0.5 a second, about 10 s to go\n"


def test_progress_needs_no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    out = Terminal()
    with progress(
        1, what="x", unit="rows", out=OutputWrapper(out), clock=iter([0, 9, 9]).__next__
    ) as show:
        show(1)

    assert out.getvalue() == "x: 1 of 1 rows, 0.1 a second\n"
