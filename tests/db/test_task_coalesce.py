"""Calls of one key coalesce while the task waits: what is kept, and how long it may wait."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.utils import timezone

from pgembed_django.models import Ending, Task
from pgembed_django.queue import jobs
from pgembed_django.tasks.table import TASKS
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.app.models import Note

pytestmark = pytest.mark.django_db(transaction=True)


def in_seconds(seconds: float) -> timedelta:
    return timezone.now() + timedelta(seconds=seconds)


def test_keep_keeps_the_first_call():
    first = tasks.first_text.enqueue(1, "early")
    assert tasks.first_text.enqueue(1, "late").id == first.id
    assert tasks.first_text.enqueue(2, "other").id != first.id
    assert run_tasks() == 2
    assert Note.objects.filter(body="1 early").exists()


def test_keep_brings_a_task_forward_and_never_back():
    tasks.first_text.using(run_after=in_seconds(30)).enqueue(1, "early")
    tasks.first_text.using(run_after=in_seconds(60)).enqueue(1, "late")
    assert Task.objects.get().run_at < in_seconds(31)
    tasks.first_text.enqueue(1, "now")
    assert run_tasks() == 1


def test_replace_takes_the_last_call_and_its_time():
    tasks.report.enqueue(1, "early")
    tasks.report.using(run_after=in_seconds(60)).enqueue(1, "late")
    task = Task.objects.get()
    assert task.arguments["args"] == [1, "late"]
    assert task.run_at > in_seconds(50)


def test_latest_postpones_but_never_beyond_the_longest_wait():
    for seconds in (10, 20, 5):
        tasks.digest.using(run_after=in_seconds(seconds)).enqueue(1, f"in {seconds}")
    task = Task.objects.get()
    assert in_seconds(15) < task.run_at < in_seconds(25)
    assert task.arguments["args"] == [1, "in 5"]
    tasks.digest.using(run_after=in_seconds(3600)).enqueue(1, "in an hour")
    task.refresh_from_db()
    assert task.run_at == task.created_at + timedelta(seconds=60)


def test_greatest_alone_would_postpone_for_ever():
    """The plain design, as the opposite: with it a task that is bumped every second never runs."""
    tasks.digest.enqueue(1, "text")
    Task.objects.update(created_at=Now() - timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT GREATEST(run_at, statement_timestamp() + interval '1 minute') "
            "> statement_timestamp() FROM pgembed_task"
        )
        assert cursor.fetchone() == (True,)
    tasks.digest.using(run_after=in_seconds(60)).enqueue(1, "again")
    assert run_tasks() == 1


def test_a_task_that_failed_before_starts_afresh():
    tasks.report.enqueue(1, "early")
    Task.objects.update(attempts=3, crashes=1, run_at=Now() + timedelta(hours=1))
    tasks.report.enqueue(1, "late")
    task = Task.objects.get()
    assert (task.attempts, task.crashes) == (0, 0)
    assert run_tasks() == 1


def test_a_call_during_a_run_is_another_task():
    first = tasks.report.enqueue(1, "early")
    Task.objects.update(
        status="running", worker_id=1, lease_expires_at=Now() + timedelta(hours=1), claims=1
    )
    assert tasks.report.enqueue(1, "late").id != first.id


def test_a_task_that_another_writer_has_locked_is_not_waited_for():
    first = tasks.report.enqueue(1, "early")
    answers: list[str] = []

    def other() -> None:
        answers.append(tasks.report.enqueue(1, "other").id)
        connections.close_all()

    with transaction.atomic():
        assert tasks.report.enqueue(1, "late").id == first.id
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert answers
        assert answers != [first.id]


ENQUEUE = """
    SELECT pgembed_enqueue_task_v1(
        'tests.app.tasks.note',
        jsonb_build_object('args', jsonb_build_array(%s::text)),
        tenant => %s,
        coalesce_key => 'report',
        bump => 'replace'
    )
"""


def test_tenants_do_not_coalesce(second_connection):
    for tenant in "ab":
        second_connection.execute(ENQUEUE, [f"of {tenant}", tenant])
    second_connection.commit()
    assert run_tasks() == 2
    assert {*Note.objects.values_list("body", flat=True)} == {"of a", "of b"}


def test_tenants_do_not_collapse_nor_supersede_each_other(second_connection):
    second_connection.execute(ENQUEUE, ["of a", "a"])
    second_connection.commit()
    Task.objects.update(
        status="running",
        worker_id=1,
        lease_expires_at=Now() - timedelta(hours=1),
        claims=1,
        started_at=Now(),
    )
    second_connection.execute(ENQUEUE, ["of b", "b"])
    second_connection.commit()
    [(_, ending)] = jobs.reap(max_crashes=3, using="default", table=TASKS)
    assert ending is Ending.REQUEUED


def test_a_newer_writer_that_is_rolled_back_takes_no_later_write_along(connect):
    """The last write must not go into an older task, which the next claim would drop."""
    one, other = connect(), connect()

    first = write(one, "first")
    one.commit()
    write(one, "second")
    assert write(other, "third") != first
    one.commit()
    other.commit()
    write(other, "rolled back")
    write(one, "last")
    one.commit()
    other.rollback()
    assert run_tasks() == 1
    assert Note.objects.get().body == "last"


def test_a_write_beside_two_that_wait_goes_into_the_newer_one(connect):
    """The next claim drops the older one."""
    one, other = connect(), connect()
    first = write(one, "first")
    second = write(other, "second")
    one.commit()
    other.commit()
    assert second != first
    assert write(one, "last") == second
    one.commit()
    assert run_tasks() == 1
    assert Note.objects.get().body == "last"


def write(to: psycopg.Connection, text: str) -> int:
    return int(to.execute(ENQUEUE, [text, "a"]).fetchone()[0])
