"""Batches: what follows is enqueued once, with the last end."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg
import pytest
from django.db import DataError, connection, connections, transaction
from django.db.models.functions import Now
from django.utils import timezone

from pgembed_django.core import database
from pgembed_django.models import Task, TaskBatch
from pgembed_django.tasks import batch, triage
from pgembed_django.tasks.api import InvalidTask
from pgembed_django.tasks.finishing import Ended, complete
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.app.models import Note
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def notes(count: int) -> list[tuple[Any, Any, Any]]:
    return [(tasks.note, [f"part {number}"], {}) for number in range(count)]


LAST = (tasks.note, ["all of it"], {})


def following() -> int:
    return Task.objects.filter(arguments__args=["all of it"]).count()


def test_what_follows_runs_after_all_have_ended():
    made = batch(notes(3), then=LAST)
    assert (made.progress().total, made.progress().ended) == (3, 0)
    assert made.following() is None
    assert run_tasks() == 4
    assert Note.objects.filter(body="all of it").exists()
    progress = made.progress()
    assert (progress.ended, progress.failed) == (3, 0)
    assert progress.ended_at is not None


def test_what_follows_has_no_time_of_its_own():
    later = tasks.note.using(run_after=timezone.now())
    with pytest.raises(InvalidTask, match="take its run_after away"):
        batch(notes(1), then=(later, ["all of it"], {}))
    assert not Task.objects.exists()


def test_a_failure_and_a_cancellation_are_ends():
    made = batch(notes(3), then=LAST)
    one, other, third = Task.objects.order_by("pk")
    Task.objects.filter(pk=one.pk).update(status="failed", last_error="no", finished_at=Now())
    Task.objects.filter(pk=other.pk).delete()
    assert not following()
    Task.objects.filter(pk=third.pk).delete()
    assert following() == 1
    assert (made.progress().ended, made.progress().failed) == (3, 1)


def test_a_failure_that_is_retried_in_time_is_waited_for():
    made = batch(notes(2), then=LAST)
    one, other = Task.objects.order_by("pk")
    Task.objects.filter(pk=one.pk).update(status="failed", last_error="no", finished_at=Now())
    Task.objects.filter(pk=one.pk).update(status="pending", finished_at=None)
    assert (made.progress().ended, made.progress().failed) == (0, 0)
    Task.objects.filter(pk=other.pk).delete()
    assert not following()
    Task.objects.filter(pk=one.pk).delete()
    assert following() == 1


def test_a_failure_that_is_retried_later_does_not_count_again():
    made = batch(notes(1), then=LAST)
    one = Task.objects.get()
    Task.objects.filter(pk=one.pk).update(status="failed", last_error="no", finished_at=Now())
    Task.objects.filter(pk=one.pk).update(status="pending", finished_at=None)
    Task.objects.filter(pk=one.pk).delete()
    assert following() == 1
    assert made.progress().ended == 1


def test_an_empty_batch_is_followed_at_once():
    made = batch([], then=LAST)
    assert following() == 1
    assert made.progress().ended_at is not None


def test_a_rollback_takes_the_batch_along():
    with transaction.atomic():
        batch(notes(1), then=LAST)
        transaction.set_rollback(True)
    assert not Task.objects.exists()


def test_two_workers_that_end_the_last_two_enqueue_what_follows_once(connect):
    batch(notes(2), then=LAST)
    one, other = Task.objects.order_by("pk").values_list("pk", flat=True)
    second = threading.Thread(target=end, args=[[other]])
    with transaction.atomic():
        hold([one])
        with connect() as holder:  # until both are about to end
            holder.execute("SELECT FROM pgembed_task WHERE id = %s FOR UPDATE", [other])
            complete([Ended(one)], using="default")()
            second.start()
            until_waiting(1)
        until_waiting(1)
        assert not following()
    second.join(10)
    assert following() == 1


def test_an_end_that_is_yet_to_commit_holds_up_no_other_one(second_connection):
    made = batch(notes(3), then=LAST)
    one, other, third = Task.objects.order_by("pk").values_list("pk", flat=True)
    second_connection.execute("DELETE FROM pgembed_task WHERE id = %s", [one])
    with database.giving_way("default", wait=database.BRIEFLY):
        complete([Ended(other)], using="default")()
    second_connection.commit()
    assert made.progress().ended == 2
    complete([Ended(third)], using="default")()
    assert following() == 1


def test_the_last_end_sees_one_that_is_rolled_back(second_connection):
    batch(notes(2), then=LAST)
    one, other = Task.objects.order_by("pk").values_list("pk", flat=True)
    second_connection.execute("DELETE FROM pgembed_task WHERE id = %s", [one])
    thread = threading.Thread(target=end, args=[[other]])
    thread.start()
    until_waiting(1)
    second_connection.rollback()
    thread.join(10)
    assert not following()
    complete([Ended(one)], using="default")()
    assert following() == 1


def test_two_ends_that_both_find_no_other_task_enqueue_what_follows_once(writer):
    """The second one is of a task that nobody else has seen: it finds the batch open, and waits."""
    made = batch(notes(1), then=LAST)
    last = Task.objects.get().pk
    [added] = writer.connection.execute(
        "SELECT pgembed_enqueue_task_v1('tests.app.tasks.note', batch => %s)", [made.id]
    ).fetchone()
    with transaction.atomic():
        complete([Ended(last)], using="default")()
        assert following() == 1
        writer.start("DELETE FROM pgembed_task WHERE id = %s", added)
        until_waiting(1)
    writer.end()
    writer.connection.commit()
    assert following() == 1


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
def test_an_end_that_does_not_see_the_other_last_one_is_refused(writer, level):
    batch(notes(2), then=LAST)
    one, other = Task.objects.order_by("pk").values_list("pk", flat=True)
    writer.connection.isolation_level = level
    lock = "SELECT FROM pgembed_task WHERE id = %s FOR NO KEY UPDATE"
    writer.connection.execute(lock, [other])
    with transaction.atomic():
        complete([Ended(one)], using="default")()
        writer.start("DELETE FROM pgembed_task WHERE id = %s", other)
        until_waiting(1)
    try:
        writer.end()
    except psycopg.errors.SerializationFailure:
        writer.connection.rollback()
        writer.connection.execute("DELETE FROM pgembed_task WHERE id = %s", [other])
    writer.connection.commit()
    assert following() == 1


def test_two_workers_that_end_the_last_tasks_of_two_batches_do_not_deadlock():
    first, second = batch(notes(2)), batch(notes(2))
    of_first = [*Task.objects.filter(batch_id=first.id).values_list("pk", flat=True)]
    of_second = [*Task.objects.filter(batch_id=second.id).values_list("pk", flat=True)]
    errors: list[Exception] = []
    turns = [threading.Barrier(2) for _ in range(2)]
    # If each took the batches in the order of its tasks, the one that has the second batch would
    # wait for the first, which the other gets before it.
    orders = [[of_first[0], of_second[0]], [of_second[1], of_first[1]]]
    threads = [
        threading.Thread(target=end, args=[ids, turn, errors])
        for ids, turn in zip(orders, turns, strict=True)
    ]
    with transaction.atomic():
        TaskBatch.objects.select_for_update().get(pk=first.id)
        for thread in threads:
            thread.start()
        wait_until(lambda: all(turn.n_waiting for turn in turns))
        for waiting, turn in enumerate(turns, start=1):
            turn.wait(10)
            until_waiting(waiting)
    for thread in threads:
        thread.join(30)
    assert not errors
    assert first.progress().ended_at is not None
    assert second.progress().ended_at is not None


def test_many_ends_in_one_statement_look_for_another_one_once():
    batch(notes(300), then=LAST)
    first = Task.objects.order_by("pk").values_list("pk", flat=True)[0]
    Task.objects.filter(pk=first).update(
        status="running", worker_id=1, lease_expires_at=Now(), claims=1
    )
    with transaction.atomic():
        before = entries_read()
        Task.objects.filter(status="pending")._raw_delete("default")
        assert entries_read() - before < 1000
    assert not following()
    Task.objects.filter(pk=first).delete()
    assert following() == 1


def entries_read() -> int:
    """Return how many entries this transaction has read of the index of tasks by batches."""
    return count("SELECT pg_stat_get_xact_tuples_returned('pgembed_task_of_batch'::regclass)")


def hold(ids: list[int]) -> None:
    """Lock tasks as workers do before they complete them."""
    assert len(Task.objects.select_for_update(no_key=True).filter(pk__in=ids)) == len(ids)


def end(
    ids: list[int],
    turn: threading.Barrier | None = None,
    errors: list[Exception] | None = None,
) -> None:
    try:
        with transaction.atomic():
            hold(ids)
            if turn is not None:
                turn.wait(10)
            complete([Ended(one) for one in ids], using="default")()
    except Exception as error:
        if errors is None:
            raise
        errors.append(error)
    finally:
        connections.close_all()


def until_waiting(backends: int) -> None:
    wait_until(
        lambda: count("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted") == backends
    )


def test_tasks_with_keys_are_refused():
    with pytest.raises(InvalidTask, match="once or coalesce"):
        batch([(tasks.report, [1, "text"], {})])
    with pytest.raises(InvalidTask, match="once or coalesce"):
        batch([(tasks.remember, ["a", "1"], {})])


def test_a_batch_from_sql():
    given = [{"function": "tests.app.tasks.note", "arguments": {"args": ["a"]}}] * 2
    last = {"function": "tests.app.tasks.note", "arguments": {"args": ["all of it"]}}
    count("SELECT pgembed_enqueue_batch_v1(%s, %s)", json.dumps(given), json.dumps(last))
    assert run_tasks() == 3
    with pytest.raises(DataError, match="a task of a batch has no 'queue_name'"):
        count("SELECT pgembed_enqueue_batch_v1(%s)", json.dumps([{"queue_name": "x"}]))


def count(statement: str, *given: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, given or None)
        return int(cursor.fetchone()[0])


def test_a_failure_that_a_person_retries_in_time_is_waited_for():
    made = batch(notes(2), then=LAST)
    one, other = Task.objects.order_by("pk").values_list("pk", flat=True)
    Task.objects.filter(pk=one).update(status="failed", last_error="no", finished_at=Now())
    assert triage.retry_failed([one], using="default") == {"retried": 1}
    Task.objects.filter(pk=other).delete()
    assert not following()
    assert run_tasks() == 2
    assert (made.progress().ended, made.progress().failed) == (2, 0)


@pytest.mark.parametrize(
    "last",
    [
        {},
        [],
        "tests.app.tasks.note",
        {"function": None},
        {"function": "a", "priority": 101},
        {"function": "a", "priority": "high"},
        {"function": "a", "queue": "a.b"},
        {"function": "a", "queue": "a" * 3000},
        {"function": "a", "arguments": [1]},
        {"function": "a", "run_after": "2999-01-01"},
        {"function": "a", "coalesce_key": "a"},
    ],
)
def test_what_could_not_follow_is_refused_when_the_batch_is_enqueued(last):
    """Otherwise the last of the tasks could never end."""
    given = json.dumps([{"function": "tests.app.tasks.note", "arguments": {"args": ["a"]}}])
    with pytest.raises(DataError):
        count("SELECT pgembed_enqueue_batch_v1(%s, %s)", given, json.dumps(last))
    assert not Task.objects.exists()
