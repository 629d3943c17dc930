"""I2: the application's transactions never fail or wait because of us."""

from __future__ import annotations

import threading

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from psycopg import sql

from pgembed_django import spaces
from pgembed_django.core import database, faults
from pgembed_django.declaration import specs
from pgembed_django.models import Ending, Job, ScanCursor
from pgembed_django.queue import jobs, sessions
from pgembed_django.queue.jobs.enqueueing import MAX_BUSY
from pgembed_django.spaces import reconcile
from pgembed_django.spaces.reembedding import reembed
from tests.app.models import Article, ArticleEmbedding
from tests.conftest import PUBLISHED, embedded_text, wait_until
from tests.db.conftest import (
    Maintenance,
    backend_pid,
    claim,
    expire_leases,
    lock_refusals,
    make_due,
    reap,
    reconcile_deeply,
    until_waiting,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("impatient", "live_space"),
]

TOUCH = "UPDATE app_article SET contents = md5(contents) WHERE id = %s"
TOUCH_ALL = "UPDATE app_article SET contents = md5(contents)"
DELETE = "DELETE FROM app_article WHERE id = %s"


def articles(count: int) -> list[Article]:
    """Make rows in one statement, with one job each."""
    return Article.objects.bulk_create(
        Article(title=f"Title {n}", contents="x", published_time=PUBLISHED) for n in range(count)
    )


@pytest.fixture
def live_space(transactional_db):
    return spaces.ensure(spec(), using="default")


def spec() -> specs.Spec:
    return specs.get("app.ArticleEmbedding")


@pytest.mark.parametrize("ending", ["retry", "release", "reap"])
def test_no_deadlock_between_a_deleter_and_a_job_that_goes_back(make_article, writer, ending):
    article = make_article()
    [held] = claim()
    expire_leases()
    # The writer has the unit's new job; we have its running one and want to make it pending;
    # then the writer wants the running one, too.
    writer.connection.execute(TOUCH, [article.pk])
    writer.start(DELETE, article.pk, once_waits=backend_pid())

    if ending == "reap":
        results = reap()
    elif ending == "release":
        results = [jobs.release(held, using="default")]
    else:
        results = [jobs.retry(held, "no", max_attempts=5, delay_seconds=0, using="default")]

    assert results == ["busy"]
    writer.end()
    writer.connection.commit()
    assert not Article.objects.exists()


def test_no_deadlock_between_a_bulk_writer_and_the_reconciler(writer):
    first, second, third = articles(3)
    Job.objects.all().delete()
    # The reconciler adds the first job, and waits for the second; then the writer wants the first.
    writer.connection.execute(TOUCH, [second.pk])
    writer.start(TOUCH, first.pk, once_waits=backend_pid())

    reconcile.reconcile_once(spec(), using="default")

    writer.end()
    writer.connection.commit()
    assert Job.objects.filter(status="pending").count() == 3
    assert {str(third.pk)} <= set(Job.objects.values_list("source_pk", flat=True))


def test_no_deadlock_between_a_bulk_writer_and_a_person_who_embeds_anew(writer):
    first, second, third = articles(3)
    Job.objects.all().delete()
    # As above: all three are asked for in one transaction.
    writer.connection.execute(TOUCH, [second.pk])
    writer.start(TOUCH, first.pk, once_waits=backend_pid())

    done = reembed(spec(), [str(one.pk) for one in (first, second, third)], using="default")

    writer.end()
    writer.connection.commit()
    assert str(second.pk) in done.busy
    assert str(third.pk) not in done.busy
    assert Job.objects.filter(status="pending").count() == 3


@pytest.mark.parametrize("verb", [jobs.dismiss, jobs.retry_failed])
def test_no_deadlock_between_a_bulk_deleter_and_a_person_at_the_failures(writer, verb):
    first, second = articles(2)
    for held in claim():
        jobs.fail(held, "no", using="default")
    by_unit = dict(Job.objects.values_list("source_pk", "pk"))
    # The person's order is not the deleter's.
    chosen = [by_unit[str(second.pk)], by_unit[str(first.pk)]]
    writer.connection.execute(DELETE, [first.pk])
    writer.start(DELETE, second.pk, once_waits=backend_pid())

    with transaction.atomic():  # ATOMIC_REQUESTS
        verb(chosen, using="default")
        writer.go()
        wait_until(lambda: writer.is_waiting() or writer.has_ended())

    writer.end()
    writer.connection.commit()
    assert not Article.objects.exists()


def test_a_writer_that_waits_for_us_first_is_not_chosen_in_a_deadlock_either(writer):
    first, second = articles(2)
    writer.connection.execute(TOUCH, [second.pk])

    # We hold what the writer waits for. After deadlock_timeout its wait, the older, would fail.
    with pytest.raises(database.Busy), database.giving_way("default"):  # noqa: PT012
        Job.objects.select_for_update().get(source_pk=str(first.pk))
        writer.start(TOUCH, first.pk)
        until_waiting(writer)
        Job.objects.select_for_update().get(source_pk=str(second.pk))

    writer.end()
    writer.connection.commit()


def test_an_open_deleter_costs_no_other_lease_its_renewal(writer):
    gone, other = articles(2)
    held = claim()
    expire_leases()
    writer.connection.execute(DELETE, [gone.pk])

    found = jobs.heartbeat(held, lease_seconds=600, using="default")

    assert len(found.ours) == len(found.locked) == 1
    assert not found.lost
    [alive] = Job.objects.filter(source_pk=str(other.pk))
    assert Job.objects.filter(pk=alive.pk, lease_expires_at__gt=alive.started_at).exists()
    assert reap() == []  # the deleter's is skipped, the other one has its lease


def test_an_open_deleter_costs_no_other_row_its_vectors(writer, make_worker):
    gone, other = articles(2)
    worker = make_worker()
    worker.step()
    writer.connection.execute(DELETE, [gone.pk])

    worker.step(claim=False)
    assert embedded_text(other)
    assert [unit.claim.source_pk for unit in worker.handler.units.by_id.values()] == [str(gone.pk)]
    assert worker.held.is_blocked  # so the worker looks again soon
    writer.connection.rollback()
    worker.step(claim=False)

    assert embedded_text(gone)
    assert worker.held.is_empty


def test_an_open_deleter_costs_no_other_job_its_release_when_the_worker_stops(writer, make_worker):
    rows = articles(9)
    worker = make_worker()
    worker.claim()
    gone = [row.pk for row in rows[:5]]
    writer.connection.execute("DELETE FROM app_article WHERE id = ANY(%s)", [gone])

    worker.release()

    released = Job.objects.filter(status="pending").values_list("source_pk", flat=True)
    assert set(released) == {str(row.pk) for row in rows[5:]}


def test_a_person_with_an_open_request_costs_the_other_rows_nothing(
    writer, connect, make_worker, run_jobs
):
    failed, other = articles(2)
    for held in claim():
        jobs.fail(held, "no", using="default")
    Article.objects.update(title="again")
    worker = make_worker()
    worker.step()
    person = connect()
    person.execute(
        "UPDATE pgembed_job SET settled_at = now() WHERE status = 'failed' AND source_pk = %s",
        [str(failed.pk)],
    )
    # Storing must give way to the person, or a deleter of the other row would wait for both.
    worker.step(claim=False)
    writer.connection.execute("SET lock_timeout = '20s'")
    writer.connection.execute(DELETE, [other.pk])
    writer.connection.commit()

    person.rollback()
    worker.step(claim=False)

    assert embedded_text(failed).startswith("again")
    assert worker.held.is_empty


@pytest.mark.parametrize("statement", ["DELETE FROM app_article", TOUCH_ALL])
def test_an_open_bulk_writer_does_not_keep_the_reaper_for_long(writer, statement):
    articles(60)
    assert len(claim()) == 60
    expire_leases()
    writer.connection.execute(statement)

    with lock_refusals() as refused:
        endings = reap()

    assert set(endings) <= {Ending.BUSY}
    assert len(refused) <= 60, "it waits once for each, and briefly"


def test_a_lease_that_a_writer_keeps_from_the_reaper_is_told_once(make_article, writer, caplog):
    article = make_article()
    claim()
    expire_leases()
    writer.connection.execute(TOUCH, [article.pk])
    maintenance = Maintenance(
        {spec().key: spec()},
    )

    def told() -> list[str]:
        maintenance.reap()
        return [one.result for one in caplog.records if one.event == "pgembed.lease_expired"]

    assert told() == []
    writer.connection.commit()
    assert told() == ["superseded"]


def test_a_writer_waits_for_no_reconciler_that_meets_a_bulk_writer(writer):
    """What a page has added, other writers wait for until the page ends: it must end soon."""
    rows = articles(300)
    free, taken = rows[:100], rows[100:]
    # Their new versions may lie behind the others in the table.
    Article.objects.filter(pk__in=[row.pk for row in free]).update(contents="y")
    Job.objects.all().delete()
    writer.connection.execute(f"{TOUCH_ALL} WHERE id = ANY(%s)", [[row.pk for row in taken]])

    with lock_refusals() as refused:
        added = reconcile.reconcile_once(spec(), using="default")

    assert len(refused) <= MAX_BUSY
    assert 0 < added <= 100
    writer.connection.rollback()
    # What was left out is found again.
    reconcile.reconcile_once(spec(), using="default")
    assert Job.objects.filter(status="pending").count() == 300


def test_a_writer_never_waits_longer_than_a_short_transaction(connect, make_worker):
    """A worker embeds, stores, reaps and reconciles; a hot row is written all the time."""
    rows = articles(200)
    worker = make_worker(claim_limit=20, batch_size=8)
    hot = HotRow(connect(autocommit=True), rows[10])

    with hot:
        for _ in range(40):
            worker.step()
            worker.held.heartbeat()
            expire_leases()
            reap()
            make_due()
            reconcile_deeply("app.ArticleEmbedding")

    assert hot.writes > 20


class HotRow:
    """Writes one row again and again. A write that waits long for a lock fails."""

    def __init__(self, own: psycopg.Connection, row: Article) -> None:
        self.writes = 0
        self._connection, self._row = own, row
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._connection.execute(TOUCH, [self._row.pk])
                self.writes += 1
        except psycopg.Error as error:
            self._error = error

    def __enter__(self) -> None:
        self._connection.execute("SET lock_timeout = '20s'")
        self._connection.execute("SET synchronous_commit = off")
        self._thread.start()
        wait_until(lambda: self.writes > 3)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error


def test_an_outage_of_the_provider_is_no_matter_to_a_save(
    make_article, provider, second_connection, make_worker
):
    provider.is_down = True
    article = make_article()
    worker = make_worker()
    worker.step()
    worker.step()
    second_connection.execute("SET statement_timeout = '20s'")

    second_connection.execute(TOUCH, [article.pk])
    second_connection.execute(DELETE, [article.pk])
    second_connection.commit()

    assert not ArticleEmbedding.objects.exists()


def test_a_worker_that_dies_in_mid_transaction_holds_nobody_up(make_article, connect, writer):
    article = make_article()
    [held] = claim()
    dying = connect()
    dying.execute(
        jobs.leases.HOLD,
        {"ids": [held.id], "tokens": [held.token], "started_at": f'{{"{held.started_at}"}}'},
    )
    writer.start(DELETE, article.pk)
    until_waiting(writer)

    connection.cursor().execute("SELECT pg_terminate_backend(%s)", [dying.info.backend_pid])

    writer.end()
    writer.connection.commit()
    assert not Job.objects.filter(status="running").exists()


@pytest.mark.parametrize("pipelined", [False, True], ids=["singly", "pipelined"])
def test_a_worker_that_freezes_in_mid_transaction_is_cut_off(
    make_article, writer, monkeypatch, pipelined
):
    """SIGSTOP, a paused virtual machine: nobody will end that transaction but Postgres."""
    monkeypatch.setattr(sessions, "FROZEN_AFTER", "200ms")
    article = make_article()
    [held] = claim()
    connection.close()
    sessions.configure_sessions("default")
    try:
        storing = database.giving_way("default", pipelined=pipelined)
        with pytest.raises(DatabaseError) as caught, storing:  # noqa: PT012
            assert jobs.hold([held], using="default").ours
            writer.start(DELETE, article.pk)
            writer.end()  # as soon as Postgres has cut us off
            Job.objects.count()
        assert faults.is_lost_connection(caught.value)
    finally:
        connection.close()
        sessions.leave_sessions("default")
    writer.connection.commit()
    assert not Article.objects.exists()


def test_pruning_waits_for_nobody(make_article, run_jobs, second_connection):
    articles = [make_article(), make_article()]
    run_jobs()
    Job.objects.update(finished_at="2020-01-01T00:00:00Z")
    locked = Job.objects.get(source_pk=str(articles[0].pk))
    second_connection.execute("SELECT FROM pgembed_job WHERE id = %s FOR UPDATE", [locked.pk])

    assert jobs.prune(keep_seconds=60, using="default") == 1

    assert Job.objects.get() == locked


def test_workers_run_in_read_committed_whatever_the_settings_say(settings, connect):
    before = connection.settings_dict["OPTIONS"].copy()
    connection.close()
    connection.settings_dict["OPTIONS"]["isolation_level"] = psycopg.IsolationLevel.SERIALIZABLE
    try:
        sessions.configure_sessions("default")
        for _ in range(2):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SHOW transaction_isolation")
                assert cursor.fetchone() == ("read committed",)
            connection.close()  # and after a reconnect
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = before
        sessions.leave_sessions("default")


def test_a_statement_by_itself_is_read_committed_too_whatever_the_database_says(connect):
    own = connect()
    own.autocommit = True
    name = sql.Identifier(connection.settings_dict["NAME"])
    default = "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'"
    connection.close()
    try:
        own.execute(sql.SQL(default).format(name))
        sessions.configure_sessions("default")
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
    finally:
        own.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_isolation").format(name))
        connection.close()
        sessions.leave_sessions("default")


def test_no_function_of_ours_costs_a_subtransaction_a_row():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(*) FILTER (WHERE prosrc ~* '\\mexception\\s+when\\M') "
            "FROM pg_proc WHERE proname LIKE '%pgembed%'"
        )
        functions, with_exception_blocks = cursor.fetchone()
    assert functions > 10
    assert with_exception_blocks == 0


class TestOtherIsolationLevels:
    """What writers meet outside READ COMMITTED: what docs/guarantees.md says, and no more."""

    def snapshot(self, own: psycopg.Connection, level: psycopg.IsolationLevel) -> None:
        own.isolation_level = level
        own.execute("SELECT count(*) FROM app_article")

    @pytest.mark.parametrize(
        "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
    )
    @pytest.mark.parametrize("meanwhile", ["nothing", "claim", "store", "heartbeat", "release"])
    def test_an_update_goes_through_whatever_a_worker_does_meanwhile(
        self, make_article, make_worker, connect, run_jobs, level, meanwhile
    ):
        article = make_article(title="old")
        worker = make_worker()
        if meanwhile in ("heartbeat", "release"):
            worker.step()
        own = connect()
        self.snapshot(own, level)
        if meanwhile in ("claim", "store"):
            worker.step()
        if meanwhile == "store":
            worker.step(claim=False)
        elif meanwhile == "heartbeat":
            worker.held.heartbeat()
        elif meanwhile == "release":
            worker.release()

        error = None
        try:
            own.execute("UPDATE app_article SET title = 'new' WHERE id = %s", [article.pk])
            own.commit()
        except psycopg.errors.SerializationFailure as failure:
            error = failure
            own.rollback()

        # The one thing of ours that they can meet: a job that came back to pending, or was
        # added, after their snapshot.
        assert (error is not None) == (meanwhile == "release")
        worker.step(claim=False)
        run_jobs()
        assert embedded_text(article).startswith("old" if error else "new")

    @pytest.mark.parametrize(
        ("meanwhile", "fails"),
        [("claim", False), ("store", False), ("heartbeat", True), ("complete", True)],
    )
    def test_a_delete_fails_only_where_what_it_deletes_was_just_written(
        self, make_article, make_worker, connect, run_jobs, meanwhile, fails
    ):
        article = make_article(title="old")
        worker = make_worker()
        if fails:
            worker.step()
        own = connect()
        self.snapshot(own, psycopg.IsolationLevel.REPEATABLE_READ)
        if not fails:
            worker.step()
        if meanwhile in ("store", "complete"):
            worker.step(claim=False)
        elif meanwhile == "heartbeat":
            worker.held.heartbeat()

        if fails:
            with pytest.raises(psycopg.errors.SerializationFailure):
                own.execute(DELETE, [article.pk])
            own.rollback()
            self.snapshot(own, psycopg.IsolationLevel.REPEATABLE_READ)  # they try again
        own.execute(DELETE, [article.pk])
        own.commit()

        worker.step(claim=False)
        run_jobs()
        assert not ArticleEmbedding.objects.exists()

    def test_serializable_writers_of_different_rows_do_not_meet_in_our_tables(
        self, make_article, connect
    ):
        first, second = make_article(), make_article()
        Job.objects.all().delete()
        one, other = connect(), connect()
        for own in (one, other):
            own.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        one.execute(TOUCH, [first.pk])
        other.execute(TOUCH, [second.pk])
        one.commit()
        other.commit()

        assert Job.objects.count() == 2


def test_a_worker_is_not_held_up_by_a_table_that_is_locked(writer, make_worker):
    [article] = articles(1)
    writer.connection.execute("LOCK TABLE app_article IN ACCESS EXCLUSIVE MODE")
    worker = make_worker()

    while worker.step():
        pass

    assert worker.held.is_empty
    [job] = Job.objects.all()
    assert (job.status, job.attempts) == ("pending", 0)
    writer.connection.rollback()
    Job.objects.update(run_at="2020-01-01T00:00:00Z")
    while worker.step():
        pass
    assert embedded_text(article)


def test_the_reconciler_is_not_held_up_by_a_table_that_is_locked(writer):
    articles(1)
    Job.objects.all().delete()
    writer.connection.execute("LOCK TABLE app_article IN ACCESS EXCLUSIVE MODE")

    assert reconcile.reconcile_once(spec(), using="default") == 0

    writer.connection.rollback()
    assert reconcile.reconcile_once(spec(), using="default") == 1
    scans = ScanCursor.objects.filter(scan__in=reconcile.CHEAP_SCANS)
    assert scans.exists()
    assert not scans.filter(finished_at=None)
