"""Whole units are stored by a thread of its own, while the loop holds them."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.db import connection

from pgembed_django import conf, spaces
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.models import Job
from pgembed_django.queue import completing as module
from pgembed_django.queue.work import Work
from tests.app.models import ArticleEmbedding
from tests.conftest import wait_until
from tests.db.conftest import backend_pid

pytestmark = pytest.mark.django_db(transaction=True)


class Woken(threading.Event):
    """What a worker waits for."""

    def wait_once(self) -> None:
        assert self.wait(10)
        self.clear()


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def worker(woken: Woken) -> Iterator[Work]:
    """A worker with its threads, which moves when told."""
    known = {spec.key: spec for spec in specs.all()}
    for spec in known.values():
        spaces.ensure(spec, using="default")
    settings = dataclasses.replace(conf.current(), batch_size=1)  # so that one row is many
    handler = EmbeddingHandler(known, using="default", settings=settings)
    one = Work(handler, using="default", worker_id=1, settings=settings, wake=woken.set)
    yield one
    one.release()
    one.close()


@pytest.fixture
def storing(worker: Work, woken: Woken, make_article: Callable[..., object]) -> Work:
    """The worker, at the moment when it stores its first row."""
    make_article()
    worker.step()
    woken.wait_once()  # the answer is there
    worker.step()
    return worker


@pytest.fixture
def refusing() -> Iterator[ExitStack]:
    """A database that refuses one text, and ends the connection at another."""
    with ExitStack() as stack:
        stack.callback(run, "DROP FUNCTION refuse() CASCADE")
        stack.callback(connection.close)
        run(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF NEW.passage LIKE '%refused%' THEN
                    RAISE EXCEPTION 'not this one';
                ELSIF NEW.passage LIKE '%lost%' THEN
                    PERFORM pg_terminate_backend(pg_backend_pid());
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON app_articleembedding
            FOR EACH ROW EXECUTE FUNCTION refuse();
            """
        )
        yield stack


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def end_other_connections() -> None:
    run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_what_was_completed_a_moment_ago_is_not_lost_to_the_heartbeat(storing, woken, caplog):
    woken.wait_once()  # it is committed: there is no such job any more
    assert not Job.objects.filter(status="running").exists()

    with caplog.at_level(logging.INFO, "pgembed_django"):
        storing.held.heartbeat()
    storing.step()

    assert storing.completed == 1
    assert storing.held.is_empty
    assert "pgembed.leases_lost" not in [record.event for record in caplog.records]


def test_the_first_store_of_a_connection_holds_the_job_and_gives_way(
    worker, woken, make_article, connect
):
    """Psycopg looks the vector type up in a transaction: in ours, its COMMIT would end ours."""
    make_article()
    worker.step()
    woken.wait_once()
    other = connect()
    other.execute("LOCK TABLE app_articleembedding IN SHARE MODE")
    worker.step()

    # Not before the other one ends, where the transaction with our time-out has ended.
    woken.wait_once()
    assert not worker.step(claim=False)
    other.rollback()
    worker.step(claim=False)
    woken.wait_once()
    worker.step(claim=False)
    assert worker.completed == 1


def test_a_worker_that_stops_ends_with_what_is_being_stored(storing):
    storing.release()

    assert storing.completed == 1
    assert ArticleEmbedding.objects.exists()
    assert not Job.objects.filter(status__in=["pending", "running"]).exists()


def test_the_loop_claims_on_while_a_row_is_stored(storing, make_article):
    second = make_article()

    storing.step()

    assert str(second.pk) in {unit.claim.source_pk for unit in storing.handler.units.by_id.values()}


def test_what_a_writer_has_locked_is_stored_once_the_writer_has_ended(
    worker, woken, make_article, connect
):
    article = make_article()
    worker.step()
    woken.wait_once()
    other = connect()
    other.execute("SELECT FROM pgembed_job FOR UPDATE")
    worker.step()
    woken.wait_once()

    assert not worker.step(claim=False)  # it is there to be tried again, but not at once
    assert worker.held.is_blocked
    other.rollback()
    worker.step(claim=False)
    woken.wait_once()
    worker.step(claim=False)

    assert worker.completed == 1
    assert ArticleEmbedding.objects.filter(source=article).exists()


@pytest.fixture
def cut_off(storing: Work, woken: Woken, make_article: Callable[..., object]) -> Work:
    """The worker, at the moment when its thread's connection breaks over the second row."""
    woken.wait_once()
    storing.step()
    make_article()
    storing.step()
    woken.wait_once()
    end_other_connections()
    storing.step(claim=False)
    return storing


def told(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("The storing thread's connection is lost or cannot be opened")


def test_rows_whose_connection_breaks_while_they_are_stored_are_stored_by_the_loop(
    cut_off, woken, caplog
):
    woken.wait_once()
    cut_off.step(claim=False)

    assert cut_off.completed == 2
    assert told(caplog) == 1


@pytest.fixture
def one_session_too_few(storing: Work, woken: Woken) -> Iterator[None]:
    """The storing thread's session is gone, and the role may not have another one."""
    woken.wait_once()
    storing.step()
    run("CREATE ROLE pgembed_few LOGIN CONNECTION LIMIT 0")
    settings = connection.settings_dict  # those of the thread's connection, too
    user, settings["USER"] = settings["USER"], "pgembed_few"
    end_other_connections()
    yield
    settings["USER"] = user
    run("DROP ROLE pgembed_few")


@pytest.mark.usefixtures("one_session_too_few")
def test_a_worker_that_may_have_no_further_session_stores_in_the_loops(
    storing, woken, make_article, caplog, monkeypatch
):
    monkeypatch.setattr(module, "THREADLESS_SECONDS", 0.0)  # it is tried again each time
    session = backend_pid()
    for completed in (2, 3, 4):
        make_article()
        while storing.completed < completed:
            storing.step()
            if storing.handler.embedder.batches or storing.completing.is_at_work:
                woken.wait_once()

    assert told(caplog) == 1
    assert backend_pid() == session


def test_a_worker_whose_storing_fails_at_its_end_stores_the_row_after_all(cut_off):
    cut_off.release()

    assert set(Job.objects.values_list("status", "attempts", "crashes")) == {("succeeded", 0, 0)}


def test_of_a_batch_that_loses_its_connection_what_was_stored_before_is_told(
    make_worker, make_article, refusing
):
    stored, refused, last = (make_article(contents=word) for word in ("good", "refused", "lost"))
    worker = make_worker()
    worker.step()
    with refusing:
        worker.step(claim=False)  # all three in vain, then each until the connection is gone

    assert worker.completed == 1
    assert ArticleEmbedding.objects.filter(source=stored).exists()
    while worker.step(claim=False):
        pass
    assert worker.completed == 2
    assert ArticleEmbedding.objects.filter(source=last).exists()
    assert Job.objects.get(source_pk=str(refused.pk)).attempts == 1


def test_its_connection_is_closed_with_the_worker(storing):
    def others() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return int(cursor.fetchone()[0])

    storing.release()
    assert others() == 1
    storing.close()

    wait_until(lambda: others() == 0)
