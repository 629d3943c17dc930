"""``once``: a key is enqueued once, as long as its task lives and for a while after its end."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now

from pgembed_django.core import database
from pgembed_django.models import Job, Task, TaskKey
from pgembed_django.tasks.finishing import Ended, complete
from pgembed_django.testing import run_tasks
from tests.app import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def remember() -> str:
    return tasks.remember.enqueue("a", "1").id


def key() -> TaskKey:
    return TaskKey.objects.get(tenant="a", key="1")


def expire() -> None:
    TaskKey.objects.update(expires_at=Now() - timedelta(seconds=1))


def end(task_id: int, how: str) -> None:
    one = Task.objects.filter(pk=task_id)
    if how == "succeeded":
        assert run_tasks() == 1
    elif how == "deleted":
        one.delete()
    elif how == "failed":
        one.update(status="failed", last_error="no", finished_at=Now())
    else:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE pgembed_task")


@pytest.mark.parametrize("how", ["succeeded", "deleted", "failed", "truncated"])
def test_a_key_outlives_its_task_for_a_while_and_is_free_again_then(how):
    first = remember()
    assert key().expires_at is None
    end(int(first), how)
    assert key().expires_at - key().created_at >= timedelta(days=7)
    assert remember() == first
    expire()
    second = remember()
    assert second != first
    assert key().expires_at is None


def test_a_failure_that_is_retried_keeps_its_key():
    first = remember()
    end(int(first), "failed")
    Task.objects.update(status="pending", finished_at=None)
    assert key().expires_at is None


def test_dismissing_a_failure_leaves_the_key_as_it_is():
    first = remember()
    end(int(first), "failed")
    before = key().expires_at
    Task.objects.update(status=Job.Status.DISMISSED)
    assert key().expires_at == before


def test_a_later_task_of_the_key_is_not_ended_by_the_former():
    first = remember()
    end(int(first), "failed")
    expire()
    remember()
    Task.objects.filter(pk=first).delete()
    assert key().expires_at is None


def test_a_former_task_that_is_retried_does_not_end_the_key_of_the_later_one():
    first = remember()
    end(int(first), "failed")
    expire()
    second = remember()
    Task.objects.filter(pk=first).update(status="pending", finished_at=None)
    Task.objects.filter(pk=first).delete()
    assert key().expires_at is None
    assert key().task_id == int(second)


def test_a_second_writer_waits_for_the_first_and_gets_its_task():
    answers: list[str] = []

    def second() -> None:
        answers.append(remember())
        connections.close_all()

    with transaction.atomic():
        first = remember()
        other = threading.Thread(target=second)
        other.start()
        wait_for_lock()
        assert not answers
    other.join(10)
    assert answers == [first]


def test_a_second_writer_enqueues_what_the_first_has_rolled_back():
    answers: list[str] = []

    def second() -> None:
        answers.append(remember())
        connections.close_all()

    with transaction.atomic():
        first = remember()
        other = threading.Thread(target=second)
        other.start()
        wait_for_lock()
        transaction.set_rollback(True)
    other.join(10)
    assert answers != [first]
    assert Task.objects.get().pk == int(answers[0])


def wait_for_lock() -> None:
    from tests.conftest import wait_until

    def is_waiting() -> bool:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    wait_until(is_waiting)


def test_plain_tasks_do_not_come_to_the_trigger(django_assert_num_queries):
    tasks.note.enqueue("hello")
    with connection.cursor() as cursor:
        cursor.execute("SET track_functions = 'all'")
        cursor.execute("SELECT pg_stat_reset()")
    run_tasks()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'pgembed_task_ended_v1'"
        )
        assert cursor.fetchall() == []
        cursor.execute("RESET track_functions")


def test_who_asks_for_a_key_that_is_taken_does_not_hold_up_the_end_of_its_task(second_connection):
    first = remember()
    answer = second_connection.execute(
        "SELECT pgembed_enqueue_task_v1('tests.app.tasks.remember', tenant => 'a', once => %s)",
        [key().key],
    ).fetchone()
    assert answer == (int(first),)
    with database.giving_way("default", wait=database.BRIEFLY):
        complete([Ended(int(first))], using="default")()
    assert key().expires_at is not None
