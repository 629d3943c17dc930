"""What makemigrations and migrate do in a user's project, through its life."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from tests.live.project import IMPORTS, Project

pytestmark = pytest.mark.live

EMBEDDED = '@embeddable(fields=["title"], when=Q(is_public=True))\n'
ITEM = """
class Item(models.Model):
    title = models.TextField()
    is_public = models.BooleanField(default=True)
"""

ROW = "INSERT INTO shop_item (title, is_public) VALUES ('a', true)"
VECTOR = """
    INSERT INTO shop_itemembedding (
        source_id, space_id, position, start_offset, end_offset, chunk_digest, text_digest
    )
    VALUES (1, 1, 0, 0, 1, '', '')
"""
SPACE = """
    INSERT INTO pgembed_space (
        spec, fingerprint, provider, backend, model, dimensions, options
    )
    VALUES ('shop.ItemEmbedding', 'x', 'default', 'b', 'm', 2, '{}')
"""
EMPTIED = """
from django.db import migrations

class Migration(migrations.Migration):
    dependencies = [("shop", "{before}")]
    operations = []
"""
SWAPPED = """
from django.db import migrations

class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.RenameField("item", "{0}", "{0}_old"),
        migrations.RenameField("item", "{0}_new", "{0}"),
    ]
"""
OURS = """
    SELECT proname FROM pg_proc WHERE proname LIKE '%pgembed%'
    UNION ALL
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
      AND (relname LIKE '%pgembed%' OR relname ~ '^app_')
"""


def test_every_shape_migrates_from_zero_and_back_to_zero(project):
    project.settings = "tests.settings"

    project.manage("migrate")
    assert any("update_oddityembedding" in name for name in project.triggers())
    project.manage("migrate", "app", "zero")
    assert project.triggers() == []
    project.manage("migrate", "pgembed", "zero")
    assert project.ask(OURS) == []
    project.manage("migrate")


def test_adding_the_decorator_writes_the_table_and_the_triggers(project):
    project.migrated(ITEM)
    project.ask(ROW)

    written = project.migrated(EMBEDDED + ITEM)

    assert "name='ItemEmbedding'" in written
    assert "('pgembed', '0001_initial')" in written
    assert len(project.triggers()) == 5
    project.ask("UPDATE shop_item SET title = 'b'")
    assert project.jobs() == [("shop.ItemEmbedding", "1")]


def test_removing_the_decorator_leaves_a_plain_table(project):
    project.migrated(EMBEDDED + ITEM)

    written = project.migrated(ITEM)

    assert project.triggers() == []
    project.ask(ROW)
    assert project.ask("SELECT to_regclass('shop_itemembedding')") == [(None,)]
    assert project.ask("SELECT proname FROM pg_proc WHERE proname LIKE '%itemembedding%'") == []
    # Django 5.2 forgets to remove the constraint, and cannot go back for that.
    if "RemoveConstraint" in written:
        project.manage("migrate", "shop", "zero")


def test_a_project_that_takes_it_off_again_keeps_nothing_of_it(project):
    """The steps of docs/how-to/take-it-off.md."""
    project.migrated(ITEM)
    project.ask("CREATE EXTENSION IF NOT EXISTS vector")
    project.ask("CREATE TABLE their_own (vector vector)")
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    project.ask(SPACE)
    assert "No data is left" in project.manage("embed_forget", "--yes")
    project.write(ITEM)
    assert "its triggers are on shop_item" in project.manage("embed_forget", "--yes", fails=True)

    project.migrated(ITEM)

    assert "  1 jobs, 1 spaces\n" in project.manage("embed_forget")
    assert "deleted: 1 jobs, 1 spaces\n" in project.manage("embed_forget", "--yes")
    assert project.ask("SELECT spec FROM pgembed_space") == project.jobs() == []

    [_, added, removed] = sorted((project.folder / "shop" / "migrations").glob("0*.py"))
    assert "shop" in project.manage("migrate", "pgembed", "zero", "--plan")
    for path, before in ((added, "0001_initial"), (removed, added.stem)):
        path.write_text(EMPTIED.format(before=before))
    assert "shop" not in project.manage("migrate", "pgembed", "zero", "--plan")
    project.manage("migrate", "pgembed", "zero")
    settings = project.folder / "shop_settings.py"
    without = settings.read_text().replace('"pgtrigger", "pgembed_django",', "")
    settings.write_text(without.partition("PGEMBED_PROVIDERS")[0])
    (project.folder / "shop" / "models.py").write_text("from django.db import models\n" + ITEM)

    project.manage("check", "--database", "default")
    project.manage("makemigrations", "--check")
    project.manage("migrate")
    assert project.ask(OURS) == project.triggers() == []
    assert project.ask("SELECT title FROM shop_item") == [("a",)]
    assert project.ask("SELECT * FROM their_own") == []


def test_triggers_that_no_migration_drops_are_pruned_as_the_message_says(project):
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    # Nobody makes the migration that would drop them.
    project.write(ITEM + "\n    class Meta:\n        managed = False\n")
    assert len(project.triggers()) == 5

    said = project.manage("embed_forget", "--yes", fails=True)
    assert "and pgtrigger prune where those leave them" in said
    project.manage("pgtrigger", "prune")

    assert project.triggers() == []
    assert "deleted: 1 jobs" in project.manage("embed_forget", "--yes")


def test_another_condition_makes_other_triggers_and_keeps_the_table(project):
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    project.ask(VECTOR)

    written = project.migrated(EMBEDDED.replace("=True", "=False") + ITEM)

    assert "CreateModel" not in written
    assert "DeleteModel" not in written
    assert project.ask("SELECT count(*) FROM shop_itemembedding") == [(1,)]
    project.ask("INSERT INTO shop_item (title, is_public) VALUES ('a', false)")
    assert project.jobs() == [("shop.ItemEmbedding", "1"), ("shop.ItemEmbedding", "2")]
    project.manage("migrate", "shop", "0001")
    project.ask("UPDATE shop_item SET title = 'c'")
    assert len(project.jobs()) == 2


def test_what_triggers_need_not_know_writes_no_migration(project):
    project.migrated(EMBEDDED + ITEM)

    project.write(EMBEDDED.replace(")\n", ", provider='other', stale='hide')\n", 1) + ITEM)

    project.manage("makemigrations", "--check", "--skip-checks")


def test_a_renamed_model_keeps_its_vectors_and_gets_new_triggers(project):
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    project.ask(VECTOR)

    written = project.migrated((EMBEDDED + ITEM).replace("Item", "Thing"), answers="y\ny\n")

    assert "old_name='ItemEmbedding'" in written
    assert project.ask("SELECT source_id FROM shop_thingembedding") == [(1,)]
    assert len(project.triggers()) == 5
    project.ask("UPDATE shop_thing SET title = 'b'")
    assert project.jobs()[-1] == ("shop.ThingEmbedding", "1")
    project.ask("DELETE FROM shop_thing")
    assert project.ask("SELECT source_id FROM shop_thingembedding") == []


def test_a_worker_of_the_former_code_that_is_started_anew_works_on_the_others(project):
    """A supervisor starts it again in the middle of a deploy. It must not do so for ever."""
    other = ITEM.replace("Item", "Other")
    former = EMBEDDED + ITEM + EMBEDDED + other
    project.migrated(former)
    project.migrated(former.replace("Item", "Thing"), answers="y\ny\n")
    newest = max((project.folder / "shop" / "migrations").glob("0*.py"))
    project.ask(ROW.replace("shop_item", "shop_thing"))
    project.ask(ROW.replace("shop_item", "shop_other"))
    newest.unlink()
    project.write(former)

    said = project.manage("embed_worker", "--drain")

    assert "Embedded 1 row" in said
    assert f"shop.{newest.stem} is applied, but is not in this code" in said
    assert "No space" not in said
    assert project.ask("SELECT DISTINCT spec FROM pgembed_space") == [("shop.OtherEmbedding",)]
    assert project.jobs()[0] == ("shop.ThingEmbedding", "1")
    # Where no newer migration tells why, nobody has migrated.
    project.ask(f"DELETE FROM django_migrations WHERE name = '{newest.stem}'")
    said = project.manage("embed_worker", "--drain", fails=True)
    assert "has no table for shop.ItemEmbedding. Run manage.py makemigrations" in said


def test_undoing_the_renaming_of_a_model_says_what_to_do_and_then_works(project):
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    project.ask(VECTOR)
    written = project.migrated((EMBEDDED + ITEM).replace("Item", "Thing"), answers="y\ny\n")

    said = project.manage("migrate", "shop", "0001", fails=True)
    assert 'pgembed: there is no table "shop_item"' in said
    assert "first move the RemoveTrigger operations of its migration above it" in said

    removals = re.findall(r" +pgtrigger\.migrations\.RemoveTrigger\([^)]*\),\n", written)
    assert len(removals) == 5
    for removal in removals:
        written = written.replace(removal, "")
    first = "".join(removals).replace("thing", "item")
    [migration] = (project.folder / "shop" / "migrations").glob("0002*.py")
    migration.write_text(written.replace("operations = [\n", "operations = [\n" + first))
    project.manage("migrate", "shop", "0001")

    assert project.ask("SELECT source_id FROM shop_itemembedding") == [(1,)]
    assert len(project.triggers()) == 5
    project.ask("DELETE FROM shop_item")
    assert project.ask("SELECT source_id FROM shop_itemembedding") == []
    project.manage("migrate")
    assert len(project.triggers()) == 5


def test_another_name_of_the_table_says_what_to_do_and_then_works(project):
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    project.ask(VECTOR)
    project.write(EMBEDDED + ITEM + "\n    class Meta:\n        db_table = 'items'\n")
    project.manage("makemigrations", "shop")

    said = project.manage("migrate", fails=True)
    assert 'pgembed: there is no table "items"' in said
    assert "move AlterModelTable of its migration above the AddTrigger operations" in said

    [migration] = (project.folder / "shop" / "migrations").glob("0002*.py")
    written = migration.read_text()
    [moved] = re.findall(r" +migrations\.AlterModelTable\([^)]*\),\n", written)
    first = " " * 8 + "pgtrigger.migrations.AddTrigger("
    migration.write_text(written.replace(moved, "").replace(first, moved + first, 1))
    for target in ((), ("shop", "0001"), ()):
        project.manage("migrate", *target)
        assert len(project.triggers()) == 5

    project.manage("makemigrations", "--check")
    assert project.ask("SELECT source_id FROM shop_itemembedding") == [(1,)]
    project.ask("UPDATE items SET title = 'b'")
    assert project.jobs()[-1] == ("shop.ItemEmbedding", "1")
    project.ask("DELETE FROM items")
    assert project.ask("SELECT source_id FROM shop_itemembedding") == []


def test_renamed_fields_keep_the_vectors(project):
    project.migrated(EMBEDDED + ITEM)
    project.ask(ROW)
    project.ask(VECTOR)
    renamed = (EMBEDDED + ITEM).replace("title", "name").replace("is_public", "is_shown")

    project.migrated(renamed, answers="y\ny\n")

    assert project.ask("SELECT source_id FROM shop_itemembedding") == [(1,)]
    project.ask("UPDATE shop_item SET is_shown = false")
    assert project.ask("SELECT source_id FROM shop_itemembedding") == []
    project.manage("migrate", "shop", "0001")
    project.ask("INSERT INTO shop_item (title, is_public) VALUES ('b', true)")
    assert ("shop.ItemEmbedding", "2") in project.jobs()


def swap(project: Project, name: str, field: str) -> None:
    """Let a new column take another's name, as one is replaced that is too large to be altered."""
    column = f"    {name}_{{}} = models.{field}\n"
    project.migrated(EMBEDDED + ITEM + column.format("new"))
    migration = project.folder / "shop" / "migrations" / "0002_swap.py"
    migration.write_text(SWAPPED.format(name))
    project.write(EMBEDDED + ITEM + column.format("old"))
    project.manage("makemigrations", "--check")


def test_a_column_that_takes_anothers_name_is_watched(project):
    swap(project, "title", "TextField()")
    project.ask("INSERT INTO shop_item (title, title_new, is_public) VALUES ('a', '', true)")

    said = project.manage("migrate")

    assert "A column of shop.ItemEmbedding has taken another's name" in said
    project.ask("DELETE FROM pgembed_job")
    project.ask("UPDATE shop_item SET title_old = 'b'")
    assert project.jobs() == []
    project.ask("UPDATE shop_item SET title = 'c'")
    assert project.jobs() == [("shop.ItemEmbedding", "1")]
    assert "W006" not in project.manage("check", "--database", "default")
    assert "has taken" not in project.manage("migrate")

    project.write(EMBEDDED + ITEM + "    title_new = models.TextField()\n")
    project.manage("migrate", "shop", "0001")
    project.ask("DELETE FROM pgembed_job")
    project.ask("UPDATE shop_item SET title = 'd'")
    assert project.jobs() == [("shop.ItemEmbedding", "1")]


def test_a_column_that_takes_the_name_of_the_conditions_lets_rows_go(project):
    swap(project, "is_public", "BooleanField(default=True)")
    project.manage("migrate")
    project.ask("INSERT INTO shop_item VALUES (1, 'a', true, true)")
    project.ask(VECTOR)

    project.ask("UPDATE shop_item SET is_public = false")

    assert project.ask("SELECT source_id FROM shop_itemembedding") == []


def test_half_an_exchange_of_names_is_followed_once_it_is_whole(project):
    swap(project, "title", "TextField()")
    [swapped] = (project.folder / "shop" / "migrations").glob("0002*.py")
    written = swapped.read_text()
    first, second = re.findall(r".*RenameField.*\n", written)
    swapped.write_text(written.replace(second, ""))
    later = written.replace("0001_initial", "0002_swap").replace(first, "")
    (swapped.parent / "0003_swap.py").write_text(later)

    said = project.manage("migrate", "shop", "0002")
    assert "Triggers of shop.ItemEmbedding are outdated, so writes may be missed" in said
    project.manage("migrate")

    project.ask("INSERT INTO shop_item (title, title_old, is_public) VALUES ('a', '', true)")
    project.ask("DELETE FROM pgembed_job")
    project.ask("UPDATE shop_item SET title = 'b'")
    assert project.jobs() == [("shop.ItemEmbedding", "1")]


def test_a_watched_column_may_get_another_type(project):
    project.migrated(EMBEDDED + ITEM)

    project.migrated(EMBEDDED + ITEM.replace("TextField()", "CharField(max_length=50)"))

    assert len(project.triggers()) == 5
    assert "W006" not in project.manage("check", "--database", "default")
    project.ask(ROW)
    assert len(project.jobs()) == 1


def test_a_watched_column_may_get_a_collation(project):
    project.migrated(EMBEDDED + ITEM)

    project.migrated(EMBEDDED + ITEM.replace("TextField()", 'TextField(db_collation="C")'))

    assert len(project.triggers()) == 5


def test_a_watched_column_of_a_table_that_is_quoted_may_get_another_type(project):
    quoted = ITEM + "\n    class Meta:\n        db_table = 'ShopItem'\n"
    project.migrated(EMBEDDED + quoted)

    project.migrated(EMBEDDED + quoted.replace("TextField()", "CharField(max_length=50)"))

    assert len(project.triggers()) == 5


def test_a_generated_column_of_a_condition_may_be_made_anew(project):
    shown = (
        "    is_shown = models.GeneratedField(expression=Q(is_public={}), "
        "output_field=models.BooleanField(), db_persist=True)\n"
    )
    decorated = EMBEDDED.replace("is_public", "is_shown") + ITEM
    project.migrated(decorated + shown.format(True))
    project.write(decorated + shown.format(False))
    project.manage("makemigrations", "shop")
    [migration] = (project.folder / "shop" / "migrations").glob("0002*.py")
    # As the error of Django says that has to be done by hand.
    removed = "migrations.RemoveField('item', 'is_shown'),\n        migrations.AddField("
    migration.write_text(migration.read_text().replace("migrations.AlterField(", removed))

    project.manage("migrate")

    assert len(project.triggers()) == 5
    assert "W006" not in project.manage("check", "--database", "default")
    project.ask("INSERT INTO shop_item (title, is_public) VALUES ('a', false)")
    assert project.jobs() == [("shop.ItemEmbedding", "1")]


def test_a_watched_column_may_go_together_with_its_watch(project):
    two = ITEM + '    body = models.TextField(default="")\n'
    project.migrated(EMBEDDED.replace('"title"', '"title", "body"') + two)

    project.migrated(EMBEDDED + ITEM)

    assert len(project.triggers()) == 5


PARTITIONED = """
    CREATE TABLE shop_item (
        id bigserial PRIMARY KEY, title text NOT NULL, is_public boolean NOT NULL
    ) PARTITION BY RANGE (id);
    CREATE TABLE shop_item_1 PARTITION OF shop_item FOR VALUES FROM (0) TO (1000);
"""


def test_triggers_of_a_partitioned_table_are_replaced_and_removed(project):
    project.write(EMBEDDED + ITEM)
    project.manage("makemigrations", "shop")
    [migration] = (project.folder / "shop" / "migrations").glob("0001*.py")
    made = re.compile(r" +migrations\.CreateModel\(\n +name='Item',.*?\n {8}\),\n", re.DOTALL)
    [item] = made.findall(migration.read_text())
    ours = f"        migrations.RunSQL({PARTITIONED!r}, state_operations=[\n{item}        ]),\n"
    migration.write_text(migration.read_text().replace(item, ours))
    project.manage("migrate")

    project.migrated(EMBEDDED.replace("=True", "=False") + ITEM)
    project.ask("INSERT INTO shop_item (title, is_public) VALUES ('a', false)")
    assert project.jobs() == [("shop.ItemEmbedding", "1")]

    project.migrated(ITEM)
    assert project.triggers() == []


def test_a_second_declaration_has_a_table_and_triggers_of_its_own(project):
    project.migrated(EMBEDDED + ITEM)

    written = project.migrated(
        '@embeddable(fields=["title"], name="ItemTitle")\n' + EMBEDDED + ITEM
    )

    assert "RemoveTrigger" not in written
    assert len(project.triggers()) == 10
    project.ask(ROW)
    assert project.jobs() == [("shop.ItemEmbedding", "1"), ("shop.ItemTitle", "1")]


def test_our_app_may_stand_anywhere_among_the_installed_apps(project):
    settings = project.folder / "shop_settings.py"
    first = settings.read_text().replace('"shop",', '"pgembed_django", "shop",')
    settings.write_text(first.replace('"pgtrigger", "pgembed_django",', '"pgtrigger",'))

    project.migrated(EMBEDDED + ITEM)

    assert len(project.triggers()) == 5


def test_a_proxy_of_another_apps_model_says_what_its_migration_has_to_wait_for(project):
    (project.folder / "vendor" / "migrations").mkdir(parents=True)
    for name in ("__init__.py", "migrations/__init__.py"):
        (project.folder / "vendor" / name).touch()
    settings = project.folder / "shop_settings.py"
    settings.write_text(settings.read_text().replace('"shop",', '"shop", "vendor",', 1))
    vendor = project.folder / "vendor" / "models.py"
    proxy = "class Mine(Item):\n    class Meta:\n        proxy = True\n"
    proxy = "from vendor.models import Item\n{}" + proxy
    vendor.write_text(IMPORTS + ITEM)
    project.write(proxy.format(EMBEDDED))
    project.manage("makemigrations")
    project.manage("migrate")
    vendor.write_text(IMPORTS + ITEM + '    body = models.TextField(default="")\n')
    project.write(proxy.format(EMBEDDED.replace('"title"', '"title", "body"')))
    project.manage("makemigrations")

    said = project.manage("migrate", fails=True)
    assert 'pgembed: the table "vendor_item" has no column body to watch' in said
    assert "name that one in the dependencies of this migration" in said

    [migration] = (project.folder / "shop" / "migrations").glob("0002*.py")
    written, named = migration.read_text(), "        ('vendor', '0002_item_body'),\n"
    first = "    dependencies = [\n"
    migration.write_text(written.replace(first, first + named))
    project.manage("migrate")
    assert len(project.triggers()) == 5


def test_a_database_of_another_kind_beside_it_migrates_there_and_back(project):
    project.migrated(EMBEDDED + ITEM)
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(project.folder / "lite.db")}
    with (project.folder / "shop_settings.py").open("a") as settings:
        settings.write(f"DATABASES['lite'] = {lite!r}\n")

    project.manage("migrate", "--database", "lite")

    with closing(sqlite3.connect(lite["NAME"])) as there:
        there.execute("INSERT INTO shop_item (title, is_public) VALUES ('a', true)")
        assert there.execute("SELECT * FROM pgembed_job").fetchall() == []
    project.manage("migrate", "--database", "lite", "shop", "zero")
    project.manage("migrate", "--database", "lite", "pgembed", "zero")


def test_without_our_app_the_error_says_so_and_is_not_djangos(project):
    settings = project.folder / "shop_settings.py"
    settings.write_text(settings.read_text().replace('"pgtrigger", "pgembed_django",', ""))
    project.write(EMBEDDED + ITEM)

    said = project.manage("check", fails=True)

    assert "@embeddable on Item: 'pgembed_django' is not in INSTALLED_APPS. Add it" in said


def test_a_model_of_an_installed_package_is_decorated_by_a_proxy_or_with_migrations_of_ones_own(
    project,
):
    package = project.folder / "site-packages" / "vendor"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "models.py").write_text("from django.db import models\n" + ITEM)
    settings = project.folder / "shop_settings.py"
    before = settings.read_text().replace('"shop",', '"shop", "vendor",', 1)
    before = f"import sys\nsys.path.append({str(package.parent)!r})\n" + before
    settings.write_text(before)
    project.write("")
    project.manage("makemigrations", "vendor")
    shipped = set(package.rglob("0*.py"))
    imported = "from vendor.models import Item\n"

    project.write(imported + EMBEDDED.removeprefix("@").rstrip("\n") + "(Item)\n")
    assert "(pgembed.W004)" in project.manage("check")

    redirected = '\nMIGRATION_MODULES = {"vendor": "shop.vendor_migrations"}\n'
    settings.write_text(before + redirected)
    shutil.copytree(package / "migrations", project.folder / "shop" / "vendor_migrations")
    assert "W004" not in project.manage("check")
    project.manage("makemigrations", "vendor")
    project.manage("migrate")
    assert len(project.triggers()) == 5
    project.write("")
    project.manage("makemigrations", "vendor")
    project.manage("migrate")

    settings.write_text(before)
    proxy = "class Mine(Item):\n    class Meta:\n        proxy = True\n"
    project.migrated(imported + EMBEDDED + proxy)
    assert "W004" not in project.manage("check")
    assert len(project.triggers()) == 5
    project.ask("INSERT INTO vendor_item (title, is_public) VALUES ('a', true)")
    assert project.jobs() == [("shop.MineEmbedding", "1")]
    assert set(package.rglob("0*.py")) == shipped
