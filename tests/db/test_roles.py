"""docs/deploy/roles.sql, as it is written: each role does its work, with no more rights."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pgtrigger
import psycopg
import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connections, models
from django.db.backends.signals import connection_created
from django.test.utils import override_settings

from pgembed_django import enqueue, search, similar_to
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Task
from pgembed_django.ops import status
from pgembed_django.ops.command import newer_migration
from pgembed_django.queue import jobs
from pgembed_django.spaces import indexes, reconcile, reembedding
from pgembed_django.spaces.backfill import Backfill
from pgembed_django.tasks import triage
from pgembed_django.testing import assert_embedding_pending, assert_fresh
from tests.app.models import Article, ArticleEmbedding, Category, Page, PageExtra
from tests.conftest import testing_url
from tests.db.test_surroundings import binary

ROLES = Path(__file__).resolve().parents[2] / "docs/deploy/roles.sql"
PREFIX = f"mysite{os.getpid()}"
ALIASES = ["owner", "web", "staff", "worker"]
SOURCES = {"app_article", "app_category", "app_page", "app_pageextra"}
CHUNKS = {"app_articleembedding", "app_pageembedding", "app_pageextraembedding"}
OURS = {model._meta.db_table for model in apps.get_app_config("pgembed").get_models()}
WRITES = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")

pytestmark = [
    pytest.mark.django_db(databases=["default", *ALIASES], transaction=True),
    pytest.mark.usefixtures("run_roles"),
]


class Project:
    """Three models of the app, and ours. Only the owner migrates them, and empties them here."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        if db in ALIASES:
            return db == "owner" and app_label in ("app", "pgembed")
        return None


@pytest.fixture(scope="module")
def run_roles(django_db_setup: None, django_db_blocker: Any) -> Iterator[Callable[..., None]]:
    """A database whose tables belong to a role of their own; runs the file on it."""
    url = testing_url()
    default = connections.settings["default"]
    name = f"{connections['default'].settings_dict['NAME']}_roles"
    target = url.replace(connections["default"].settings_dict["NAME"], name)
    routed = override_settings(DATABASE_ROUTERS=[f"{__name__}.Project"])

    def run(prefix: str = PREFIX, *, before: str = "", after: str = "") -> None:
        text = before + ROLES.read_text().replace("mysite", prefix) + after
        subprocess.run(
            [binary("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", target],
            input=text,
            text=True,
            check=True,
        )

    with django_db_blocker.unblock(), routed, psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {PREFIX}_owner")
        server.execute(f'CREATE DATABASE "{name}" OWNER {PREFIX}_owner TEMPLATE template0')
        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        for alias in ALIASES:
            options = {**default["OPTIONS"], "options": f"-c role={PREFIX}_{alias}"}
            connections.settings[alias] = {**default, "NAME": name, "OPTIONS": options}
        migrate("owner")
        run()
        with connections["owner"].cursor() as cursor:
            # What the project itself decides.
            cursor.execute(f"GRANT ALL ON {', '.join(SOURCES)} TO {PREFIX}_web")
        yield run
        for alias in ALIASES:
            connection_created.disconnect(dispatch_uid=f"pgembed-{alias}")
            connections[alias].close()
            del connections[alias], connections.settings[alias]
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        for role in ("worker", "staff", "web", "owner"):
            server.execute(f"DROP ROLE {PREFIX}_{role}")


def migrate(using: str) -> None:
    """Our own migration, and what a user's would do."""
    call_command("migrate", "pgembed", database=using, verbosity=0)
    decorated = (Article, Page, PageExtra)
    with connections[using].schema_editor() as editor:
        for model in (Category, *decorated):
            editor.create_model(model)
        for model in decorated:
            [spec] = specs.of(model)
            editor.create_model(spec.embedding_model)
            for of, trigger in pgtrigger.registered():
                if of is model:
                    editor.execute(trigger.compile(model).install_sql, params=None)


def make_article(**values: Any) -> Article:
    given = {"title": "red wool", "published_time": "2026-01-01T00:00:00Z"}
    return Article.objects.using("web").create(**{**given, **values})


def drain(using: str = "worker") -> None:
    call_command("embed_worker", "--drain", database=using, verbosity=0)


def rights(role: str, tables: set[str], *privileges: str) -> set[tuple[str, str]]:
    """Return what a role may do to tables, as a whole."""
    with connections["owner"].cursor() as cursor:
        cursor.execute(
            """
            SELECT relname, privilege
            FROM unnest(%s::text[]) AS named(relname)
            CROSS JOIN unnest(%s::text[]) AS asked(privilege)
            WHERE has_table_privilege(%s, relname, privilege)
            """,
            [list(tables), list(privileges), f"{PREFIX}_{role}"],
        )
        return set(cursor.fetchall())


def enqueue_task(once: str | None = None) -> int:
    with connections["web"].cursor() as cursor:
        cursor.execute(
            "SELECT pgembed_enqueue_task_v1('tests.app.tasks.note', %s, once => %s)",
            ['{"args": ["from the web"]}', once],
        )
        [[task_id]] = cursor.fetchall()
    return int(task_id)


class TestWeb:
    def test_it_has_no_right_on_our_tables_but_to_read_what_a_search_reads(self):
        assert rights("web", OURS | CHUNKS, *WRITES) == set()
        assert rights("web", OURS | CHUNKS, "SELECT") == {
            (table, "SELECT") for table in CHUNKS | {"pgembed_space"}
        }
        with pytest.raises(ProgrammingError, match="permission denied"):
            Job.objects.using("web").values_list("last_error").first()

    def test_its_writes_leave_jobs_and_its_deletions_take_vectors_along(self):
        article = make_article()
        drain()
        assert_fresh(article, using="owner")

        article.title = "blue wool"
        article.save()
        assert_embedding_pending(article, using="owner")
        with connections["web"].cursor() as cursor:
            cursor.execute("DELETE FROM app_article")

        assert not ArticleEmbedding.objects.using("owner").exists()

    def test_it_may_truncate_its_own_tables(self):
        make_article()
        drain()

        with connections["web"].cursor() as cursor:
            cursor.execute("TRUNCATE app_article")

        assert not ArticleEmbedding.objects.using("owner").exists()

    def test_it_enqueues_rows_of_its_own_tables(self):
        article = make_article()
        drain()
        Article.objects.using("web").filter(pk=article.pk).update(author="Ada")

        assert enqueue(Article.objects.using("web")) == 1

        assert_embedding_pending(article, using="owner")

    def test_it_searches(self):
        article, other = make_article(), make_article(title="blue wool")
        page = Page.objects.using("web").create(slug="p", body="red wool")
        extra = PageExtra.objects.using("web").create(page=page, summary="red wool")  # hides stale
        drain()

        assert next(hit.pk for hit in search(Article.objects.using("web"), "red")) == article.pk
        assert [hit.pk for hit in similar_to(article)] == [other.pk]
        assert [hit.pk for hit in search(PageExtra.objects.using("web"), "red")] == [extra.pk]

    @pytest.mark.parametrize(
        "command",
        [["embed_status"], ["embed_worker", "--drain"], ["embed_retry", "--all", "--yes"]],
    )
    def test_a_command_that_takes_more_rights_says_so(self, command):
        with pytest.raises(CommandError, match="permission denied for table pgembed_") as refused:
            call_command(*command, database="web", verbosity=0)
        assert refused.value.returncode == 2

    @pytest.mark.parametrize("may", ["GRANT INSERT ON pgembed_space TO", "--"])
    def test_what_a_table_of_its_own_does_is_not_done_with_more_rights(self, may):
        """Nor where it may write all tables, as many projects have it."""
        with connections["owner"].cursor() as cursor:
            cursor.execute(f"{may} {PREFIX}_web")
        with connections["web"].cursor() as cursor:
            cursor.execute(
                f"""
                CREATE TEMPORARY TABLE bait (
                    source_id bigint, space_id bigint, chunk_digest bytea, text_digest bytea,
                    embedding text
                );
                INSERT INTO bait (source_id) VALUES (1);
                {as_whom("pg_temp.spring()", "trigger")};
                CREATE TRIGGER spring BEFORE DELETE ON bait EXECUTE FUNCTION pg_temp.spring();
                SELECT pgembed_forget_v1('app.ArticleEmbedding', '1', 0, 'pg_temp.bait');
                SELECT pgembed_forget_units_v1('app.ArticleEmbedding', '{{1}}', 0, 'pg_temp.bait');
                SELECT pgembed_forget_all_v1('app.ArticleEmbedding', 'pg_temp.bait');
                """
            )
            cursor.execute("SELECT count(*) FROM bait")
            assert cursor.fetchone() == (1,)
            cursor.execute("DROP TABLE bait")
        with connections["owner"].cursor() as cursor:
            cursor.execute(f"REVOKE INSERT ON pgembed_space FROM {PREFIX}_web")

    def test_what_a_table_of_its_own_that_stays_does_is_not_done_with_more_rights(self):
        """Where it may create tables, but not open spaces."""
        with connections["owner"].cursor() as cursor:
            cursor.execute(f"GRANT CREATE ON SCHEMA public TO {PREFIX}_web")
        try:
            with connections["web"].cursor() as cursor:
                cursor.execute(
                    f"""
                    CREATE TABLE bait (
                        source_id bigint, space_id bigint, chunk_digest bytea, text_digest bytea,
                        embedding text
                    );
                    INSERT INTO bait (source_id) VALUES (1);
                    {as_whom("spring()", "trigger")};
                    CREATE TRIGGER spring BEFORE DELETE ON bait EXECUTE FUNCTION spring();
                    SELECT pgembed_forget_v1('app.ArticleEmbedding', '1', 0, 'bait');
                    SELECT pgembed_forget_all_v1('app.ArticleEmbedding', 'bait');
                    """
                )
                cursor.execute("SELECT count(*) FROM bait")
                assert cursor.fetchone() == (1,)
        finally:
            with connections["web"].cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS bait; DROP FUNCTION IF EXISTS spring()")
            with connections["owner"].cursor() as cursor:
                cursor.execute(f"REVOKE CREATE ON SCHEMA public FROM {PREFIX}_web")


def as_whom(function: str, returns: str) -> str:
    """Return what creates a function that must not be called."""
    return (
        f"CREATE FUNCTION {function} RETURNS {returns} LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE 'called as %', current_user; END $$"
    )


class TestWorker:
    @pytest.mark.parametrize("role", ["web", "staff", "worker"])
    def test_no_role_may_create_anything_in_a_schema_that_others_search(self, role):
        with connections["owner"].cursor() as cursor:
            cursor.execute(
                "SELECT nspname FROM pg_namespace WHERE has_schema_privilege(%s, oid, 'CREATE')",
                [f"{PREFIX}_{role}"],
            )
            assert cursor.fetchall() == []

    def test_it_may_only_read_the_source_tables_and_write_ours(self):
        assert rights("worker", SOURCES, *WRITES) == set()
        watched = {(table, "SELECT") for table in SOURCES - {"app_category"}}
        assert rights("worker", SOURCES, "SELECT") == watched
        assert rights("worker", OURS | CHUNKS, *WRITES) == {
            (table, privilege) for table in OURS | CHUNKS for privilege in WRITES[:3]
        }

    def test_it_may_read_a_table_that_is_published_and_has_no_triggers(self, run_roles):
        publish = "CREATE PUBLICATION pgembed FOR TABLE app_category (id);"
        run_roles(before=publish, after="DROP PUBLICATION pgembed;")

        granted = rights("worker", {"app_category"}, "SELECT", *WRITES)
        with connections["owner"].cursor() as cursor:
            cursor.execute(f"REVOKE SELECT ON app_category FROM {PREFIX}_worker, {PREFIX}_staff")
        assert granted == {("app_category", "SELECT")}

    @pytest.mark.parametrize(
        "command",
        [["embed_reconcile"], ["embed_backfill"], ["embed_backfill", "--dry-run"]],
        ids=" ".join,
    )
    def test_where_a_policy_hides_rows_no_command_is_about_all_of_them(self, command):
        make_article()
        drain()
        with policy_on("app_article"), pytest.raises(CommandError) as refused:
            call_command(*command, "--specs", "app.ArticleEmbedding", database="worker")

        assert refused.value.returncode == 2
        assert f"rows of \"app_article\" from the role '{PREFIX}_worker'" in str(refused.value)

    def test_where_a_policy_is_on_one_table_of_vectors_it_works_on_the_others(self):
        make_article()
        page = Page.objects.using("web").create(slug="p", body="red wool")
        with policy_on("app_articleembedding"), suppress(CommandError):  # one is left
            drain()

        assert_fresh(page, using="owner")

    def test_it_embeds_and_finds_gaps_and_says_once_that_it_builds_no_indexes(
        self, settings, caplog
    ):
        settings.PGEMBED_INDEX_ROWS = 1
        spec = specs.get("app.ArticleEmbedding")
        article = make_article()
        drain()
        drain()

        assert_fresh(article, using="owner")
        assert reconcile.reconcile_once(spec, using="worker") == 0
        [space] = spaces_of(spec)
        assert not indexes.is_complete(spec, space, using="worker")
        assert len(refused(caplog)) == 2
        assert {record.index for record in refused(caplog)} == {
            indexes.vector_name(space),
            indexes.fulltext_name(space),
        }

        drain("owner")
        assert indexes.is_complete(spec, space, using="worker")
        indexes.drop(spec, space, using="owner")

    def test_it_builds_indexes_where_it_is_trusted_to(self, settings, caplog):
        """What is refused after it was allowed is told again."""
        settings.PGEMBED_INDEX_ROWS = 1
        spec = specs.get("app.ArticleEmbedding")
        make_article()
        drain()
        assert len(refused(caplog)) == 2
        with trusted():
            drain()
            [space] = spaces_of(spec)
            assert indexes.is_complete(spec, space, using="worker")
            indexes.drop(spec, space, using="worker")
            with connections["web"].cursor() as cursor:
                cursor.execute("DELETE FROM app_article")
            assert not ArticleEmbedding.objects.using("owner").exists()
            make_article()
        drain()

        assert len(refused(caplog)) == 4

    def test_it_may_look_why_a_table_is_gone(self):
        spec = specs.get("app.PageEmbedding")
        with connections["owner"].cursor() as cursor:
            cursor.execute(
                "INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, now())",
                ["app", "0999_newer"],
            )
            try:
                assert newer_migration(spec, using="worker") == "app.0999_newer"
                cursor.execute(f"REVOKE SELECT ON django_migrations FROM {PREFIX}_worker")
                assert newer_migration(spec, using="worker") == ""
            finally:
                cursor.execute("DELETE FROM django_migrations WHERE name = '0999_newer'")
                cursor.execute(f"GRANT SELECT ON django_migrations TO {PREFIX}_worker")


def refused(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.event == "pgembed.index_refused"]


@contextmanager
def trusted() -> Iterator[None]:
    """Do what the page says of a worker that is trusted to build indexes, and undo it."""
    page = (ROLES.parents[1] / "how-to/least-privilege.md").read_text()
    given = re.search(r"```sql\n(GRANT CREATE .*?)```", page, re.DOTALL)
    assert given is not None
    given = given[1].replace("mysite", PREFIX).replace("blog_", "app_")
    run_as_superuser(given)
    try:
        yield
    finally:
        run_as_superuser(
            f"REVOKE CREATE ON SCHEMA public FROM {PREFIX}_worker;"
            f"ALTER TABLE app_articleembedding OWNER TO {PREFIX}_owner;"
            f"GRANT ALL ON app_articleembedding TO {PREFIX}_worker;"
            f"REVOKE TRUNCATE ON app_articleembedding FROM {PREFIX}_worker;"
            f"REVOKE {PREFIX}_worker FROM {PREFIX}_owner"
        )


def run_as_superuser(statements: str) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute("SET ROLE NONE")
        cursor.execute(statements)
        cursor.execute(f"SET ROLE {PREFIX}_owner")


@contextmanager
def policy_on(table: str) -> Iterator[None]:
    def alter(state: str) -> None:
        with connections["owner"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} {state} ROW LEVEL SECURITY")

    alter("ENABLE")
    alter("FORCE")
    try:
        yield
    finally:
        alter("NO FORCE")
        alter("DISABLE")


def spaces_of(spec: specs.Spec) -> list[Any]:
    from pgembed_django.models import Space

    return list(Space.objects.using("owner").filter(spec=spec.key))


class TestStaff:
    def test_it_reads_the_overview_and_does_what_its_buttons_do(self):
        article = make_article()
        drain()
        spec = specs.get("app.ArticleEmbedding")
        keys = {one.key for one in status.overview(using="staff").specs}
        assert spec.key in keys

        assert jobs.pause("spec", spec.key, by="me", using="staff")
        assert jobs.resume("spec", spec.key, using="staff")
        done = reembedding.reembed(spec, [str(article.pk)], using="staff")
        assert done.enqueued == 1
        assert_embedding_pending(article, using="owner")

        everything = Backfill(spec, using="staff", where=(), force=True).step()
        assert everything.is_last

        failed = {"status": "failed", "last_error": "no", "finished_at": models.functions.Now()}
        pending = Job.objects.using("owner").filter(status="pending")
        pending.update(**failed)
        [job] = Job.objects.using("staff").filter(status="failed", settled_at=None)
        assert jobs.retry_failed([job.pk], using="staff")["retried"] == 1
        pending.update(**failed)
        [job] = Job.objects.using("staff").filter(status="failed", settled_at=None)
        assert jobs.dismiss([job.pk], using="staff")["dismissed"] == 1

    def test_it_retries_and_cancels_tasks(self):
        failed, canceled = enqueue_task(once="key"), enqueue_task()
        rows = Task.objects.using("owner").filter(pk=failed)
        rows.update(status="failed", last_error="no", finished_at=models.functions.Now())

        assert triage.retry_failed([failed], using="staff")["retried"] == 1
        assert triage.cancel([canceled], using="staff")["canceled"] == 1

    def test_it_writes_no_more_than_that(self):
        assert rights("staff", OURS, *WRITES) == {
            (table, privilege)
            for table in ("pgembed_job", "pgembed_pause")
            for privilege in WRITES[:3]
        } | {
            ("pgembed_staging", "DELETE"),
            ("pgembed_scancursor", "INSERT"),
            ("pgembed_scancursor", "UPDATE"),
            ("pgembed_task", "UPDATE"),
            ("pgembed_task", "DELETE"),
        }


def test_the_owner_may_still_migrate_the_tables_of_vectors(run_roles):
    with connections["owner"].cursor() as cursor:
        cursor.execute("ALTER TABLE app_articleembedding ADD COLUMN later int")
        cursor.execute("ALTER TABLE app_articleembedding DROP COLUMN later")


def test_the_file_may_be_run_again(run_roles):
    run_roles()
    run_roles()


def test_the_owner_may_run_the_file_where_it_may_create_roles(run_roles):
    """As on a managed server, where nobody is a superuser."""
    owner = f"{PREFIX}_owner"
    run_roles(
        f"{PREFIX}_other",
        before=f"BEGIN; ALTER ROLE {owner} CREATEROLE; SET ROLE {owner};\n",
        after="\nROLLBACK;",
    )


def test_the_file_names_all_of_our_tables():
    text = ROLES.read_text()

    assert {table for table in OURS if text.count(table) < 2} == set()
