"""What triggers miss, the log has. What the log has not, either, the reconciler finds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from pgembed_django import spaces
from pgembed_django.declaration import specs
from pgembed_django.triggers import triggers
from tests.app.models import Note, NoteEmbedding
from tests.captures import catch_up, units, watch
from tests.db.conftest import reconcile_deeply

pytestmark = pytest.mark.django_db(transaction=True)

LOW, HIGH = uuid.UUID(int=1), uuid.UUID(int=2**127)
INSERT = "INSERT INTO app_note VALUES (%s, 'text', 0)"

hows = pytest.mark.parametrize(("how", "is_seen"), [("wal", True), ("message", False)])


def execute(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


@hows
def test_rows_that_arrive_as_on_a_replica_are_in_the_log_and_fire_no_trigger(capture, how, is_seen):
    spec = capture(Note, how)
    catch_up()

    execute("SET session_replication_role = replica")
    execute(INSERT, LOW)
    execute("RESET session_replication_role")
    catch_up()

    assert units(spec) == ([str(LOW)] if is_seen else [])


@hows
def test_rows_that_are_written_while_triggers_are_disabled_are_in_the_log(capture, how, is_seen):
    spec = capture(Note, how)
    catch_up()

    execute("ALTER TABLE app_note DISABLE TRIGGER ALL")
    execute(INSERT, LOW)
    execute("ALTER TABLE app_note ENABLE TRIGGER ALL")
    catch_up()

    assert units(spec) == ([str(LOW)] if is_seen else [])


# Partitions


@pytest.fixture
def partitioned(db: None) -> Iterator[None]:
    """The table of notes, with one partition for the lower keys."""
    execute("ALTER TABLE app_note RENAME TO app_note_whole")
    execute(
        "CREATE TABLE app_note (id uuid PRIMARY KEY, body text NOT NULL, seen integer NOT NULL) "
        "PARTITION BY RANGE (id)"
    )
    execute(
        f"CREATE TABLE app_note_low PARTITION OF app_note FOR VALUES FROM (MINVALUE) TO ('{HIGH}')"
    )
    yield
    ours = list(triggers(watch(specs.of(Note)[0])))
    for one in ours:
        one.uninstall(Note)
    execute("DROP TABLE app_note")
    execute("ALTER TABLE app_note_whole RENAME TO app_note")
    for one in ours:
        one.install(Note)


def attach(*keys: uuid.UUID) -> None:
    """Attach a partition for the higher keys, which has some rows already."""
    execute("CREATE TABLE app_note_high (LIKE app_note INCLUDING ALL)")
    for key in keys:
        execute("INSERT INTO app_note_high VALUES (%s, 'brought along', 0)", key)
    bounds = f"FOR VALUES FROM ('{HIGH}') TO (MAXVALUE)"
    execute(f"ALTER TABLE app_note ATTACH PARTITION app_note_high {bounds}")


@pytest.mark.parametrize("table", ["app_note", "app_note_high"])
@pytest.mark.parametrize("how", ["wal", "message"])
def test_rows_of_a_partition_that_is_attached_later_are_read(partitioned, capture, how, table):
    spec = capture(Note, how)
    catch_up()
    attach()

    execute(f"INSERT INTO {table} VALUES (%s, 'text', 0)", HIGH)
    execute(f"UPDATE {table} SET id = %s", uuid.UUID(int=HIGH.int + 1))
    catch_up()

    assert units(spec) == [str(HIGH), str(uuid.UUID(int=HIGH.int + 1))]


@pytest.mark.parametrize("how", ["wal", "message"])
def test_a_row_that_moves_to_another_partition_is_read(partitioned, capture, how):
    spec = capture(Note, how)
    attach()
    execute(INSERT, LOW)
    catch_up()

    Note.objects.update(id=HIGH)
    catch_up()

    assert units(spec) == [str(LOW), str(HIGH)]


@pytest.mark.parametrize("how", ["wal", "message"])
def test_rows_that_a_partition_brings_along_are_found_by_comparing(partitioned, capture, how):
    spec = capture(Note, how)
    spaces.ensure(spec, using="default")
    catch_up()

    attach(HIGH)
    catch_up()
    assert units(spec) == []

    reconcile_deeply(spec.key)
    assert units(spec) == [str(HIGH)]


@pytest.mark.parametrize("how", ["wal", "message"])
@pytest.mark.parametrize(
    "statement", ["TRUNCATE app_note_low", "ALTER TABLE app_note DETACH PARTITION app_note_low"]
)
def test_rows_that_go_with_a_partition_are_found_by_comparing(
    partitioned, capture, run_jobs, how, statement
):
    spec = capture(Note, how)
    catch_up()
    execute(INSERT, LOW)
    run_jobs()
    catch_up()
    run_jobs()

    execute(statement)
    catch_up()
    assert units(spec) == []
    assert NoteEmbedding.objects.exists()

    reconcile_deeply(spec.key)
    assert units(spec) == [str(LOW)]
    execute("DROP TABLE IF EXISTS app_note_low CASCADE")


@pytest.mark.parametrize("how", ["wal", "message"])
def test_a_truncated_partitioned_table_is_forgotten_as_a_whole(partitioned, capture, run_jobs, how):
    capture(Note, how)
    execute(INSERT, LOW)
    run_jobs()
    catch_up()

    execute("TRUNCATE app_note")
    catch_up()

    assert not NoteEmbedding.objects.exists()
