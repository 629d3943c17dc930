"""Models on two databases: each has its own jobs, spaces and workers."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connections, router
from django.db.backends.signals import connection_created
from django.test import Client
from django.test.utils import override_settings
from django.urls import path

from pgembed_django import search, similar_to
from pgembed_django.admin import VectorsMixin
from pgembed_django.checks import check_databases, check_declarations
from pgembed_django.contrib import metrics
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Space
from pgembed_django.ops import status
from pgembed_django.spaces import reconcile
from pgembed_django.testing import (
    assert_embedding_pending,
    assert_fresh,
    run_jobs,
    without_triggers,
)
from tests import cleanup
from tests.app.models import Article, Note, NoteEmbedding
from tests.conftest import testing_url, wait_until

pytestmark = [
    pytest.mark.django_db(databases=["default", "other"], transaction=True),
    pytest.mark.urls(__name__),
]

NOTES = {"note", "noteembedding"}


class Shelves:
    """Notes live in "other", and all else in "default"; jobs are in both."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.model_name in NOTES else None

    db_for_write = db_for_read

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        if db == "direct":
            return False  # nothing is migrated by that road
        if app_label == "pgembed" or model_name is None:
            return True
        return (model_name in NOTES) == (db == "other")


class Watched(Shelves):
    """The same, with our admin pages for "other"."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "pgembed" else super().db_for_read(model)


class Lite(Shelves):
    """The same, and what routers do not name is in SQLite."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "lite" if model._meta.app_label == "pgembed" else super().db_for_read(model)


class Alone(Shelves):
    """The same, and our tables are forgotten."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        if app_label == "pgembed":
            return db == "default"
        return super().allow_migrate(db, app_label, **hints)


class Nowhere:
    """As without routers: all is written to "default"."""


class OneApp:
    """All models of one app in a database of their own; theirs is a proxy of another app's."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "app" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return app_label == "pgembed" or (app_label == "app") == (db == "other")


def routed(router_class: type) -> Any:
    return override_settings(DATABASE_ROUTERS=[f"{__name__}.{router_class.__name__}"])


@pytest.fixture(scope="module", autouse=True)
def other(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A second database, migrated as its users would."""
    url = testing_url()
    name = f"{connections['default'].settings_dict['NAME']}_other"
    with django_db_blocker.unblock(), routed(Shelves):
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        connections.settings["other"] = {**connections.settings["default"], "NAME": name}
        # Another road to it, which the routers do not know.
        connections.settings["direct"] = connections.settings["other"]
        call_command("migrate", database="other", verbosity=0)
        cleanup.remember("other")
        yield "other"
        for alias in ("direct", "other"):
            connection_created.disconnect(dispatch_uid=f"pgembed-{alias}")
            connections[alias].close()
            del connections[alias], connections.settings[alias]
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


class NoteAdmin(VectorsMixin, admin.ModelAdmin):
    pass


class OtherNoteAdmin(NoteAdmin):
    """The notes of "other", whatever a router says."""

    def get_queryset(self, request):
        return super().get_queryset(request).using("other")


site = admin.AdminSite(name="notes")
site.register(Note, NoteAdmin)
other_site = admin.AdminSite(name="others")
other_site.register(Note, OtherNoteAdmin)
urlpatterns = [
    path("admin/", admin.site.urls),
    path("notes/", site.urls),
    path("others/", other_site.urls),
]


@contextmanager
def hidden(table: str, *, using: str) -> Iterator[None]:
    """As if a table had never been migrated."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO hidden")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE hidden RENAME TO {table}")


def jobs_in(using: str) -> list[str]:
    return [job.spec for job in Job.objects.using(using).filter(status="pending")]


def run(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=out, **options)
    return out.getvalue()


def test_each_database_has_the_tables_of_its_models_and_ours(other):
    tables = set(connections[other].introspection.table_names())

    assert {"app_note", "app_noteembedding", "pgembed_job", "pgembed_space"} <= tables
    assert "app_article" not in tables
    assert [spec.key for spec in specs.on(other)] == ["app.NoteEmbedding"]


def test_a_write_leaves_its_job_in_its_own_database_and_its_own_worker_embeds_it(make_article):
    article, note = make_article(), Note.objects.create(body="a note")
    assert jobs_in("default") == ["app.ArticleEmbedding"]
    assert jobs_in("other") == ["app.NoteEmbedding"]

    assert run_jobs(using="other") == 1

    assert_fresh(note)
    assert_embedding_pending(article)
    assert run_jobs() == 1
    assert_fresh(article)
    assert not Space.objects.filter(spec="app.NoteEmbedding", state="building").exists()


def test_a_delete_takes_the_vectors_along_in_its_own_database(other):
    note = Note.objects.create(body="a note")
    run_jobs(using=other)

    note.delete()

    assert not NoteEmbedding.objects.using(other).exists()


def test_a_search_goes_where_the_router_or_using_says(other):
    note, like = (Note.objects.create(body=text) for text in ("red wool", "wool, blue"))
    run_jobs(using=other)

    assert next(hit.pk for hit in search(Note, "red")) == note.pk
    assert next(hit.pk for hit in search(Note.objects.using(other), "blue")) == like.pk
    assert [hit.pk for hit in similar_to(note)] == [like.pk]
    assert {hit._state.db for hit in search(Note, "wool")} == {other}
    # That table is there as well, from before there were routers, and empty.
    assert list(search(Note.objects.using("default"), "red")) == []


def test_rows_are_compared_where_they_are_though_the_default_is_no_postgres(other, monkeypatch):
    for text in ("red wool", "wool, blue"):
        Note.objects.create(body=text)
    run_jobs(using=other)
    notes = Note.objects.using(other)
    note = notes.get(body="red wool")
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")

    with routed(Nowhere):
        for hits in (similar_to(note), similar_to(Note(pk=note.pk), among=notes)):
            assert [hit.body for hit in hits] == ["wool, blue"]


def test_one_search_may_go_over_models_of_two_databases(make_article, other):
    article, note = make_article(title="red wool"), Note.objects.create(body="red wool")
    run_jobs()
    run_jobs(using=other)

    assert {hit.pk for hit in search([Article, Note], "red wool")} == {article.pk, note.pk}


def test_the_reconciler_finds_the_gaps_of_its_own_database(other):
    run_jobs(using=other)
    with without_triggers(using=other):
        Note.objects.create(body="past the triggers")
    assert jobs_in(other) == []

    found = reconcile.reconcile_once(specs.get("app.NoteEmbedding"), using=other)

    assert found == 1
    assert jobs_in(other) == ["app.NoteEmbedding"]
    assert jobs_in("default") == []


def test_the_status_of_a_database_is_that_of_its_specs(other):
    Note.objects.create(body="a note")
    run_jobs(using=other)

    told = json.loads(run("embed_status", "--json", database=other))

    assert [spec["key"] for spec in told["specs"]] == ["app.NoteEmbedding"]
    assert [spec.key for spec in status.overview(using=other).specs] == ["app.NoteEmbedding"]


class TestCommands:
    def test_a_worker_of_a_database_drains_it(self, other, make_article):
        article, note = make_article(), Note.objects.create(body="a note")

        assert "Embedded 1 row" in run("embed_worker", "--drain", database=other)

        assert_fresh(note)
        assert_embedding_pending(article)

    def test_spaces_backfill_and_reconcile_keep_to_it(self, other):
        run("embed_worker", "--drain", database=other)
        with without_triggers(using=other):
            note = Note.objects.create(body="a note")
        run("embed_backfill", "--no-wait", database=other)
        run("embed_worker", "--drain", database=other)
        assert_fresh(note)

        assert "app.NoteEmbedding: 0 rows queued" in run("embed_reconcile", database=other)
        assert "1 of 1 rows" in run("embed_spaces", database=other)

    def test_failures_of_a_database_are_retried_and_dismissed_there(self, other):
        Note.objects.create(body="a note")
        failed = {"status": "failed", "last_error": "no", "finished_at": "2026-01-01T00:00:00Z"}
        Job.objects.using(other).update(**failed)

        assert "1 retried" in run("embed_retry", "--all", "--yes", database=other)

        Job.objects.using(other).filter(status="pending").update(**failed)
        assert "1 dismissed" in run("embed_dismiss", "--all", "--yes", database=other)

    @pytest.mark.parametrize("command", ["embed_worker", "embed_status", "embed_spaces"])
    def test_a_spec_that_lives_elsewhere_is_refused(self, other, command):
        with pytest.raises(CommandError, match=r"ArticleEmbedding is not in the database 'other'"):
            run(command, "--specs", "app.ArticleEmbedding", database=other)

    def test_a_database_without_any_is_refused(self, other):
        with (
            hidden("app_noteembedding", using=other),
            routed(Nowhere),
            pytest.raises(CommandError, match="No embeddable model is in the database 'other'"),
        ):
            run("embed_status", database=other)

    def test_what_was_not_migrated_is_told_with_the_command_that_does(self, other):
        with hidden("pgembed_job", using=other):
            with pytest.raises(CommandError, match=r"Run manage\.py migrate --database other\."):
                run("embed_status", database=other)
            [message] = check_databases(databases=[other])

        assert message.id == "pgembed.W003"
        assert "The database 'other' has app.Note, but not the tables" in message.msg
        assert check_databases(databases=[other]) == []

    @pytest.mark.django_db(databases=["default", "other", "direct"], transaction=True)
    def test_an_alias_that_no_router_knows_works_on_what_is_there(self):
        note = Note.objects.create(body="a note")

        run("embed_worker", "--drain", database="direct")

        assert_fresh(note)


class TestChecks:
    def test_routers_that_keep_everything_together_are_fine(self):
        assert check_declarations() == []

    def test_a_router_that_forgets_our_tables_is_told(self):
        with routed(Alone):
            [message] = check_declarations()

        assert message.id == "pgembed.E008"
        assert "it is in the database 'other', and routers keep pgembed.Job out" in message.msg

    def test_a_proxy_of_a_model_that_is_routed_elsewhere_is_told(self):
        with routed(OneApp):
            messages = [one.msg for one in check_declarations()]

        kept_out = {"Story": "auth.User", "Team": "auth.Group"}  # a related row, a concrete model
        assert messages == [
            f"@embeddable on {model}: it is in the database 'other', and routers keep {other} out "
            "of it."
            for model, other in kept_out.items()
        ]


class TestAdmin:
    @pytest.fixture
    def client(self) -> Client:
        client = Client()
        client.force_login(User.objects.create_superuser("root"))
        return client

    def test_the_overview_shows_the_database_of_our_models_and_says_where_the_others_are(
        self, client
    ):
        assert router.db_for_write(Job) == "default"
        with hidden("app_noteembedding", using="default"):
            page = client.get("/admin/pgembed/").content.decode()

        assert ">app.ArticleEmbedding<p>" in page
        assert ">app.NoteEmbedding<p>" not in page
        assert "app.NoteEmbedding is in the database other: see manage.py embed_status" in page

    def test_a_router_chooses_the_database_that_our_pages_show(self, client):
        with routed(Watched):
            page = client.get("/admin/pgembed/").content.decode()
            listed = client.get("/admin/pgembed/job/").status_code

        assert ">app.NoteEmbedding<p>" in page
        assert ">app.ArticleEmbedding<p>" not in page
        assert "app.ArticleEmbedding is in the database default: see manage.py" in page
        assert listed == 200

    def test_where_that_is_not_postgres_they_show_the_workers_database(
        self, client, settings, monkeypatch, rf
    ):
        lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}
        monkeypatch.setitem(
            connections.settings, "lite", {**connections.settings["default"], **lite}
        )
        settings.PGEMBED_WORKER_DATABASE = "other"
        Note.objects.create(body="a note")
        with routed(Lite):
            overview = client.get("/admin/pgembed/").content.decode()
            listed = client.get("/admin/pgembed/job/").context["cl"].result_list
            failures = client.get("/admin/pgembed/job/failures/").status_code
            scraped = metrics.view(rf.get("/")).content.decode()
        del connections["lite"]

        assert ">app.NoteEmbedding<p>" in overview
        assert [job.spec for job in listed] == ["app.NoteEmbedding"]
        assert failures == 200
        assert 'spec="app.NoteEmbedding"' in scraped

    def test_a_rows_own_page_retries_it_in_its_own_database(self, client, other):
        note = Note.objects.create(body="a note")
        Job.objects.using(other).update(
            status="failed", last_error="no such luck", finished_at="2026-01-01T00:00:00Z"
        )

        shown = client.get(f"/notes/app/note/{note.pk}/change/").content.decode()
        client.post(f"/notes/app/note/{note.pk}/pgembed-retry/")

        assert "no such luck" in shown
        assert_embedding_pending(note)

    def test_an_admin_that_names_a_database_retries_its_rows_there(self, client, other):
        with routed(Nowhere):
            for using in ("default", other):
                note = Note(pk=uuid.UUID(int=1), body="a note")
                note.save(using=using)
                Job.objects.using(using).update(
                    status="failed",
                    last_error=f"an error of {using}",
                    finished_at="2026-01-01T00:00:00Z",
                )

            shown = client.get(f"/others/app/note/{note.pk}/change/").content.decode()
            client.post(f"/others/app/note/{note.pk}/pgembed-retry/")
            retried = jobs_in("default"), jobs_in(other)
            # By the routers of all tests here there are none, so that nobody looks for any.
            Note.objects.using("default").all().delete()

        assert "an error of other" in shown
        assert retried == ([], ["app.NoteEmbedding"])


@pytest.mark.live
def test_a_worker_of_a_database_is_woken_by_its_writes_and_no_others(
    start_worker, make_article, other
):
    databases = {
        alias: {key: connections.settings[alias][key] for key in ADDRESS}
        for alias in ("default", "other")
    }
    for alias in databases:
        databases[alias]["NAME"] = connections[alias].settings_dict["NAME"]
    start_worker(
        "--database",
        other,
        DATABASES=databases,
        DATABASE_ROUTERS=[f"{__name__}.Shelves"],
        PGEMBED_POLL_SECONDS=60,
    )
    wait_until(lambda: on_watch(other))
    assert not on_watch("default")

    article, note = make_article(), Note.objects.create(body="a note")

    wait_until(lambda: NoteEmbedding.objects.using(other).filter(source=note).exists(), seconds=10)
    assert_fresh(note)
    assert_embedding_pending(article)


ADDRESS = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")


def on_watch(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return cursor.fetchone()[0] > 0
