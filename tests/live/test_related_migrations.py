"""What makemigrations does with triggers on other tables: they are in the user's own app."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.project import Project

pytestmark = pytest.mark.live

ITEM = """
class Tag(models.Model):
    {word} = models.TextField()

@embeddable(fields=["title"], related={related})
class Item(models.Model):
    title = models.TextField()
    owner = models.ForeignKey("auth.User", models.SET_NULL, null=True)
    tags = models.ManyToManyField(Tag)
"""
RELATED = '["owner__username", "tags__word"]'
TRIGGERS = """
    SELECT tgrelid::regclass::text, count(*)
    FROM pg_trigger
    WHERE tgname LIKE 'pgtrigger_pgembed_ripple%'
    GROUP BY 1 ORDER BY 1
"""
FUNCTIONS = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'pgtrigger_pgembed_ripple%'"
USER = """
    INSERT INTO auth_user (
        username, password, is_superuser, first_name, last_name, email, is_staff, is_active,
        date_joined
    )
    VALUES ('ann', '', false, '', '', '', false, true, now())
"""
ALL = [("auth_user", 2), ("shop_item_tags", 4), ("shop_tag", 2)]
VENDOR = """
from django.db import models

class Brand(models.Model):
    name = models.{field}
"""
VENDORED = """
@embeddable(fields=["title"], related=["brand__name"])
class Item(models.Model):
    title = models.TextField()
    brand = models.ForeignKey("vendor.Brand", models.CASCADE)
"""


def item(*, related: str = RELATED, word: str = "word") -> str:
    return ITEM.format(related=related, word=word)


def add_vendor(project: Project) -> Path:
    folder = project.folder / "vendor"
    (folder / "migrations").mkdir(parents=True)
    for one in ("__init__.py", "migrations/__init__.py"):
        (folder / one).touch()
    (folder / "models.py").write_text(VENDOR.format(field="CharField(max_length=9)"))
    settings = project.folder / "shop_settings.py"
    settings.write_text(settings.read_text().replace('"shop",', '"shop", "vendor",'))
    project.manage("makemigrations", "vendor")
    return folder


def test_triggers_on_other_tables_are_in_the_own_app(project):
    written = project.migrated(item())

    assert "('auth', '0012_" in written
    assert project.ask(TRIGGERS) == ALL
    project.ask(USER)
    assert project.ask("SELECT path FROM pgembed_ripple") == []
    project.ask("UPDATE auth_user SET username = 'bo'")
    assert project.ask("SELECT spec, path, key FROM pgembed_ripple") == [
        ("shop.ItemEmbedding", "owner__pk", "1")
    ]
    project.ask("UPDATE auth_user SET email = 'x'")
    assert project.ask("SELECT count(*) FROM pgembed_ripple") == [(1,)]
    assert "pgembed.W006" not in project.manage("check", "--database", "default")
    project.manage("pgtrigger", "prune")
    assert project.ask(TRIGGERS) == ALL
    project.manage("migrate", "shop", "zero")
    assert project.ask(FUNCTIONS) == [(0,)]


def test_a_missing_one_is_found_by_the_check(project):
    project.migrated(item())
    project.ask(
        "DROP TRIGGER {} ON auth_user".format(
            *[
                name
                for [name] in project.ask(
                    "SELECT tgname FROM pg_trigger WHERE tgrelid = 'auth_user'::regclass "
                    "AND NOT tgisinternal"
                )
            ]
        )
    )

    assert "1 trigger is missing" in project.manage("check", "--database", "default")


def test_relations_are_added_and_taken_away(project):
    project.migrated(item(related="[]"))
    assert project.ask(TRIGGERS) == []

    written = project.migrated(item())

    assert "('auth', '0012_" in written
    assert project.ask(TRIGGERS) == ALL
    project.migrated(item(related='["owner__username"]'))
    assert project.ask(TRIGGERS) == [("auth_user", 2)]
    project.migrated("")
    assert project.ask(TRIGGERS) == []
    assert project.ask(FUNCTIONS) == [(0,)]


def test_a_renamed_column_and_a_renamed_model_take_their_triggers_along(project):
    project.migrated(item())

    project.migrated(item(related='["owner__username", "tags__name"]', word="name"), answers="y\n")

    assert project.ask(TRIGGERS) == ALL
    renamed = item(related='["owner__username", "tags__name"]', word="name")
    renamed = renamed.replace("class Tag", "class Label").replace("(Tag)", "(Label)")
    project.migrated(renamed, answers="y\n" * 3)
    assert project.ask(TRIGGERS) == [("auth_user", 2), ("shop_item_tags", 4), ("shop_label", 2)]
    project.migrated(renamed.replace("class Item", "class Thing"), answers="y\n" * 3)
    assert project.ask(TRIGGERS) == [("auth_user", 2), ("shop_label", 2), ("shop_thing_tags", 4)]
    assert project.ask(FUNCTIONS) == [(8,)]


def test_a_migration_of_another_app_may_alter_a_watched_column(project):
    folder = add_vendor(project)
    written = project.migrated(VENDORED)
    assert "('vendor', '0001_initial')" in written
    (folder / "models.py").write_text(VENDOR.format(field="TextField()"))

    project.manage("makemigrations", "vendor")
    project.manage("migrate")

    project.manage("makemigrations", "shop")
    project.manage("migrate")
    project.manage("makemigrations", "--check")
    project.ask("INSERT INTO vendor_brand (name) VALUES ('a')")
    project.ask("UPDATE vendor_brand SET name = 'b'")
    assert project.ask("SELECT path, key FROM pgembed_ripple") == [("brand__pk", "1")]


def test_a_migration_of_another_app_may_drop_a_watched_column(project):
    folder = add_vendor(project)
    project.migrated(VENDORED)
    project.write(VENDORED.replace('["brand__name"]', "[]"))
    project.manage("makemigrations", "shop")
    (folder / "models.py").write_text(
        VENDOR.format(field="TextField(null=True)").replace("name", "title")
    )
    project.manage("makemigrations", "vendor")

    project.manage("migrate", "vendor")

    # The one for deletions does not read it.
    assert project.ask(TRIGGERS) == [("vendor_brand", 1)]
    project.manage("migrate")
    assert project.ask(FUNCTIONS) == [(0,)]


def test_a_migration_of_another_app_may_rename_the_key_of_a_watched_table(project):
    folder = add_vendor(project)
    keyed = VENDOR.format(field="TextField()\n    code = models.TextField(primary_key=True)")
    (folder / "migrations/0001_initial.py").unlink()
    (folder / "models.py").write_text(keyed)
    project.manage("makemigrations", "vendor")
    project.migrated(VENDORED)
    (folder / "models.py").write_text(keyed.replace("code", "slug"))
    project.manage("makemigrations", "vendor", answers="y\n")

    project.manage("migrate", "vendor")

    project.ask("INSERT INTO vendor_brand (slug, name) VALUES ('a', 'b')")
    project.ask("UPDATE vendor_brand SET name = 'c'")
    assert project.ask("SELECT path, key FROM pgembed_ripple") == [("brand__pk", "a")]
    project.manage("makemigrations", "shop")
    project.manage("migrate")
    project.ask("UPDATE vendor_brand SET name = 'd'")
    assert project.ask("SELECT count(*) FROM pgembed_ripple") == [(2,)]


def test_without_migrations_the_triggers_are_there_too(project):
    settings = project.folder / "shop_settings.py"
    settings.write_text(
        settings.read_text()
        + '\nMIGRATION_MODULES = dict.fromkeys(["shop", "auth", "contenttypes"])\n'
    )
    project.write(item())

    project.manage("migrate", "--run-syncdb")

    assert project.ask(TRIGGERS) == ALL
