"""What is told of a task by its result's id: from its row, its attempts, or its kept result."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from pgembed_django.models import Attempt, Task, TaskRecord, Worker
from pgembed_django.queue import jobs
from pgembed_django.tasks.api import InvalidTask, TaskResultDoesNotExist, TaskResultStatus
from pgembed_django.testing import run_tasks
from tests.app import tasks

pytestmark = pytest.mark.django_db


def retry_now() -> None:
    Task.objects.filter(status="pending").update(run_at=Now())


def test_a_failure_is_told_with_each_attempts_error_and_worker():
    result = tasks.fail.using(priority=3).enqueue("no such thing")
    run_tasks()
    result.refresh()
    assert result.status == TaskResultStatus.READY
    assert result.attempts == 1

    retry_now()
    run_tasks()
    Task.objects.update(status="failed", finished_at=Now())
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.is_finished
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert result.errors[0].traceback.startswith("Traceback")
    assert "ValueError: no such thing" in result.errors[0].traceback
    assert result.worker_ids == ["#0", "#0"]
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    assert result.task == tasks.fail.using(priority=3)
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_an_error_that_no_function_raised_has_a_class_too():
    result = tasks.fail.enqueue("")
    row = Task.objects.get()
    Attempt.objects.create(
        spec=row.queue,
        source_pk=row.unit,
        outcome="crashed",
        started_at=row.created_at,
        worker="a:1",
        error="worker lost",
    )
    result.refresh()
    [error] = result.errors
    assert issubclass(error.exception_class, Exception)
    assert error.traceback == "worker lost"


def test_an_open_failure_keeps_its_errors():
    """Those of others are deleted after a week."""
    failed, retried = tasks.fail.enqueue(""), tasks.fail.enqueue("")
    row = Task.objects.filter(pk=failed.id)
    row.update(status="failed", last_error="no", finished_at=Now())
    for result in (failed, retried):
        Attempt.objects.create(
            spec="default",
            source_pk=result.id,
            outcome="retried",
            started_at=Now() - timedelta(days=8),
            ended_at=Now() - timedelta(days=8),
            worker="a:1",
            error="builtins.ValueError: no",
        )
    jobs.prune(keep_seconds=1e9, using="default")
    assert [attempt.source_pk for attempt in Attempt.objects.all()] == [failed.id]


def test_a_running_task_names_its_worker():
    result = tasks.add.enqueue(1, 2)
    worker = Worker.objects.create(host="here", pid=42, version="1")
    Task.objects.update(
        status="running",
        claims=1,
        worker_id=worker.pk,
        started_at=Now(),
        lease_expires_at=Now(),
    )
    result.refresh()
    assert (result.status, result.worker_ids) == (TaskResultStatus.RUNNING, ["here:42"])
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_errors_of_an_earlier_call_under_the_same_key_are_not_its_own():
    tasks.report.enqueue(1, "early")
    row = Task.objects.get()
    Attempt.objects.create(
        spec=row.queue,
        source_pk=row.unit,
        outcome="retried",
        started_at="2020-01-01T00:00:00Z",
        worker="a:1",
        error="builtins.ValueError: of another",
    )
    assert tasks.report.get_result(str(row.pk)).errors == []


def test_a_result_that_is_not_kept_is_gone_with_its_row():
    result = tasks.add.enqueue(1, 2)
    assert run_tasks() == 1
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_kept_result_is_told_until_it_expires():
    result = tasks.add_and_keep.enqueue(1, b=2)
    assert run_tasks() == 1
    assert not Task.objects.exists()
    found = tasks.add_and_keep.get_result(result.id)
    assert (found.status, found.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert (found.args, found.kwargs, found.worker_ids) == ([1], {"b": 2}, ["#0"])
    assert found.task == tasks.add_and_keep
    assert found.enqueued_at <= found.started_at <= found.finished_at
    result.refresh()
    assert result.return_value == 3

    TaskRecord.objects.update(expires_at=Now())
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add_and_keep.get_result(result.id)


def test_a_kept_result_tells_the_attempts_before_it():
    result = tasks.add_and_keep.enqueue(1, "2")
    run_tasks()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgembed_task SET run_at = now(), arguments = '{\"args\": [1, 2]}'::jsonb"
        )
    assert run_tasks() == 1
    found = tasks.add_and_keep.get_result(result.id)
    assert (found.return_value, found.attempts) == (3, 2)
    assert [error.exception_class for error in found.errors] == [TypeError]


def test_a_return_value_that_cannot_be_kept_is_an_error_of_the_function():
    result = tasks.keep_a_set.enqueue()
    assert run_tasks() == 0
    result.refresh()
    assert [error.exception_class for error in result.errors] == [TypeError]
    assert "in the return value" in result.errors[0].traceback


def test_a_function_that_is_gone_breaks_no_other_result():
    gone = tasks.add.enqueue(1, 2)
    other = tasks.add.enqueue(3, 4)
    Task.objects.filter(pk=int(gone.id)).update(function="tests.app.tasks.renamed")
    with pytest.raises(InvalidTask, match=r"There is no task tests\.app\.tasks\.renamed"):
        tasks.add.get_result(gone.id)
    assert tasks.add.get_result(other.id) == other


@pytest.mark.parametrize("function", ["no_dots", "tests.app.models.Note", "tests.nowhere.run", ""])
def test_what_is_no_task_is_named(function):
    result = tasks.add.enqueue(1, 2)
    Task.objects.update(function=function)
    with pytest.raises(InvalidTask):
        tasks.add.get_result(result.id)


def test_a_queue_that_left_the_settings_does_not_hide_its_tasks(settings):
    result = tasks.add.using(queue_name="llm").enqueue(1, 2)
    settings.TASKS = {"default": {"BACKEND": "pgembed_django.tasks.PostgresBackend"}}
    assert tasks.add.get_result(result.id).task == tasks.add
