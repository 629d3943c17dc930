"""Partitions of kept results come ahead and go when all in them has expired; what is pruned."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from pgembed_django.core import database
from pgembed_django.models import Task, TaskBatch, TaskKey, TaskRecord
from pgembed_django.queue import jobs
from pgembed_django.tasks import records
from pgembed_django.tasks.handler import TaskHandler
from pgembed_django.tasks.retention import Retention
from pgembed_django.tasks.table import TASKS
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.db.conftest import until_waiting

MONTHS = """
    SELECT inhrelid::regclass::text
    FROM pg_inherits
    WHERE inhparent = 'pgembed_taskrecord'::regclass
    ORDER BY 1
"""
OLD = datetime(2020, 1, 15, tzinfo=UTC)


def months() -> list[str]:
    return [name for [name] in database.rows("default", MONTHS)]


def name_of(month: datetime) -> str:
    return f"pgembed_taskrecord_{month:%Y_%m}"


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def exists(name: str) -> bool:
    [[found]] = database.rows("default", "SELECT to_regclass(%(name)s) IS NOT NULL", name=name)
    return found


def record(*, number: int = 1, finished_at: datetime = OLD, expires_at: datetime = OLD) -> None:
    TaskRecord.objects.create(
        id=number,
        queue="default",
        function=tasks.add.module_path,
        arguments={},
        tenant="",
        priority=0,
        claims=1,
        worker="",
        created_at=finished_at,
        started_at=finished_at,
        finished_at=finished_at,
        expires_at=expires_at,
    )


def retention() -> Retention:
    return Retention(using="default", keep_seconds=3600, is_stopping=lambda: False)


@pytest.mark.django_db
class TestMakingPartitions:
    def test_makes_this_month_and_the_next(self):
        for name in months():
            execute(f"DROP TABLE {name}")
        records.make_partitions(using="default")
        now = timezone.now().astimezone(UTC)
        after = (now.replace(day=1) + timedelta(days=32)).replace(day=1)
        assert months() == [name_of(now), name_of(after)]
        first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        for number, moment in enumerate([first, after], 1):
            record(number=number, finished_at=moment, expires_at=after)
        assert TaskRecord.objects.count() == 2

    def test_makes_them_once(self):
        records.make_partitions(using="default")
        before = months()
        records.make_partitions(using="default")
        assert months() == before

    def test_needs_no_right_on_the_table(self):
        for name in months():
            execute(f"DROP TABLE {name}")
        execute("CREATE ROLE pgembed_powerless")
        execute("GRANT USAGE ON SCHEMA public TO pgembed_powerless")
        execute("SET LOCAL ROLE pgembed_powerless")
        records.make_partitions(using="default")
        execute("RESET ROLE")
        assert len(months()) == 2


@pytest.mark.django_db(transaction=True)
class TestAtTheSameTime:
    @pytest.fixture(autouse=True)
    def without_partitions(self):
        for name in months():
            execute(f"DROP TABLE {name}")
        yield
        records.make_partitions(using="default")

    def test_two_workers_make_them_and_neither_fails_nor_waits(self, second_connection):
        second_connection.execute("SELECT pgembed_record_partitions_v1()")
        records.make_partitions(using="default")
        assert months() == []
        second_connection.commit()
        records.make_partitions(using="default")
        assert len(months()) == 2

    def test_a_worker_that_waited_finds_them_made(self, second_connection, writer):
        second_connection.execute("SELECT pgembed_record_partitions_v1()")
        writer.start("SELECT pgembed_record_partitions_v1()")
        until_waiting(writer)
        second_connection.commit()
        writer.end()
        writer.connection.commit()
        assert len(months()) == 2

    def test_results_are_read_and_written_meanwhile(self, second_connection):
        records.make_partitions(using="default")
        execute(f"DROP TABLE {months()[1]}")
        second_connection.execute("SELECT FROM pgembed_taskrecord")
        second_connection.execute(
            "INSERT INTO pgembed_taskrecord "
            "VALUES (1, '', '', '{}', '', 0, 1, '', NULL, now(), now(), now(), now())"
        )
        records.make_partitions(using="default")
        assert len(months()) == 2


@pytest.mark.django_db(transaction=True)
class TestDroppingPartitions:
    @pytest.fixture(autouse=True)
    def old(self):
        """A month long ago."""
        name = name_of(OLD)
        execute(
            f"CREATE TABLE {name} PARTITION OF pgembed_taskrecord "
            "FOR VALUES FROM ('2020-01-01 00:00Z') TO ('2020-02-01 00:00Z')"
        )
        yield name
        execute(f"DROP TABLE IF EXISTS {name}")

    def test_drops_a_month_that_has_expired_and_no_other(self, old):
        record()
        before = months()
        records.drop_expired(using="default")
        assert months() == [name for name in before if name != old]
        assert not exists(old)

    def test_leaves_a_month_in_which_one_result_is_still_kept(self, old):
        record()
        record(number=2, expires_at=timezone.now() + timedelta(days=1))
        records.drop_expired(using="default")
        assert old in months()
        assert TaskRecord.objects.count() == 2

    def test_goes_on_where_a_worker_was_ended_after_the_detachment(self, old):
        execute(f"ALTER TABLE pgembed_taskrecord DETACH PARTITION {old}")
        records.drop_expired(using="default")
        assert not exists(old)

    def test_goes_on_where_a_worker_was_ended_during_the_detachment(self, old, second_connection):
        record()
        second_connection.execute("SELECT FROM pgembed_taskrecord")  # it waits for this
        execute("SET statement_timeout = '200ms'")
        try:
            with suppress(Exception):
                records.drop_expired(using="default")
        finally:
            execute("RESET statement_timeout")
        assert exists(old)
        second_connection.rollback()
        records.drop_expired(using="default")
        assert not exists(old)

    def test_results_are_kept_meanwhile(self, old, second_connection, writer):
        """A reader keeps the old month from being detached, and yet nothing else waits."""
        record()
        second_connection.execute(f"SELECT FROM {old}")
        second_connection.execute("SELECT FROM pgembed_taskrecord")
        writer.connection.autocommit = True
        writer.start(f"ALTER TABLE pgembed_taskrecord DETACH PARTITION {old} CONCURRENTLY")
        until_waiting(writer)
        with database.giving_way("default"):
            now = timezone.now()
            record(number=2, finished_at=now, expires_at=now)
        second_connection.rollback()
        writer.end()

    def test_only_one_worker_does_so(self, old, connect):
        other = connect(autocommit=True)
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [records.LOCK])
        records.drop_expired(using="default")
        assert old in months()

    def test_a_role_that_may_not_drop_deletes_the_expired_rows(self, old):
        record()
        record(number=2, expires_at=timezone.now() + timedelta(days=1))
        execute("CREATE ROLE pgembed_powerless")
        try:
            execute("GRANT USAGE ON SCHEMA public TO pgembed_powerless")
            execute("GRANT SELECT, UPDATE, DELETE ON pgembed_taskrecord TO pgembed_powerless")
            execute("SET ROLE pgembed_powerless")
            records.drop_expired(using="default")
            execute("RESET ROLE")
        finally:
            execute("RESET ROLE")
            execute("DROP OWNED BY pgembed_powerless")
            execute("DROP ROLE pgembed_powerless")
        assert old in months()
        assert [one.pk for one in TaskRecord.objects.all()] == [2]


@pytest.mark.django_db
class TestPruning:
    def test_deletes_settled_failures_and_old_dismissed_ones_and_no_open_one(self):
        for _ in range(4):
            tasks.add.enqueue(1, 2)
        settled, dismissed, fresh, opened = Task.objects.order_by("id")
        now = timezone.now()
        week_ago = now - timedelta(days=8)
        for row, values in {
            settled: {"status": "failed", "settled_at": now},
            dismissed: {"status": "failed"},
            fresh: {"status": "failed"},
            opened: {"status": "failed"},
        }.items():
            changes = {
                "finished_at": week_ago,
                "run_at": week_ago,
                "last_error": "ValueError",
                "signature": "ValueError",
                **values,
            }
            Task.objects.filter(pk=row.pk).update(**changes)
        jobs.dismiss([dismissed.pk, fresh.pk], using="default", table=TASKS)
        retention().prune_tasks()
        assert [*Task.objects.order_by("id")] == [dismissed, fresh, opened]
        for row, ago in (dismissed, timedelta(days=7, hours=1)), (fresh, timedelta(days=6)):
            Task.objects.filter(pk=row.pk).update(run_at=F("run_at") - ago)
        retention().prune_tasks()
        assert [*Task.objects.order_by("id")] == [fresh, opened]

    def test_deletes_expired_keys_alone(self):
        now = timezone.now()
        TaskKey.objects.create(key="gone", task_id=1, expires_at=now - timedelta(seconds=1))
        TaskKey.objects.create(key="kept", task_id=1, expires_at=now + timedelta(hours=1))
        TaskKey.objects.create(key="alive", task_id=1)
        retention().prune_keys()
        assert sorted(TaskKey.objects.values_list("key", flat=True)) == ["alive", "kept"]

    def test_deletes_batches_a_week_after_their_end(self):
        now = timezone.now()
        for ended_at in (None, now, now - timedelta(days=8)):
            TaskBatch.objects.create(total=1, ended_at=ended_at)
        retention().prune_batches()
        assert TaskBatch.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_pruning_passes_over_a_key_that_is_just_enqueued_again(second_connection):
    TaskKey.objects.create(key="a", task_id=1, expires_at=OLD)
    second_connection.execute("SELECT pgembed_enqueue_task_v1('tests.app.tasks.add', once => 'a')")
    retention().prune_keys()
    second_connection.commit()
    with transaction.atomic():
        assert TaskKey.objects.get().expires_at is None


@pytest.mark.django_db
def test_without_migrations_kept_results_are_in_an_ordinary_table():
    execute("ALTER TABLE pgembed_taskrecord RENAME TO partitioned")
    execute("CREATE TABLE pgembed_taskrecord (LIKE partitioned)")
    records.make_partitions(using="default")
    result = tasks.add_and_keep.enqueue(1, 2)
    run_tasks()
    result.refresh()
    assert result.return_value == 3


@pytest.mark.django_db
def test_a_worker_does_all_of_it_as_chores():
    short, long = TaskHandler(["default"], using="default", concurrency=1).chores(lambda: False)
    [*others] = [chore.once for chore in short if chore.once.__name__ != "restore_schedules"]
    assert [once() for once in others] == [0] * len(others)
    assert [chore.once.__name__ for chore in long] == ["drop_partitions"]
