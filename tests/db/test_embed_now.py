"""``embed_now``: a row is embedded in the caller, or its job is left to the workers."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError

from pgembed_django import aembed_now, conf, embed_now, enqueue
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Ripple, Rollup, Worker
from pgembed_django.queue import jobs
from pgembed_django.testing import assert_fresh, without_triggers
from tests.app.models import Article, ArticleEmbedding, Category, Note, Product
from tests.conftest import embedded_text
from tests.db.conftest import make_due

pytestmark = pytest.mark.django_db

committed = pytest.mark.django_db(transaction=True)
"""For tests in which another connection or thread has to see the row."""


def job_of(row) -> Job:
    return Job.objects.get(source_pk=str(row.pk))


def in_thread(action) -> None:
    """Do something on a connection of its own."""

    def run() -> None:
        try:
            action()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


class TestTheRowIsEmbedded:
    def test_a_row_that_was_just_saved(self, provider):
        note = Note.objects.create(body="trout")

        assert embed_now(note)

        assert_fresh(note)
        assert provider.embedded == ["trout"]
        assert job_of(note).status == "succeeded"
        assert [sums.completed for sums in Rollup.objects.filter(seconds=60)] == [1]

    def test_no_other_row_is(self, provider):
        note, other, enqueued = (Note.objects.create(body=f"trout {n}") for n in range(3))
        Job.objects.filter(source_pk=enqueued.pk).delete()
        enqueue(Note.objects.filter(pk=enqueued.pk))

        assert embed_now(note)

        assert provider.embedded == ["trout 0"]
        assert job_of(other).status == "pending"
        assert Ripple.objects.exists()

    def test_an_embedded_row_is_not_embedded_again(self, provider):
        note = Note.objects.create(body="trout")
        assert embed_now(note)

        assert embed_now(note)

        assert provider.embedded == ["trout"]

    def test_a_row_that_no_trigger_has_seen(self, provider):
        with without_triggers():
            note = Note.objects.create(body="trout")

        assert embed_now(note)

        assert_fresh(note)

    def test_in_each_of_its_declarations_or_in_the_named_one(self, provider):
        product = Product.objects.create(title="Pen")
        names = [spec.name for spec in specs.of(Product)]
        known = {spec.name for spec in specs.all() if spec.model is Product}
        assert known == set(names)

        assert embed_now(product, name=names[0])
        assert_fresh(product, name=names[0])
        assert Job.objects.filter(status="pending").count() == len(names) - 1

        assert embed_now(product)
        assert_fresh(product)

    def test_without_blocking_an_event_loop(self, provider):
        note = Note.objects.create(body="trout")

        assert async_to_sync(aembed_now)(note)

        assert_fresh(note)

    def test_once_its_transaction_has_committed(self, provider, django_capture_on_commit_callbacks):
        with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
            note = Note.objects.create(body="trout")
            transaction.on_commit(partial(embed_now, note))

        assert_fresh(note)

    def test_by_the_worker_that_holds_it(self, provider, make_worker):
        note = Note.objects.create(body="trout")
        worker = make_worker()
        worker.step()
        tries = itertools.count(1)

        def end_before_the_second_try(execute: Any, statement: str, *rest: Any) -> Any:
            if "AS candidate" in statement and next(tries) == 2:
                while worker.step(claim=False):
                    pass
            return execute(statement, *rest)

        with connection.execute_wrapper(end_before_the_second_try):
            assert embed_now(note, timeout=60)

        assert worker.completed == 1
        assert provider.embedded == ["trout"]

    @committed
    def test_for_each_of_several_callers(self, provider):
        notes = [Note.objects.create(body=f"trout {n}") for n in range(20)]

        def embed(note: Note) -> bool:
            try:
                return embed_now(note, timeout=60)
            finally:
                connection.close()

        with ThreadPoolExecutor(3) as callers:
            found = [*callers.map(embed, [note for note in notes for _ in range(3)])]

        assert all(found)
        assert len(provider.embedded) == len(notes)


class TestItsJobIsLeftToTheWorkers:
    def refused(self, row, **keywords) -> Job:
        """Return the job of a row that is not embedded now."""
        assert not embed_now(row, **keywords)
        return job_of(row)

    def test_while_the_provider_is_down(self, provider, run_jobs):
        note = Note.objects.create(body="trout")
        provider.is_down = True

        job = self.refused(note)

        assert (job.status, job.attempts) == ("pending", 0)
        assert "The server is down." in job.last_error
        provider.is_down = False
        make_due()
        assert run_jobs() == 1

    def test_while_the_provider_takes_too_long(self, provider, run_jobs):
        note = Note.objects.create(body="trout")
        answers = threading.Event()
        provider.meanwhile = answers.wait

        job = self.refused(note, timeout=0)

        assert (job.status, job.attempts, job.crashes) == ("pending", 0, 0)
        answers.set()
        assert run_jobs() == 1
        assert_fresh(note)

    def test_while_a_person_has_paused_the_provider(self, provider):
        note = Note.objects.create(body="trout")
        jobs.pause("provider", "default", by="ada", using="default")

        assert self.refused(note).claims == 0

    def test_while_a_person_has_paused_the_spec(self, provider):
        note = Note.objects.create(body="trout")
        jobs.pause("spec", "app.NoteEmbedding", by="ada", using="default")

        assert self.refused(note).claims == 0

    def test_while_a_worker_finds_the_provider_down(self, provider, run_jobs):
        run_jobs()
        note = Note.objects.create(body="trout")
        name = conf.provider_key("default", "bag-of-words", 64)
        worker = Worker.objects.create(host="a", pid=1, version="", paused_seconds={name: 30.0})

        assert self.refused(note).claims == 0

        Worker.objects.filter(pk=worker.pk).update(
            last_seen_at=F("last_seen_at") - timedelta(hours=1)
        )
        assert embed_now(note)

    def test_while_a_worker_holds_it(self, provider, make_worker):
        note = Note.objects.create(body="trout")
        worker = make_worker()
        worker.step()

        assert self.refused(note, timeout=0).status == "running"

        while worker.step():
            pass
        assert_fresh(note)

    @pytest.mark.parametrize("with_it", ["crashes", "outages"])
    def test_if_a_worker_or_a_provider_has_died_with_it(self, provider, with_it):
        note = Note.objects.create(body="trout")
        Job.objects.update(**{with_it: 1})

        assert self.refused(note).claims == 0

    def test_if_it_backs_off(self, provider):
        note = Note.objects.create(body="trout")
        Job.objects.update(run_at="2100-01-01T00:00:00Z")

        assert self.refused(note).claims == 0

    def test_if_its_text_is_refused(self, provider):
        note = Note.objects.create(body="poison")

        assert self.refused(note).status == "failed"
        assert self.refused(note).status == "failed"

    def test_if_its_row_is_gone(self, provider):
        note = Note.objects.create(body="trout")
        Note.objects.all().delete()

        assert not embed_now(note)

    @committed
    def test_if_an_open_writer_has_locked_it(self, provider, second_connection):
        note = Note.objects.create(body="trout")
        second_connection.execute("UPDATE app_note SET body = 'salmon'")

        assert self.refused(note, timeout=0).claims == 0

    @committed
    def test_they_are_woken(self, provider, connect):
        note = Note.objects.create(body="trout")
        provider.is_down = True
        listening = connect(autocommit=True)
        listening.execute(f"LISTEN {jobs.CHANNEL}")

        assert not embed_now(note)

        assert [*listening.notifies(timeout=30, stop_after=1)]


@committed
def test_a_row_that_is_deleted_meanwhile_leaves_nothing(provider, make_article):
    article = make_article()
    provider.meanwhile = lambda: in_thread(Article.objects.all().delete)

    assert not embed_now(article)

    assert not ArticleEmbedding.objects.exists()
    assert not Job.objects.filter(status="running").exists()


@committed
def test_a_write_meanwhile_has_a_job_of_its_own(provider, make_article, run_jobs):
    article = make_article(title="old", contents="")
    provider.meanwhile = lambda: in_thread(partial(Article.objects.update, title="new"))

    embed_now(article)

    provider.meanwhile = None
    run_jobs()
    assert embedded_text(article) == "new"


@committed
def test_its_lease_ends_soon_after_the_call_would(provider):
    note = Note.objects.create(body="trout")
    leases = []
    held = F("lease_expires_at") - F("started_at")
    running = Job.objects.filter(status="running")
    provider.meanwhile = lambda: in_thread(
        lambda: leases.extend(running.values_list(held, flat=True))
    )

    assert embed_now(note, timeout=30)

    assert timedelta(0) < max(leases) <= timedelta(seconds=40)


class TestItIsRefused:
    def test_in_an_open_transaction(self, provider):
        with transaction.atomic():
            note = Note.objects.create(body="trout")
            with pytest.raises(TransactionManagementError) as raised:
                embed_now(note)

        assert "transaction.on_commit(lambda: embed_now(row))" in str(raised.value)
        assert provider.embedded == []

    @committed
    def test_in_a_transaction_without_atomic(self, provider):
        connection.set_autocommit(False)
        try:
            note = Note.objects.create(body="trout")
            with pytest.raises(TransactionManagementError):
                embed_now(note)
        finally:
            connection.rollback()
            connection.set_autocommit(True)

    def test_for_what_is_no_saved_row_of_an_embeddable_model(self):
        with pytest.raises(TypeError):
            embed_now(Note)
        with pytest.raises(ValueError, match="Save it first"):
            embed_now(Note(body="trout"))
        with pytest.raises(ImproperlyConfigured):
            embed_now(Category.objects.create(name="fish"))
