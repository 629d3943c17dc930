"""Columns take each other's names: triggers watch what is called as they say."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from pgembed_django.models import Job
from pgembed_django.spaces import repairs
from pgembed_django.triggers import installed
from tests.app.models import Note, Oddity

pytestmark = pytest.mark.django_db

NOTE = "app.NoteEmbedding"
ODDITY = "app.OddityEmbedding"
# The condition reads both, so the names alone show nothing.
EXCHANGE = """
    ALTER TABLE "App Oddity" RENAME "Order" TO before;
    ALTER TABLE "App Oddity" RENAME "fl''oor" TO "Order";
    ALTER TABLE "App Oddity" RENAME before TO "fl''oor";
"""
TAKE = """
    ALTER TABLE app_note RENAME body TO body_old;
    ALTER TABLE app_note RENAME body_new TO body;
"""
GIVE_BACK = """
    ALTER TABLE app_note RENAME body TO body_new;
    ALTER TABLE app_note RENAME body_old TO body;
"""
ENABLED = """
    SELECT tgname, tgenabled
    FROM pg_trigger
    WHERE tgrelid = 'app_note'::regclass AND NOT tgisinternal
"""


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def enabled() -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(ENABLED)
        return dict(cursor.fetchall())


@pytest.fixture
def column() -> None:
    """A column that is filled beside another, to take its place."""
    execute("ALTER TABLE app_note ADD body_new text NOT NULL DEFAULT ''")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (one.event, one.spec)
        for one in caplog.records
        if one.event in ("pgembed.triggers_renewed", "pgembed.triggers_amiss")
    ]


def test_after_a_migrate_a_write_of_columns_that_changed_places_is_seen(caplog):
    row = Oddity.objects.create(title="a", order=1, floor=5)
    execute(EXCHANGE)
    assert installed.drifted([ODDITY], using="default") == {ODDITY: {"outdated": 4}}

    call_command("migrate", verbosity=0)

    assert told(caplog) == [("pgembed.triggers_renewed", ODDITY)]
    assert installed.drifted([ODDITY], using="default") == {}
    Job.objects.all().delete()
    Oddity.objects.filter(pk=row.pk).update(title="b")
    assert list(Job.objects.values_list("spec", flat=True)) == [ODDITY]
    Job.objects.all().delete()
    Oddity.objects.create(title="a", order=1, floor=5)
    assert not Job.objects.exists()


@pytest.mark.usefixtures("column")
def test_triggers_that_always_fire_go_on_doing_so():
    for name in enabled():
        execute(f"ALTER TABLE app_note ENABLE ALWAYS TRIGGER {name}")
    execute(TAKE)

    repairs.repair_triggers(using="default")

    assert installed.drifted([NOTE], using="default") == {}
    assert set(enabled().values()) == {"A"}


@pytest.mark.usefixtures("column")
def test_triggers_that_somebody_disabled_stay_so(caplog):
    execute("ALTER TABLE app_note DISABLE TRIGGER USER")
    execute(TAKE)

    repairs.repair_triggers(using="default")

    assert set(enabled().values()) == {"D"}
    assert told(caplog) == []


@pytest.mark.usefixtures("column")
def test_a_role_that_does_not_own_the_table_is_told(caplog):
    execute(TAKE)
    execute("CREATE ROLE pgembed_guest")
    execute("GRANT USAGE ON SCHEMA archive TO pgembed_guest")
    execute("SET LOCAL ROLE pgembed_guest")

    repairs.repair_triggers(using="default")

    assert told(caplog) == [("pgembed.triggers_amiss", NOTE)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("column")
def test_a_table_that_a_writer_holds_is_followed_later(second_connection, caplog, monkeypatch):
    monkeypatch.setattr(repairs, "TRY_SECONDS", 0.2)
    note = Note.objects.create(body="a")
    execute(TAKE)
    try:
        second_connection.execute("LOCK TABLE app_note IN ROW EXCLUSIVE MODE")
        repairs.repair_triggers(using="default")
        assert told(caplog) == [("pgembed.triggers_amiss", NOTE)]

        second_connection.rollback()
        call_command("migrate", verbosity=0)
        assert told(caplog)[1:] == [("pgembed.triggers_renewed", NOTE)]
        Job.objects.all().delete()
        Note.objects.filter(pk=note.pk).update(body="b")
        assert list(Job.objects.values_list("spec", flat=True)) == [NOTE]
    finally:
        second_connection.rollback()
        execute(GIVE_BACK)
        repairs.repair_triggers(using="default")
        execute("ALTER TABLE app_note DROP body_new")
