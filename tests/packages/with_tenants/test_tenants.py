"""Each tenant's rows are embedded in the tenant's own schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import ProgrammingError, connection, connections
from django_tenants.utils import schema_context, schema_exists

from pgembed_django import enqueue, search
from pgembed_django.models import Job, Ripple
from pgembed_django.testing import assert_fresh, run_jobs
from tests import cleanup
from tests.packages.with_tenants.customers.models import Country, Customer
from tests.packages.with_tenants.models import Article, ArticleEmbedding, Author, Member, Shop
from tests.packages.with_tenants.settings import WORKERS as TENANTS

pytestmark = pytest.mark.django_db(databases=["default", *TENANTS], transaction=True)


@pytest.fixture(scope="module", autouse=True)
def tenants(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION vector SCHEMA public")
        for name in TENANTS:
            Customer(schema_name=name).save(verbosity=0)
        cleanup.remember("default")
        yield
        for alias in connections:
            connections[alias].close()


@pytest.fixture(autouse=True)
def emptied(tenants: None, db: None) -> Iterator[None]:
    yield
    connection.set_schema_to_public()
    for tenant in TENANTS:
        with schema_context(tenant), connection.cursor() as cursor:
            names = set(connection.introspection.table_names(cursor))
            kept = {"django_migrations", "django_content_type"}
            for table in sorted(names - kept):
                cursor.execute(f"TRUNCATE {table} CASCADE")


def make_article(title: str, name: str = "Ann") -> Article:
    return Article.objects.create(title=title, author=Author.objects.create(name=name))


def passages() -> list[str]:
    return list(ArticleEmbedding.objects.order_by("source_id").values_list("passage", flat=True))


def test_each_tenant_is_migrated():
    with connection.cursor() as cursor:
        cursor.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'pgembed_ripple'")
        assert {schema for [schema] in cursor} == set(TENANTS)
        cursor.execute(
            "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger "
            "WHERE tgname LIKE 'pgtrigger_pgembed%' AND tgname NOT LIKE '%_team%'"
        )
        tables = ["auth_user", *(f"with_tenants_{name}" for name in ("article", "author", "shop"))]
        assert {table for [table] in cursor} == {
            f"{tenant}.{table}" for tenant in TENANTS for table in tables
        }


def test_the_checks_find_nothing_in_a_tenant():
    with schema_context("acme"):
        call_command("check", databases=["default"], fail_level="WARNING")
    call_command("check", databases=["acme"], fail_level="WARNING")


def test_rows_and_related_rows_are_embedded_in_their_own_schema():
    for tenant in TENANTS:
        with schema_context(tenant):
            make_article(f"Trout of {tenant}")
    for tenant in TENANTS:
        with schema_context(tenant):
            assert run_jobs() == 1

    with schema_context("acme"):
        Author.objects.update(name="Bo")
        assert Ripple.objects.count() == 1
    with schema_context("umbra"):
        assert not Ripple.objects.exists()
        assert run_jobs() == 0
        assert passages() == ["Trout of umbra\n\nAnn"]
        [hit] = search(Article, "trout")
        assert hit.title == "Trout of umbra"
    with schema_context("acme"):
        assert run_jobs() == 1
        assert passages() == ["Trout of acme\n\nBo"]
        [hit] = search(Article, "trout")
        assert hit.title == "Trout of acme"


@pytest.fixture
def country() -> Country:
    return Country.objects.create(name="Norway")


def test_a_worker_embeds_for_its_tenant_alone(country):
    for tenant in TENANTS:
        with schema_context(tenant):
            make_article(f"Trout of {tenant}")
            Shop.objects.create(name="Fish", country=country)

    call_command("embed_worker", "--drain", database="umbra", verbosity=0)

    with schema_context("umbra"):
        assert_fresh(Article.objects.get())
        assert_fresh(Shop.objects.get())
    with schema_context("acme"):
        assert Job.objects.filter(status="pending").count() == 2


def test_a_worker_is_run_by_tenant_command(country):
    def drain() -> None:
        command = ["embed_worker", "--drain", "--verbosity=0"]
        call_command("tenant_command", *command, schema_name="umbra")
        connection.set_schema_to_public()

    for tenant in TENANTS:
        with schema_context(tenant):
            make_article(f"Trout of {tenant}")
            Shop.objects.create(name="Fish", country=country)

    drain()

    with schema_context("acme"):
        assert Job.objects.filter(status="pending").count() == 2
    with schema_context("umbra"):
        assert_fresh(Article.objects.get())
        assert_fresh(Shop.objects.get())
        Author.objects.update(name="Bo")
    drain()
    with schema_context("umbra"):
        assert passages() == ["Trout of umbra\n\nBo"]


def test_a_shared_table_in_related_is_refused(settings):
    settings.TENANT_APPS = [*settings.TENANT_APPS, "tests.packages.with_tenants.refused"]

    with pytest.raises(ProgrammingError, match=r"customers_country. is shared by all tenants"):
        Customer(schema_name="brief").save(verbosity=0)


def test_rows_that_a_shared_table_is_part_of_are_enqueued_by_each_tenant(country):
    for tenant in TENANTS:
        with schema_context(tenant):
            Shop.objects.create(name="Fish", country=country)
            run_jobs()

    country.name = "Norge"
    country.save()
    for tenant in TENANTS:
        with schema_context(tenant):
            enqueue(Shop.objects.filter(country=country))
            assert run_jobs() == 1
            [hit] = search(Shop, "norge")
            assert hit.passage == "Fish, Norge"


@pytest.fixture
def mend(request) -> Callable[[str], None]:
    """Install in a schema what the page says."""
    page = (request.config.rootpath / "docs/how-to/schema-per-tenant.md").read_text()
    code = page.rpartition("```python\n")[2].partition("```")[0]
    return lambda alias: exec(code, {"ALIAS": alias})


@pytest.fixture
def moved(mend) -> Iterator[None]:
    """The schema of one tenant has the other one's name."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER SCHEMA umbra RENAME TO former; ALTER SCHEMA acme RENAME TO umbra")
    yield
    connections["umbra"].close()
    with connection.cursor() as cursor:
        cursor.execute("ALTER SCHEMA umbra RENAME TO acme; ALTER SCHEMA former RENAME TO umbra")
    mend("acme")


@pytest.mark.parametrize(("alias", "schema"), [("umbra", "public"), ("default", "umbra")])
def test_a_schema_that_was_renamed_is_told_of(moved, alias, schema):
    # The second is what `tenant_command check` does.
    with schema_context(schema), pytest.raises(SystemCheckError, match=r"pgembed\.E016"):
        call_command("check", databases=[alias])


def test_a_schema_that_was_renamed_is_mended_as_the_page_says(moved, mend):
    mend("umbra")

    with schema_context("umbra"):
        call_command("check", databases=["default"], fail_level="WARNING")
        article = make_article("Trout")
        Author.objects.update(name="Bo")
        run_jobs()
        assert passages() == ["Trout\n\nBo"]
        article.delete()
        assert passages() == []


def test_a_tenant_is_migrated_back_alone():
    for target in (["zero"], []):
        call_command("migrate_schemas", "with_tenants", *target, schema_name="acme", verbosity=0)
        with schema_context("umbra"):
            make_article("Trout")
            Author.objects.update(name="Bo")
            run_jobs()
            assert "Trout\n\nBo" in passages()
    with schema_context("acme"):
        make_article("Trout of acme")
        assert run_jobs() == 1


def test_users_of_a_tenant_are_embedded_and_shared_ones_are_not():
    shared = User.objects.create_user("trout of all")
    with schema_context("acme"):
        User.objects.create_user("trout of acme")
        assert run_jobs() == 1
        assert [hit.username for hit in search(Member, "trout")] == ["trout of acme"]
    shared.username = "salmon of all"
    shared.save()


def test_a_tenant_that_goes_leaves_nothing():
    customer = Customer(schema_name="brief")
    customer.save(verbosity=0)
    with schema_context("brief"):
        make_article("Trout")
        run_jobs()

    customer.delete(force_drop=True)

    assert not schema_exists("brief")
    with schema_context("acme"):
        make_article("Trout of acme")
        assert run_jobs() == 1
        assert passages() == ["Trout of acme\n\nAnn"]


def test_a_copied_schema_is_told_of_and_mended_as_the_page_says(settings, mend):
    template = Customer(schema_name="template")
    template.save(verbosity=0)
    with schema_context("template"), connection.cursor() as cursor:
        make_article("Trout")
        run_jobs()
        # CREATE TABLE ... (LIKE ...) refuses a CHECK of the whole row.
        cursor.execute("ALTER TABLE pgembed_job DROP CONSTRAINT pgembed_job_is_possible")
    settings.TENANT_CREATION_FAKES_MIGRATIONS = True
    settings.TENANT_BASE_SCHEMA = "template"

    copy = Customer(schema_name="copy")
    copy.save(verbosity=0)

    with schema_context("copy"):
        with pytest.raises(SystemCheckError, match=r"pgembed\.E016"):
            call_command("check", databases=["default"])
        mend("default")
        call_command("check", databases=["default"], fail_level="WARNING")
        Author.objects.update(name="Bo")
        make_article("Trout of the copy")
        run_jobs()
        assert passages() == ["Trout\n\nBo", "Trout of the copy\n\nAnn"]
    with schema_context("template"):
        assert run_jobs() == 0
        assert passages() == ["Trout\n\nAnn"]
    for customer in (copy, template):
        customer.delete(force_drop=True)
