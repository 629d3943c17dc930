"""What Django asks of a backend for tasks, of ours: in the points of its own tests."""

from __future__ import annotations

import logging
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from pgembed_django.models import Task
from pgembed_django.tasks import PostgresBackend, api
from pgembed_django.tasks import task as our_task
from pgembed_django.tasks.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
)
from pgembed_django.testing import run_tasks
from tests.app import tasks

pytestmark = pytest.mark.django_db

PLAIN = [tasks.plain, tasks.plain_async]


@pytest.fixture
def two_backends(settings):
    one = {"BACKEND": "pgembed_django.tasks.PostgresBackend", "QUEUES": ["default", "llm"]}
    settings.TASKS = {"default": one, "other": {**one, "QUEUES": ["slow"]}}


def backend() -> PostgresBackend:
    found = api.task_backends["default"]
    assert isinstance(found, PostgresBackend)
    return found


@pytest.mark.parametrize("task", PLAIN)
class TestAnEnqueuedTask:
    def test_is_ready_and_has_not_begun(self, task):
        result = task.enqueue(1)
        assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
        assert (result.args, result.kwargs) == ([1], {})
        assert result.task == task
        assert result.backend == "default"
        assert result.enqueued_at is not None
        assert [result.started_at, result.finished_at, result.last_attempted_at] == [None] * 3
        assert (result.attempts, result.errors) == (0, [])
        with pytest.raises(ValueError, match="not finished yet"):
            _ = result.return_value

    def test_is_found_by_its_id(self, task):
        result = task.enqueue(1)
        assert task.get_result(result.id) == result
        assert backend().get_result(result.id) == result

    def test_is_enqueued_and_found_from_async_code(self, task):
        result = async_to_sync(task.aenqueue)(1)
        assert async_to_sync(task.aget_result)(result.id) == result
        before = pickle.dumps(result)
        async_to_sync(result.arefresh)()
        assert pickle.dumps(result) == before

    def test_is_pickled(self, task):
        result = task.enqueue(1)
        assert pickle.loads(pickle.dumps(result)) == result

    def test_is_logged_with_its_id(self, task, caplog):
        logger, _, _ = api.BaseTaskBackend.__module__.partition(".backends")
        with caplog.at_level(logging.DEBUG, logger=logger):
            result = task.enqueue(1)
        assert f"id={result.id}" in caplog.text
        assert "enqueued" in caplog.text


def test_tuples_become_lists_as_the_function_will_get_them():
    result = tasks.plain.enqueue((1, 2), deep={"pair": (3, 4)})
    assert (result.args, result.kwargs) == ([[1, 2]], {"deep": {"pair": [3, 4]}})
    assert backend().get_result(result.id) == result


def test_a_task_is_part_of_the_transaction_it_is_enqueued_in():
    with transaction.atomic():
        result = tasks.plain.enqueue()
        assert Task.objects.filter(pk=int(result.id)).exists()
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.plain.get_result(result.id)


def test_the_signal_is_sent_after_the_insert():
    seen = []

    def receive(sender, task_result, **rest):
        seen.append((sender, task_result, Task.objects.filter(pk=int(task_result.id)).exists()))

    api.task_enqueued.connect(receive)
    try:
        result = tasks.plain.enqueue()
    finally:
        api.task_enqueued.disconnect(receive)
    assert seen == [(PostgresBackend, result, True)]


@pytest.mark.parametrize("result_id", ["123", "", "no number", "²", "9" * 30, "-1"])
def test_an_unknown_id_has_no_result(result_id):
    with pytest.raises(TaskResultDoesNotExist):
        tasks.plain.get_result(result_id)


def test_the_result_of_another_task_is_refused():
    result = tasks.plain_async.enqueue(1)
    with pytest.raises(TaskResultMismatch, match="does not match"):
        tasks.plain.get_result(result.id)


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_a_priority_is_a_whole_number_in_djangos_range(priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number"):
        tasks.plain.using(priority=priority)


def test_using_changes_a_copy_and_what_is_stored():
    later = timezone.now() + timedelta(hours=1)
    changed = tasks.plain.using(priority=7, queue_name="llm").using(run_after=later)
    assert tasks.plain.priority == 0
    assert tasks.plain.using() == tasks.plain
    result = changed.enqueue()
    row = Task.objects.get(pk=int(result.id))
    assert (row.priority, row.queue, row.run_at) == (7, "llm", later)
    assert tasks.plain.get_result(result.id).task == changed


def test_run_after_must_be_aware_if_times_are():
    with pytest.raises(InvalidTask, match="aware"):
        tasks.plain.using(run_after=datetime(2026, 1, 1))


def test_without_time_zones_a_naive_time_is_local(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    result = tasks.plain.using(run_after=datetime(2100, 1, 1, 12)).enqueue()
    found = tasks.plain.get_result(result.id)
    assert found.task.run_after == datetime(2100, 1, 1, 12)
    assert found.enqueued_at == result.enqueued_at
    settings.USE_TZ = True
    row = Task.objects.get(pk=int(result.id))
    assert row.run_at == datetime(2100, 1, 1, 17, tzinfo=UTC)


def test_a_queue_that_is_not_in_the_settings_is_refused_at_once_and_when_they_change(settings):
    with pytest.raises(InvalidTask, match="Queue 'slow' is not valid"):
        tasks.plain.using(queue_name="slow")
    other = tasks.plain.using(queue_name="llm")
    settings.TASKS = {"default": {"BACKEND": "pgembed_django.tasks.PostgresBackend"}}
    with pytest.raises(InvalidTask, match="Queue 'llm' is not valid"):
        other.enqueue()
    with pytest.raises(InvalidTask, match="Queue 'llm' is not valid"):
        async_to_sync(other.aenqueue)()


def test_a_result_names_the_backend_that_was_asked(two_backends):
    task = tasks.plain.using(backend="other", queue_name="slow")
    result = task.enqueue()
    assert (result.backend, result.task) == ("other", task)
    assert task.get_result(result.id) == result


@pytest.mark.parametrize("function", [any, lambda: None, "x".join, datetime.now])
def test_only_a_function_of_a_module_is_a_task(function):
    with pytest.raises(InvalidTask, match="module level"):
        our_task(function)


class Outer:
    def method(self) -> None:
        """Is no function of a module."""


def test_a_method_is_no_task_as_no_worker_could_import_it():
    with pytest.raises(InvalidTask, match=r"could not import 'tests.db.test_django_tasks.Outer"):
        our_task(Outer.method)


def test_a_context_needs_an_argument_of_that_name():
    with pytest.raises(InvalidTask, match="first argument of 'context'"):
        our_task(takes_context=True)(tasks.add.func)


def test_run_after_is_no_option_of_the_decorator():
    with pytest.raises(TypeError, match="using"):
        our_task(run_after=timezone.now())(tasks.add.func)


@pytest.mark.parametrize("task", [tasks.plain, tasks.remember, tasks.report, tasks.add_and_keep])
def test_a_task_is_pickled_with_its_options(task):
    copy = pickle.loads(pickle.dumps(task.using(priority=3)))
    assert copy == task.using(priority=3)
    assert hash(copy) == hash(task.using(priority=3))


@pytest.mark.parametrize("path", [b"tests.app.tasks.Note_", b"tests.app.tasks.Note", b"gone.add"])
def test_what_is_no_task_is_not_unpickled_as_one(path):
    pickled = pickle.dumps(tasks.add, protocol=0)
    assert b"Vtests.app.tasks.add" in pickled
    with pytest.raises(ValueError, match="to point to a Task instance"):
        pickle.loads(pickled.replace(b"Vtests.app.tasks.add", b"V" + path))


def test_tasks_are_called_directly():
    assert tasks.add.call(1, 2) == 3
    assert tasks.plain_async.call(4) == 4
    assert async_to_sync(tasks.add.acall)(1, 2) == 3
    assert (tasks.add.name, tasks.add.module_path) == ("add", "tests.app.tasks.add")


@pytest.mark.parametrize("task", PLAIN)
def test_djangos_plain_tasks_run(task):
    result = task.enqueue(1)
    assert run_tasks() == 1
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_traceback_ends_as_python_writes_it():
    result = tasks.fail_at_once.enqueue("no such thing")
    run_tasks()
    result.refresh()
    [error] = result.errors
    assert error.traceback.endswith("\nValueError: no such thing\n")


@pytest.mark.parametrize("task", [tasks.plain, tasks.plain_async, tasks.fail_at_once])
def test_the_signals_around_a_run_tell_the_same_start(task):
    told = []

    def receive(sender, task_result, **rest):
        told.append(task_result)

    signals = [api.task_started, api.task_finished]
    for signal in signals:
        signal.connect(receive)
    try:
        result = task.enqueue(1)
        run_tasks()
    finally:
        for signal in signals:
            signal.disconnect(receive)
    assert [one.id for one in told] == [result.id] * 2
    started, finished = told
    assert finished.started_at == started.started_at == finished.last_attempted_at
    assert finished.started_at <= finished.finished_at


def test_a_task_without_options_is_ours_for_the_backend():
    assert isinstance(tasks.plain, api.Task)
    assert type(tasks.plain) is type(tasks.add)
