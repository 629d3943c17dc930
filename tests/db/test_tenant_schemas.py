"""A schema per tenant, in the manner of django-tenants: two of them in one database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pgtrigger
import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import ProgrammingError, connections, transaction
from django.db.backends.signals import connection_created
from django.test.utils import override_settings

from pgembed_django import enqueue, search
from pgembed_django.checks import check_databases
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Ripple, Space
from pgembed_django.queue.listener import KEYS
from pgembed_django.retrieval import frequencies
from pgembed_django.spaces import indexes, repairs
from pgembed_django.testing import assert_fresh, run_jobs
from pgembed_django.triggers import sql, triggers
from tests.app.models import Author, Note, NoteEmbedding
from tests.conftest import testing_url

TENANTS = ("acme", "umbra")
ALIASES = [*TENANTS, "web"]

pytestmark = pytest.mark.django_db(databases=["default", *ALIASES], transaction=True)


class TenantApps:
    """What is in each tenant's schema."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return app_label in ("app", "pgembed") if db in ALIASES else None


class OneAlias:
    """Migrates all tenants through one alias, as that of django-tenants does."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "default"


@pytest.fixture(scope="module", autouse=True)
def database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A database of its own: an alias for each tenant's worker, and one that requests share."""
    url = testing_url()
    default = connections.settings["default"]
    name = f"{connections['default'].settings_dict['NAME']}_tenants"
    tenancy = {"PGTRIGGER_SCHEMA": None, "DATABASE_ROUTERS": [f"{__name__}.TenantApps"]}
    with django_db_blocker.unblock(), override_settings(**tenancy):
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        for alias in ALIASES:
            options = {**default["OPTIONS"]}
            if alias in TENANTS:
                options["options"] = f"-c search_path={alias},public"
            connections.settings[alias] = {**default, "NAME": name, "OPTIONS": options}
        execute("web", "CREATE EXTENSION vector")
        for tenant in TENANTS:
            execute("web", f"CREATE SCHEMA {tenant}")
            migrate(tenant)
        yield
        for alias in ALIASES:
            connection_created.disconnect(dispatch_uid=f"pgembed-{alias}")
            connections[alias].close()
            del connections[alias], connections.settings[alias]
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def migrate(tenant: str) -> None:
    """Our own migration, and what a user's would do for one model."""
    call_command("migrate", "pgembed", database=tenant, verbosity=0)
    with connections[tenant].schema_editor() as editor:
        editor.create_model(Note)
        editor.create_model(NoteEmbedding)
        for trigger in note_triggers():
            editor.execute(trigger.compile(Note).install_sql, params=None)


def note_triggers() -> list[Any]:
    return [trigger for model, trigger in pgtrigger.registered() if model is Note]


def execute(using: str, statement: str, *parameters: Any) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters or None)


@pytest.fixture
def request_of() -> Iterator[Callable[[str], str]]:
    """Switch the shared connection to a tenant, as a middleware does for each request."""

    def switch(tenant: str) -> str:
        execute("web", f"SET search_path = {tenant}, public")
        return "web"

    yield switch
    connections["web"].close()


def pending(tenant: str) -> int:
    return Job.objects.using(tenant).filter(status="pending").count()


def bodies(tenant: str) -> list[str]:
    return list(NoteEmbedding.objects.using(tenant).values_list("passage", flat=True))


def test_rows_are_enqueued_for_the_tenant_of_the_call(request_of):
    for tenant in TENANTS:
        Note.objects.using(tenant).create(body="wool")

    assert enqueue(Note.objects.using(request_of("acme"))) == 1

    assert [Ripple.objects.using(tenant).count() for tenant in TENANTS] == [1, 0]


def test_each_tenant_has_tables_and_functions_of_its_own():
    functions = "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    tables = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    for tenant in TENANTS:
        assert set(sql.FUNCTIONS) <= {name for [name] in rows(tenant, functions)}
        assert {"pgembed_job", "pgembed_space", "app_noteembedding"} <= {
            name for [name] in rows(tenant, tables)
        }
        assert sql.misplaced(tenant) == {}
    assert check_databases(databases=list(TENANTS)) == []


def rows(using: str, statement: str) -> list[Any]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_a_request_writes_and_searches_in_its_own_tenant(request_of):
    Note.objects.using(request_of("acme")).create(body="red wool of acme")
    Note.objects.using(request_of("umbra")).create(body="red wool of umbra")
    assert (pending("acme"), pending("umbra")) == (1, 1)

    assert [run_jobs(using=tenant) for tenant in TENANTS] == [1, 1]

    assert bodies("acme") == ["red wool of acme"]
    assert bodies("umbra") == ["red wool of umbra"]
    for tenant in TENANTS:
        [hit] = search(Note.objects.using(request_of(tenant)), "red wool")
        assert hit.body == f"red wool of {tenant}"


def test_a_delete_and_a_truncate_forget_in_their_own_tenant(request_of):
    for tenant in TENANTS:
        Note.objects.using(tenant).create(body=tenant)
        run_jobs(using=tenant)

    Note.objects.using(request_of("acme")).all().delete()
    assert (bodies("acme"), bodies("umbra")) == ([], ["umbra"])

    execute(request_of("umbra"), "TRUNCATE app_note")
    assert bodies("umbra") == []


@pytest.mark.parametrize("path", ["umbra, public", "public", "''"])
def test_a_row_that_is_written_with_another_search_path_has_its_job_beside_it(path):
    execute("web", f"SET search_path = {path}")
    try:
        execute(
            "web",
            "INSERT INTO acme.app_note (id, body, seen) VALUES (gen_random_uuid(), 'a', 0)",
        )
        assert (pending("acme"), pending("umbra")) == (1, 0)
        execute("web", "DELETE FROM acme.app_note")
    finally:
        connections["web"].close()

    assert (pending("acme"), pending("umbra")) == (1, 0)


def test_rows_that_are_enqueued_together_have_their_jobs_beside_them():
    by_row = next(trigger for trigger in note_triggers() if "_insert_" in trigger.name)
    by_statement = next(triggers(replace(by_row.watch, is_by_statement=True)))
    try:
        with connections["acme"].schema_editor() as editor:
            editor.execute(by_statement.compile(Note).install_sql, params=None)
        execute("web", "SET search_path = umbra, public")
        execute(
            "web",
            "INSERT INTO acme.app_note (id, body, seen) "
            "SELECT gen_random_uuid(), 'a', 0 FROM generate_series(1, 3)",
        )
        assert (pending("acme"), pending("umbra")) == (3, 0)
    finally:
        with connections["acme"].schema_editor() as editor:
            editor.execute(by_row.compile(Note).install_sql, params=None)


def test_words_that_are_common_in_one_tenant_are_rare_in_another(request_of):
    for tenant, common, rare in (("acme", "wool", "granite"), ("umbra", "granite", "wool")):
        notes = [Note(body=f"{common} of number {number}") for number in range(60)]
        Note.objects.using(tenant).bulk_create([*notes, Note(body=f"{rare} of number 60")])
        run_jobs(using=tenant)
        execute(tenant, "ANALYZE app_noteembedding")
    frequencies.forget()

    for tenant, rare in (("acme", "granite"), ("umbra", "wool")):
        notes = Note.objects.using(request_of(tenant))
        first, *others = search(notes, "wool granite", mode="lexical")
        assert first.body == f"{rare} of number 60"
        assert len(others) == 9


def test_a_worker_drains_its_tenant_and_no_other():
    for tenant in TENANTS:
        Note.objects.using(tenant).create(body=tenant)

    call_command("embed_worker", "--drain", database="umbra", verbosity=0)

    assert_fresh(Note.objects.using("umbra").get())
    assert (pending("acme"), pending("umbra")) == (1, 0)


def test_writers_of_one_tenant_do_not_wake_the_worker_of_another():
    keys = {tenant: key_of(tenant) for tenant in TENANTS}

    assert len(set(keys.values())) == 2


def key_of(tenant: str) -> int:
    with connections[tenant].cursor() as cursor:
        cursor.execute(KEYS, {"specs": ["app.NoteEmbedding"]})
        return cursor.fetchone()[0]


def test_an_index_is_built_in_each_tenant_though_their_names_are_the_same(settings):
    settings.PGEMBED_INDEX_ROWS = 1
    spec = specs.get("app.NoteEmbedding")
    for tenant in TENANTS:
        Note.objects.using(tenant).create(body=tenant)
        run_jobs(using=tenant)
    # As where the second tenant's search_path leads on to the first one's schema.
    execute("umbra", "SET search_path = umbra, acme, public")
    try:
        for tenant in TENANTS:
            [space] = spaces_of(tenant)
            assert indexes.build(spec, space, using=tenant) == 2
            assert indexes.is_complete(spec, space, using=tenant)
        indexes.drop(spec, space, using="umbra")
        assert indexes.is_complete(spec, spaces_of("acme")[0], using="acme")
    finally:
        connections["umbra"].close()
        indexes.drop(spec, spaces_of("acme")[0], using="acme")


def spaces_of(tenant: str) -> list[Space]:
    return list(Space.objects.using(tenant).all())


def test_a_renaming_is_followed_while_another_tenant_follows_its_own():
    for tenant in TENANTS:
        Note.objects.using(tenant).create(body=tenant)
        run_jobs(using=tenant)
    Space.objects.using("umbra").update(spec="app.FormerEmbedding")

    with transaction.atomic(using="acme"):
        execute("acme", repairs.TRY_LOCK)
        assert repairs.follow_renames(using="umbra")

    assert {space.spec for space in spaces_of("umbra")} == {"app.NoteEmbedding"}


def test_a_table_of_the_shared_schema_is_no_tenants(request_of):
    execute("acme", "ALTER TABLE acme.app_noteembedding SET SCHEMA public")
    try:
        assert specs.on("acme") == []
    finally:
        execute("acme", "ALTER TABLE public.app_noteembedding SET SCHEMA acme")
    assert [spec.key for spec in specs.on("acme")] == ["app.NoteEmbedding"]


class SomeModels:
    """Knows all tenants by one alias, and that the one has notes, but no articles."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "acme"

    def allow_migrate(self, db: str, app_label: str, model_name: str, **hints: Any) -> bool:
        return model_name != "article"


def test_what_a_router_keeps_out_of_a_tenant_is_not_there(settings):
    assert specs.get("app.ArticleEmbedding") not in specs.on("acme")
    settings.DATABASE_ROUTERS = [f"{__name__}.SomeModels"]

    here = specs.on("acme")

    assert specs.get("app.NoteEmbedding") in here
    assert specs.get("app.ArticleEmbedding") not in here


def test_a_schema_without_our_functions_gets_no_triggers():
    """The table of a proxy may be in the schema of shared apps as well."""
    execute("web", "CREATE TABLE public.app_note (LIKE acme.app_note)")
    try:
        with connections["web"].schema_editor() as editor:
            for trigger in note_triggers():
                editor.execute(trigger.compile(Note).install_sql, params=None)

        Note.objects.using("web").create(body="a")
        Note.objects.using("web").all().delete()

        assert (
            rows("web", "SELECT FROM pg_trigger WHERE tgrelid = 'public.app_note'::regclass") == []
        )
    finally:
        execute("web", "DROP TABLE public.app_note")


class TestMishaps:
    def test_a_trigger_on_a_related_table_that_tenants_share_is_refused(self):
        """The second tenant's would take the place of the first one's."""
        trigger = next(
            trigger.compile(model)
            for model, trigger in pgtrigger.registered()
            if model is Author and trigger.name.startswith("pgembed_ripple_update")
        )
        shared = "CREATE TABLE public.app_author (id int, name text, city_id int);"
        with (
            pytest.raises(ProgrammingError, match=r"app_author.* is shared by all tenants"),
            connections["acme"].schema_editor() as editor,
        ):
            editor.execute(shared + trigger.install_sql, params=None)

    def test_one_schema_for_all_functions_is_refused_at_the_second_tenant(self, settings):
        """They would write the first tenant's jobs to the second one's table, in silence."""
        settings.PGTRIGGER_SCHEMA = "acme"

        with (
            pytest.raises(ImproperlyConfigured, match="PGTRIGGER_SCHEMA = None"),
            connections["umbra"].schema_editor() as editor,
        ):
            sql.install(None, editor)

        assert sql.misplaced("acme") == {}

    def test_a_schema_may_have_any_name(self):
        execute("acme", """CREATE SCHEMA "Smith ""& Sons"", Inc" """)
        execute("acme", """SET search_path = "Smith ""& Sons"", Inc", public""")
        try:
            migrate("acme")
            assert sql.misplaced("acme") == {}
        finally:
            connections["acme"].close()
            execute("web", """DROP SCHEMA "Smith ""& Sons"", Inc" CASCADE""")

    @pytest.mark.parametrize("router", ["TenantApps", "OneAlias"])
    def test_a_renamed_schema_is_told_and_mended_as_the_page_says(self, request, settings, router):
        settings.DATABASE_ROUTERS = [f"{__name__}.{router}"]
        page = (request.config.rootpath / "docs/how-to/schema-per-tenant.md").read_text()
        mend = page.partition("```python\nfrom django.db import connections\n")[2]
        execute("web", "ALTER SCHEMA umbra RENAME TO moved; CREATE SCHEMA umbra")
        execute("acme", "SET search_path = moved, public")
        try:
            messages = check_databases(databases=["acme"])
            assert {message.id for message in messages} == {"pgembed.E016"}
            assert "writes to the tables in schema 'umbra'" in messages[0].msg

            exec(mend.partition("```")[0], {"connections": connections, "ALIAS": "acme"})

            assert check_databases(databases=["acme"]) == []
            Note.objects.using("acme").create(body="a")
            assert pending("acme") == 1
        finally:
            connections["acme"].close()
            execute("web", "DROP SCHEMA umbra; ALTER SCHEMA moved RENAME TO umbra")
            with connections["umbra"].schema_editor() as editor:
                sql.install(None, editor)
                for trigger in note_triggers():
                    editor.execute(trigger.compile(Note).install_sql, params=None)
