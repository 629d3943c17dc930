"""What applications, operators and Postgres do around us."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pgtrigger
import psycopg
import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connection, connections
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from pgembed_django import sources
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from pgembed_django.queue import jobs, sessions
from pgembed_django.queue.listener import Listener
from pgembed_django.queue.maintenance import Chore, Chores
from pgembed_django.queue.worker import Worker
from pgembed_django.spaces import reconcile
from tests.app.models import (
    Article,
    ArticleEmbedding,
    Note,
    NoteEmbedding,
    Page,
    PageExtra,
    PageExtraEmbedding,
)
from tests.conftest import embedded_text, testing_url, wait_until
from tests.db.conftest import claim, reap, reconcile_deeply, until_waiting

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("impatient")]


SESSION = """
    SELECT
        current_setting('idle_in_transaction_session_timeout'),
        current_setting('idle_session_timeout'),
        current_setting('row_security'),
        current_setting('default_transaction_isolation')
"""


def pending(key: str = "app.ArticleEmbedding") -> int:
    return Job.objects.filter(spec=key, status="pending").count()


@pytest.fixture
def alias() -> Iterator[Callable[..., str]]:
    """Further ways to the test database, by other settings."""
    made = []

    def make(name: str, **changes: Any) -> str:
        connections[name] = connection.copy(name)
        connections[name].settings_dict.update(changes)
        made.append(name)
        return name

    yield make
    for name in made:
        connection_created.disconnect(dispatch_uid=f"pgembed-{name}")
        connections[name].close()
        connections[name].close_pool()
        del connections[name]


def saving(request: HttpRequest) -> HttpResponse:
    Article.objects.create(title="saved", published_time="2026-01-01T00:00:00Z")
    if "fails" in request.GET:
        raise RuntimeError("after the save")
    return HttpResponse(str(pending()))


urlpatterns = [path("save", saving)]


class TestAtomicRequests:
    @pytest.fixture(autouse=True)
    def atomic_requests(self, settings: Any) -> Iterator[None]:
        settings.ROOT_URLCONF = __name__
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        yield
        connection.settings_dict["ATOMIC_REQUESTS"] = False

    def test_a_request_that_succeeds_leaves_its_job(self, run_jobs):
        assert Client().get("/save").content == b"1"

        run_jobs()
        assert embedded_text(Article.objects.get()) == "saved"

    def test_a_request_that_fails_leaves_neither_row_nor_job(self):
        Client(raise_request_exception=False).get("/save?fails")

        assert (Article.objects.count(), Job.objects.count()) == (0, 0)


def test_a_worker_on_a_connection_pool(alias, make_article, make_worker):
    pytest.importorskip("psycopg_pool")
    options = {**connection.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 2}}
    pooled = alias("pooled", OPTIONS=options, CONN_MAX_AGE=0)
    article = make_article()
    sessions.configure_sessions(pooled)
    worker = make_worker(using=pooled)

    for _ in range(3):
        worker.step()
        connections[pooled].close()  # given back, and perhaps another one taken next

    assert embedded_text(article)


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test database by a pool, also in other threads."""
    pytest.importorskip("psycopg_pool")
    options = {**connection.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 3}}
    connection.close()
    with monkeypatch.context() as changed:
        changed.setitem(connection.settings_dict, "OPTIONS", options)
        yield
        connection.close()
        connection.close_pool()


@pytest.fixture
def bound_by_the_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that a worker sends is prepared, the ORM's statements too, also in other threads."""
    options = {**connection.settings_dict["OPTIONS"], "server_side_binding": True}
    connection.close()
    with monkeypatch.context() as changed:
        changed.setitem(connection.settings_dict, "OPTIONS", options)
        sessions.configure_sessions("default", is_direct=True)
        yield
        sessions.leave_sessions("default")
        connection.close()


@pytest.mark.usefixtures("bound_by_the_server")
def test_a_chore_whose_columns_have_other_types_by_now_goes_on(second_connection):
    second_connection.execute("CREATE TABLE plain AS SELECT 1 AS id, 'a'::text AS title")
    second_connection.commit()
    seen, done = [], threading.Event()

    def look() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT title FROM plain WHERE id = %s", [1])
            seen.extend(cursor.fetchall())
        if len(seen) == 2 * sessions.PREPARE_AFTER:
            second_connection.execute("ALTER TABLE plain ALTER title TYPE varchar(5)")
            second_connection.commit()
        return len(seen) > 2 * sessions.PREPARE_AFTER

    chores = Chores("look", [Chore(0.001, look)], using="default", wake=done.set)
    chores.start()
    try:
        assert done.wait(10)
        chores.check()
    finally:
        chores.stop()
        second_connection.execute("DROP TABLE plain")
        second_connection.commit()


def session() -> tuple[Any, ...]:
    """Return how the session of this thread is set up."""
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        return *cursor.fetchone(), connection.connection.isolation_level


def test_whoever_calls_a_worker_has_no_session_like_its_own_afterwards(make_article):
    article, before = make_article(), session()

    call_command("embed_worker", drain=True, verbosity=0)

    assert session() == before
    assert embedded_text(article)


@pytest.mark.usefixtures("pooled")
def test_nor_does_the_pool_hand_such_a_session_out(make_article):
    article, before = make_article(), session()

    call_command("embed_worker", drain=True, verbosity=0)

    assert embedded_text(article)
    for _ in range(3):
        assert session() == before
        connection.close()  # for the next one of the pool


def test_a_time_out_of_idle_sessions_ends_none_of_a_workers(alias, connect):
    options = {**connection.settings_dict["OPTIONS"], "options": "-c idle_session_timeout=50ms"}
    hurried = alias("hurried", OPTIONS=options)
    sessions.configure_sessions(hurried)
    with closing(Listener(["app.ArticleEmbedding"], using=hurried)) as listener:
        assert listener.open()
        forgotten = connect(autocommit=True)
        forgotten.execute("SET idle_session_timeout = '50ms'")
        with pytest.raises(psycopg.OperationalError, match="closed the connection"):
            list(forgotten.notifies(timeout=10))  # the others have been idle for longer

        listener.probe()

        assert listener.is_up
    with connections[hurried].cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.mark.parametrize("max_age", [0, 60, None])
def test_a_worker_whose_connection_is_closed_between_rounds(
    alias, make_article, make_worker, max_age
):
    aged = alias("aged", CONN_MAX_AGE=max_age)
    article = make_article()
    sessions.configure_sessions(aged)
    worker = make_worker(using=aged)
    worker.step()
    connections[aged].close()
    worker.step()

    assert embedded_text(article)
    connections[aged].close()
    with connections[aged].cursor() as cursor:
        cursor.execute("SHOW row_security")
        assert cursor.fetchone() == ("off",)


class TestRowLevelSecurity:
    """A worker whose role does not see every row must not take that for deletions."""

    @pytest.fixture
    def restricted(self, alias: Callable[..., str]) -> Iterator[str]:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                CREATE ROLE pgembed_restricted;
                GRANT USAGE ON SCHEMA public, archive TO pgembed_restricted;
                GRANT ALL ON ALL TABLES IN SCHEMA public, archive TO pgembed_restricted;
                GRANT ALL ON ALL SEQUENCES IN SCHEMA public, archive TO pgembed_restricted;
                ALTER TABLE app_article ENABLE ROW LEVEL SECURITY;
                CREATE POLICY own_only ON app_article USING (author = 'nobody');
                """
            )
        options = {**connection.settings_dict["OPTIONS"], "options": "-c role=pgembed_restricted"}
        using = alias("restricted", OPTIONS=options)
        sessions.configure_sessions(using)
        yield using
        connections[using].close()
        with connection.cursor() as cursor:
            cursor.execute(
                """
                DROP POLICY own_only ON app_article;
                ALTER TABLE app_article DISABLE ROW LEVEL SECURITY;
                DROP OWNED BY pgembed_restricted;
                DROP ROLE pgembed_restricted;
                """
            )

    def test_reading_a_row_is_an_error_and_no_deletion(
        self, restricted, make_article, make_worker, run_jobs
    ):
        article = make_article(title="old")
        run_jobs()
        Article.objects.update(title="new")
        worker = make_worker(using=restricted)

        worker.step()

        assert (
            "row-level security" in worker.handler.hindrances().quarantined["app.ArticleEmbedding"]
        )
        worker.release()
        assert embedded_text(article).startswith("old")
        assert pending() == 1

    @pytest.mark.parametrize("scan", ["missing", "orphaned", "stale"])
    def test_reconciling_is_an_error_and_no_deletion(
        self, restricted, make_article, run_jobs, scan
    ):
        make_article()
        run_jobs()
        spec = specs.get("app.ArticleEmbedding")

        with pytest.raises(ProgrammingError, match="row-level security"):
            reconcile.reconcile_page(spec, scan, using=restricted)

        assert pending() == 0
        assert ArticleEmbedding.objects.exists()

    def test_a_role_that_bypasses_it_works_as_ever(self, restricted, make_article, make_worker):
        connection.cursor().execute("ALTER ROLE pgembed_restricted BYPASSRLS")
        article = make_article()
        worker = make_worker(using=restricted)
        worker.step()
        worker.step()

        assert embedded_text(article)


def test_a_listener_takes_the_role_that_its_connection_assumes(alias, second_connection):
    """Our table is found by that role only: it is in its schema, as search_path has it."""
    second_connection.execute(
        """
        CREATE ROLE pgembed_assumed;
        CREATE SCHEMA pgembed_assumed AUTHORIZATION pgembed_assumed;
        CREATE TABLE pgembed_assumed.pgembed_job ();
        """
    )
    second_connection.commit()
    options = {"assume_role": "pgembed_assumed", "options": '-c search_path="$user"'}
    using = alias("assuming", OPTIONS={**connection.settings_dict["OPTIONS"], **options})
    listener = Listener(["app.ArticleEmbedding"], using=using)

    is_up = listener.open()

    listener.close()
    connections[using].close()
    second_connection.execute("DROP OWNED BY pgembed_assumed CASCADE; DROP ROLE pgembed_assumed")
    second_connection.commit()

    assert is_up


class TestRestore:
    """``pg_dump`` while a worker is at work, restored elsewhere."""

    @pytest.fixture
    def restore(self, alias: Callable[..., str], tmp_path: Path) -> Iterator[Callable[[], str]]:
        name = connection.settings_dict["NAME"] + "_restored"
        admin = psycopg.connect(testing_url(), autocommit=True)

        def run() -> str:
            dump = tmp_path / "dump.sql"
            subprocess.run(
                [binary("pg_dump"), "--no-owner", "-f", str(dump), testing_url()], check=True
            )
            admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
            target = testing_url().replace(connection.settings_dict["NAME"], name)
            subprocess.run(
                [binary("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump), target],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            return alias("restored", NAME=name)

        yield run
        connections["restored"].close()
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.close()

    def test_leases_that_ran_are_taken_back_and_everything_is_embedded(
        self, restore, make_article, make_worker
    ):
        running, waiting = make_article(title="running"), make_article(title="waiting")
        worker = make_worker(claim_limit=1)
        Job.objects.filter(source_pk=str(waiting.pk)).update(run_at="2999-01-01T00:00:00Z")
        worker.step()
        assert Job.objects.get(status="running").source_pk == str(running.pk)

        using = restore()
        Job.objects.using(using).filter(status="pending").update(run_at="2020-01-01T00:00:00Z")
        assert jobs.reap(max_crashes=3, using=using) == []  # nobody knows that its worker is gone
        Job.objects.using(using).filter(status="running").update(
            lease_expires_at="2020-01-01T00:00:00Z"  # until its lease has run out
        )
        assert [result for _, result in jobs.reap(max_crashes=3, using=using)] == ["requeued"]
        there = make_worker(using=using)
        while there.step():
            pass

        passages = ArticleEmbedding.objects.using(using).values_list("passage", flat=True)
        assert sorted(text.split()[0] for text in passages) == ["running", "waiting"]

    def test_triggers_and_functions_come_along(self, restore, make_article):
        make_article()
        using = restore()

        Article.objects.using(using).update(title="new")
        Article.objects.using(using).all().delete()

        [job] = Job.objects.using(using).all()
        assert job.status == "pending"


def binary(name: str) -> str:
    """Return a client program of the server's own version."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
        [folder] = cursor.fetchone()
    found = Path(folder) / name
    if not found.exists():
        pytest.skip(f"no {name} beside the server")
    return os.fspath(found)


def test_copy_into_a_source_table_enqueues_every_row(second_connection, run_jobs):
    with second_connection.cursor().copy(
        "COPY app_article (title, contents, author, published_time) FROM STDIN"
    ) as copy:
        for number in range(500):
            copy.write_row((f"row {number}", "", "", "2026-01-01" if number % 2 else None))
    assert pending() == 0  # until the commit
    second_connection.commit()

    assert pending() == 250
    run_jobs()
    assert ArticleEmbedding.objects.count() == 250


class TestDeferredConstraints:
    def test_a_commit_that_they_refuse_leaves_nothing_of_ours(self, second_connection):
        second_connection.execute(
            "INSERT INTO app_article (title, contents, author, published_time, category_id) "
            "VALUES ('a', '', '', now(), 4711)"  # there is no such category
        )
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            second_connection.commit()

        assert (Article.objects.count(), Job.objects.count()) == (0, 0)

    def test_rows_that_come_before_what_they_refer_to_are_embedded(
        self, second_connection, run_jobs
    ):
        second_connection.execute("INSERT INTO app_pageextra (page_id, summary) VALUES ('p', 'a')")
        second_connection.execute("INSERT INTO app_page (slug, body) VALUES ('p', 'b')")
        second_connection.commit()

        run_jobs()

        [extra] = PageExtra.objects.all()
        assert extra.page == Page.objects.get()
        assert PageExtraEmbedding.objects.filter(source=extra).exists()

    def test_ours_may_be_made_immediate(self, make_article, make_worker, run_jobs):
        """The application may say SET CONSTRAINTS ALL IMMEDIATE: it is not asked of us."""
        article = make_article(title="old")
        run_jobs()
        Article.objects.update(title="new")
        run_jobs()

        assert embedded_text(article).startswith("new")


class TestInstallingBehindALongWriter:
    """CREATE TRIGGER waits for open writers, and all later writers wait behind it."""

    @pytest.fixture
    def install(self) -> str:
        """What a migration runs that adds one of our triggers."""
        [trigger] = [
            found
            for model, found in pgtrigger.registered()
            if model is Article and found.verb == "insert"
        ]
        return trigger.compile(Article).install_sql

    def test_with_a_lock_timeout_it_gives_up_and_later_writers_go_on(
        self, make_article, second_connection, connect, install
    ):
        article = make_article()
        second_connection.execute("UPDATE app_article SET author = 'long'")
        migration = connect(options="-c lock_timeout=100ms")  # PGOPTIONS of manage.py migrate

        with pytest.raises(psycopg.errors.LockNotAvailable):
            migration.execute(install)
        migration.rollback()
        later = connect()
        later.execute("SET lock_timeout = '1s'")
        later.execute("INSERT INTO app_article (title, contents, author) VALUES ('b', '', '')")
        later.commit()

        second_connection.commit()
        article.title = "changed"
        article.save()  # the trigger that was there is there still
        assert pending() == 1

    def test_without_one_later_writers_wait_behind_it(
        self, make_article, second_connection, connect, install, writer
    ):
        """Why docs/how-to/upgrade.md says to set one."""
        make_article()
        second_connection.execute("UPDATE app_article SET author = 'long'")
        migration = writer
        migration.start(install)
        until_waiting(migration)

        later = connect(options="-c lock_timeout=100ms")  # so that the test need not wait
        with pytest.raises(psycopg.errors.LockNotAvailable):
            later.execute("INSERT INTO app_article (title, contents, author) VALUES ('b', '', '')")

        second_connection.commit()
        migration.end()


class TestLogicalReplication:
    """A subscriber applies rows as a replica: our triggers do not fire there, by design.

    Either the job table and the embeddings are replicated too, or the subscriber's own
    workers find the rows by reconciling.
    """

    @pytest.fixture
    def apply(self, connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
        return connect(options="-c session_replication_role=replica", autocommit=True)

    def test_a_row_that_is_replicated_enqueues_nothing(self, apply):
        apply.execute("INSERT INTO app_note (id, body, seen) VALUES (gen_random_uuid(), 'a', 0)")

        assert not Job.objects.exists()

    def test_the_reconciler_finds_rows_that_came_changed_and_went(self, apply, run_jobs):
        run_jobs()
        apply.execute(
            "INSERT INTO app_note (id, body, seen) "
            "SELECT gen_random_uuid(), 'old ' || n, 0 FROM generate_series(1, 3) AS n"
        )
        assert reconcile_deeply("app.NoteEmbedding") == 3
        run_jobs()
        apply.execute("UPDATE app_note SET body = 'new' WHERE body = 'old 1'")
        apply.execute("DELETE FROM app_note WHERE body = 'old 2'")

        assert reconcile_deeply("app.NoteEmbedding") == 2
        run_jobs()

        passages = NoteEmbedding.objects.values_list("passage", flat=True)
        assert sorted(passages) == sorted(Note.objects.values_list("body", flat=True))


def test_a_transaction_that_the_server_ends_leaves_nothing_of_ours(make_article, connect):
    article = make_article(title="old")
    [held] = claim()
    dying = connect()
    dying.execute("UPDATE app_article SET title = 'lost' WHERE id = %s", [article.pk])

    connection.cursor().execute("SELECT pg_terminate_backend(%s)", [dying.info.backend_pid])
    wait_until(lambda: jobs.release(held, using="default") == "requeued", seconds=5)

    assert pending() == 1
    assert reap() == []


def test_a_worker_that_cannot_start_leaves_no_socket_open():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgembed_worker RENAME TO elsewhere")
    try:
        start_in_vain()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO pgembed_worker")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in told] == []


def test_a_datetime_is_the_same_text_whatever_time_zone_an_alias_has(alias, make_article):
    make_article(published_time="2026-01-01T00:00:00Z")
    spec = dataclasses.replace(specs.get("app.ArticleEmbedding"), fields=("published_time",))

    texts = [
        [*sources.read(spec, Article.objects.using(using)).texts.values()]
        for using in ("default", alias("berlin", TIME_ZONE="Europe/Berlin"))
    ]

    assert texts == [["2026-01-01 00:00:00+00:00"]] * 2


def start_in_vain() -> None:
    with pytest.raises(ProgrammingError):
        Worker([], using="default", drain=True).run()
