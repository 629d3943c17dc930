from __future__ import annotations

import re

import pytest
from django.core.checks import WARNING
from django.core.management import call_command
from django.db import connection
from django.db.backends.postgresql import psycopg_any

from pgembed_django.checks import check_databases, databases
from pgembed_django.triggers import sql
from tests.app.models import Note, NoteEmbedding

pytestmark = pytest.mark.django_db


def ids() -> list[str | None]:
    return [message.id for message in check_databases(databases=["default"])]


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_migrated_database_is_flawless():
    assert ids() == []


def test_no_database_is_asked_unless_it_is_named():
    assert check_databases(databases=None) == []


def test_a_dropped_extension_is_named_with_the_statement_that_creates_it():
    execute("DROP EXTENSION vector CASCADE")

    [message] = check_databases(databases=["default"])

    assert message.id == "pgembed.E013"
    assert "The extension vector is missing in database 'default'." in message.msg
    assert "CREATE EXTENSION vector" in message.hint


def test_an_extension_that_the_search_path_leads_past_is_named_with_its_schema():
    execute("CREATE SCHEMA extensions")
    execute("ALTER EXTENSION vector SET SCHEMA extensions")

    [message] = check_databases(databases=["default"])

    assert message.id == "pgembed.E013"
    assert "is in the schema extensions, which is not in the search_path" in message.msg
    assert "SET search_path = public, extensions" in message.hint

    execute("SET LOCAL search_path = public, extensions")
    assert ids() == []


def test_a_server_without_pgvector_is_named(monkeypatch):
    monkeypatch.setattr(databases, "EXTENSION", databases.EXTENSION.replace("vector", "no_such"))

    [message] = check_databases(databases=["default"])

    assert message.id == "pgembed.E013"
    assert "is not available on the server" in message.msg
    assert "Install pgvector on the server" in message.hint


def test_before_the_first_migrate_the_extension_may_be_missing_if_the_role_may_create_it():
    execute("DROP EXTENSION vector CASCADE")
    execute("ALTER TABLE pgembed_job RENAME TO gone")
    assert ids() == ["pgembed.W003"]

    execute("CREATE ROLE pgembed_guest")
    execute("SET LOCAL ROLE pgembed_guest")
    assert ids() == ["pgembed.E013"]


def test_an_old_extension_is_named(monkeypatch):
    monkeypatch.setattr(databases, "OLDEST_VECTOR", (99, 1))

    [message] = check_databases(databases=["default"])

    assert message.id == "pgembed.E014"
    assert "Install pgvector 99.1 or later" in message.hint


@pytest.mark.parametrize(("version", "wrong"), [("0.7.4", ["pgembed.E014"]), ("0.8.0", [])])
def test_pgvector_has_to_know_the_scans_that_a_search_asks_for(monkeypatch, version, wrong):
    monkeypatch.setattr(databases, "EXTENSION", f"SELECT '{version}', true, true")

    assert ids() == wrong


def test_an_old_server_is_named(monkeypatch):
    monkeypatch.setattr(databases, "OLDEST_POSTGRES", 99)

    assert ids() == ["pgembed.E012"]


def test_an_unlogged_job_table_is_a_warning():
    execute("ALTER TABLE pgembed_job SET UNLOGGED")

    assert ids() == ["pgembed.W001"]


def test_psycopg_2_is_refused(monkeypatch):
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)

    assert ids() == ["pgembed.E011"]


def test_an_unknown_text_search_configuration_is_named_with_those_there_are(settings):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "klingon"

    [message] = check_databases(databases=["default"])

    assert message.id == "pgembed.E015"
    assert "'klingon'" in message.msg
    assert "simple" in message.hint


@pytest.mark.parametrize("name", ["simple", "pg_catalog.german"])
def test_a_text_search_configuration_may_be_qualified(settings, name):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = name

    assert ids() == []


def test_functions_that_the_next_migrate_brings_do_not_stop_it(monkeypatch):
    monkeypatch.setitem(sql.FUNCTIONS, "pgembed_enqueue_v99", "text, text, integer")

    assert ids() == []


def test_functions_that_write_to_another_schema_are_told():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('pgembed_forget_v1'::regproc)")
        [definition] = cursor.fetchone()
    execute(definition.replace('"public".', '"archive".'))

    [message] = check_databases(databases=["default"])

    assert message.id == "pgembed.E016"
    assert "pgembed_forget_v1 in database 'default' writes to the tables in schema 'archive'" in (
        message.msg.replace('"public".', "")
    )


def test_a_key_of_another_type_than_that_of_the_vectors_is_told_with_the_remedy():
    execute("ALTER TABLE app_noteembedding ALTER COLUMN source_id TYPE bigint USING NULL::bigint")
    [found] = check_databases(databases=["default"])
    assert (found.id, found.level) == ("pgembed.W005", WARNING)
    assert "the key of Note is uuid, and that of its vectors bigint" in found.msg

    [remedy] = re.findall(r"run: (TRUNCATE .*?; ALTER .*?)\. ", found.hint or "")
    execute(remedy)
    assert ids() == []


class TestTriggers:
    """Each is there, as it is declared, and fires."""

    def test_missing_ones_are_told_with_the_command(self):
        names = [trigger for trigger in triggers_of("app_note") if "delete" in trigger]
        execute(f"DROP TRIGGER {names[0]} ON app_note")
        found = check_databases(databases=["default"])
        assert [message.id for message in found] == ["pgembed.W006"]
        assert found[0].msg.startswith("app.NoteEmbedding: 1 trigger is missing. ")
        assert "pgtrigger install" in (found[0].hint or "")

        call_command("pgtrigger", "install", verbosity=0)
        assert ids() == []

    def test_those_that_call_for_another_spec_are_none(self):
        for name in triggers_of("app_note"):
            execute(f"ALTER TRIGGER {name} ON app_note RENAME TO former_{name[:40]}")
        [found] = check_databases(databases=["default"])
        assert "5 triggers are missing" in found.msg

    def test_outdated_and_disabled_ones_are_told(self):
        first, second, *_ = triggers_of("app_note")
        execute(f"COMMENT ON TRIGGER {first} ON app_note IS 'another hash'")
        execute(f"ALTER TABLE app_note DISABLE TRIGGER {second}")
        [found] = check_databases(databases=["default"])
        assert "1 trigger is disabled and 1 trigger is outdated" in found.msg
        assert "pgtrigger enable" in (found.hint or "")

    def test_those_whose_column_has_another_name_by_now_are_told_with_the_command(self):
        execute("ALTER TABLE app_note ADD body_new text")
        execute("ALTER TABLE app_note RENAME body TO body_old")
        execute("ALTER TABLE app_note RENAME body_new TO body")
        [found] = check_databases(databases=["default"])
        assert found.msg.startswith("app.NoteEmbedding: 1 trigger is outdated. ")
        assert "a column took another's name" in (found.hint or "")

        call_command("pgtrigger", "install", verbosity=0)
        assert ids() == []

    def test_those_that_always_fire_are_well(self):
        for name in triggers_of("app_note"):
            execute(f"ALTER TABLE app_note ENABLE ALWAYS TRIGGER {name}")
        assert ids() == []

    @pytest.mark.django_db(transaction=True)
    def test_a_worker_tells_at_its_start(self, caplog):
        execute("ALTER TABLE app_note DISABLE TRIGGER USER")
        try:
            call_command("embed_worker", drain=True, verbosity=0)
        finally:
            execute("ALTER TABLE app_note ENABLE TRIGGER USER")
        told = [one for one in caplog.records if one.event == "pgembed.triggers_amiss"]
        assert [(one.spec, one.states) for one in told] == [("app.NoteEmbedding", "disabled")]

    def test_before_a_migration_nothing_is_told(self):
        execute("ALTER TABLE app_note DISABLE TRIGGER ALL")
        execute("DELETE FROM django_migrations WHERE app = 'app'")
        assert ids() == []


def triggers_of(table: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass AND NOT tgisinternal"
            " ORDER BY tgname",
            [table],
        )
        return [name for [name] in cursor.fetchall()]


def test_vectors_that_the_functions_do_not_find_are_told_with_the_remedy(run_jobs):
    """Another search_path was in force when they were migrated than when the jobs were."""
    kept, gone = Note.objects.create(body="kept"), Note.objects.create(body="gone")
    run_jobs()
    execute("CREATE SCHEMA shop")
    execute("SET LOCAL search_path = shop, public")
    execute("ALTER TABLE app_note SET SCHEMA shop")
    execute("ALTER TABLE app_noteembedding SET SCHEMA shop")

    [found] = check_databases(databases=["default"])
    assert (found.id, found.level) == ("pgembed.W007", WARNING)
    assert "the vectors of Note are in schema shop" in found.msg

    [remedy] = re.findall(r"ALTER TABLE .*? SET SCHEMA \w+", found.hint or "")
    execute(remedy)
    assert ids() == []
    gone.delete()
    assert list(NoteEmbedding.objects.values_list("source_id", flat=True)) == [kept.pk]


def test_vectors_of_a_role_that_the_functions_do_not_trust_are_told_with_the_remedy(run_jobs):
    """Migrated by another role than our tables: what it lets triggers do is not done for us."""
    kept, gone = Note.objects.create(body="kept"), Note.objects.create(body="gone")
    run_jobs()
    execute("CREATE ROLE pgembed_stranger")
    execute("ALTER TABLE app_noteembedding OWNER TO pgembed_stranger")

    [found] = check_databases(databases=["default"])
    assert (found.id, found.level) == ("pgembed.W010", WARNING)
    assert "belong to the role pgembed_stranger" in found.msg

    [remedy] = re.findall(r"GRANT .*", found.hint or "")
    execute(remedy)
    assert ids() == []
    gone.delete()
    assert list(NoteEmbedding.objects.values_list("source_id", flat=True)) == [kept.pk]
