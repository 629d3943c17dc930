"""Transactions that give way, one statement at a time and in one go."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest
from django.db import DataError, connection, transaction
from django.db.models import Value

from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.models import Job
from tests.db.conftest import Writer, backend_pid

pytestmark = pytest.mark.django_db(transaction=True)

EITHER_WAY = pytest.mark.parametrize("pipelined", [False, True], ids=["singly", "pipelined"])


def add_job(source_pk: str) -> None:
    statement = "INSERT INTO pgembed_job (spec, source_pk) VALUES ('app.One', %(pk)s)"
    database.execute("default", statement, pk=source_pk)


def quote(name: str) -> str:
    return connection.ops.quote_name(name)


def is_idle() -> bool:
    status = connection.connection.info.transaction_status
    return status == psycopg.pq.TransactionStatus.IDLE


@EITHER_WAY
def test_what_was_written_is_there_afterwards(pipelined):
    with database.giving_way("default", pipelined=pipelined):
        add_job("1")

    assert is_idle()
    assert Job.objects.count() == 1


@EITHER_WAY
def test_an_error_undoes_everything_and_leaves_a_usable_connection(pipelined):
    def divide() -> None:
        with database.giving_way("default", pipelined=pipelined):
            add_job("1")
            database.rows("default", "SELECT 1 / 0")

    with pytest.raises(DataError):
        divide()

    assert is_idle()
    assert not Job.objects.exists()


@EITHER_WAY
def test_an_error_of_ours_undoes_everything_too(pipelined):
    def give_up() -> None:
        with database.giving_way("default", pipelined=pipelined):
            add_job("1")
            raise LookupError

    with pytest.raises(LookupError):
        give_up()

    assert is_idle()
    assert not Job.objects.exists()


def test_an_error_in_a_statement_without_rows_is_raised_at_the_end():
    def divide() -> None:
        with database.giving_way("default", pipelined=True):
            add_job("1")
            database.execute("default", "UPDATE pgembed_job SET claims = 1 / 0")

    with pytest.raises(DataError):
        divide()

    assert is_idle()
    assert not Job.objects.exists()


def test_an_error_in_rows_that_nobody_has_read_is_raised_at_the_end():
    def divide() -> None:
        with database.giving_way("default", pipelined=True):
            add_job("1")
            database.send_prepared("default", "SELECT 1 / 0")

    with pytest.raises(DataError):
        divide()

    assert is_idle()
    assert not Job.objects.exists()


@EITHER_WAY
def test_rows_may_be_read_after_the_end(pipelined):
    with database.giving_way("default", pipelined=pipelined):
        add_job("1")
        read = database.send_prepared("default", "SELECT source_pk FROM pgembed_job")

    assert is_idle()
    assert read() == [("1",)]


@EITHER_WAY
def test_it_is_busy_where_a_writer_has_the_row(pipelined, connect):
    add_job("1")
    writer = connect()
    writer.execute("SELECT FROM pgembed_job FOR UPDATE")

    with (
        pytest.raises(database.Busy),
        database.giving_way("default", wait="1ms", pipelined=pipelined),
    ):
        database.rows("default", "SELECT FROM pgembed_job FOR UPDATE")

    assert is_idle()
    writer.rollback()


@EITHER_WAY
def test_its_wait_for_locks_does_not_outlive_it(pipelined):
    before = database.rows("default", "SHOW lock_timeout")
    with database.giving_way("default", wait="7ms", pipelined=pipelined):
        assert database.rows("default", "SHOW lock_timeout") == [("7ms",)]

    assert database.rows("default", "SHOW lock_timeout") == before


@EITHER_WAY
def test_a_transaction_around_it_keeps_its_wait_for_locks(pipelined):
    with transaction.atomic():
        database.rows("default", "SELECT set_config('lock_timeout', '7s', true)")
        with database.giving_way("default", pipelined=pipelined):
            assert database.rows("default", "SHOW lock_timeout") == [("100ms",)]
            with database.giving_way("default", wait="1ms"):
                pass
            assert database.rows("default", "SHOW lock_timeout") == [("100ms",)]
        assert database.rows("default", "SHOW lock_timeout") == [("7s",)]
        with suppress(LookupError), database.giving_way("default", pipelined=pipelined):
            raise LookupError
        assert database.rows("default", "SHOW lock_timeout") == [("7s",)]


def test_so_does_one_that_is_open_without_autocommit():
    connection.set_autocommit(False)
    try:
        database.rows("default", "SELECT set_config('lock_timeout', '7s', true)")
        with database.giving_way("default"):
            pass
        assert database.rows("default", "SHOW lock_timeout") == [("7s",)]
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_a_pipeline_reads_what_others_have_committed_meanwhile(connect):
    other = connect(autocommit=True)
    connection.ensure_connection()
    connection.connection.execute("SET default_transaction_isolation = 'repeatable read'")

    with database.giving_way("default", pipelined=True):
        database.rows("default", "SELECT FROM pgembed_job")
        other.execute("INSERT INTO pgembed_job (spec, source_pk) VALUES ('app.One', '1')")
        assert len(database.rows("default", "SELECT FROM pgembed_job")) == 1

    connection.connection.execute("RESET default_transaction_isolation")


def test_a_statement_that_was_prepared_in_a_failed_transaction_runs_in_the_next():
    connection.ensure_connection()
    connection.connection.prepare_threshold = 0
    statement = "SELECT count(*) FROM pgembed_job WHERE spec = %(spec)s"

    def divide() -> None:
        with database.giving_way("default", pipelined=True):
            database.execute("default", "UPDATE pgembed_job SET claims = 1 / 0")
            database.execute("default", "SELECT 1 / 0")
            database.prepared("default", statement, spec="app.One")

    with pytest.raises(DataError):
        divide()

    with database.giving_way("default", pipelined=True):
        assert database.prepared("default", statement, spec="app.One") == [(0,)]
    connection.close()


def test_tables_that_are_read_in_a_transaction_keep_no_migration_waiting(writer: Writer):
    writer.connection.execute("SET deadlock_timeout = '500ms'")  # its end, if we wait for longer
    models = dict.fromkeys(spec.model._meta.concrete_model for spec in specs.all())
    first, *others = (quote(model._meta.db_table) for model in models)
    assert len(others) > 5  # each of them waited for shortly would be too long
    for table in others:
        writer.connection.execute(f"LOCK TABLE {table}")

    def lock_what_is_held(execute, sql, *rest):
        result = execute(sql, *rest)
        if not writer.has_started():
            writer.start(f"LOCK TABLE {first}", once_waits=backend_pid())
        return result

    rows = [model._base_manager.values_list(Value(1)).order_by() for model in models]
    with transaction.atomic(), connection.execute_wrapper(lock_what_is_held):
        assert not rows[0].exists()
        assert database.read_each(rows, using="default") == []
    writer.go()
    writer.end()
