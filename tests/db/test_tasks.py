"""Tasks: enqueued, run, completed."""

from __future__ import annotations

import pytest

from pgembed_django.models import Task
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.app.models import Note

pytestmark = pytest.mark.django_db


def test_a_task_runs_and_is_deleted():
    result = tasks.note.enqueue("hello")
    assert result.status == "READY"
    assert run_tasks() == 1
    assert Note.objects.get().body == "hello"
    assert not Task.objects.exists()


def test_completing_commits_rows_and_completion_together():
    tasks.note_once.enqueue(body="hello")
    assert run_tasks() == 1
    assert Note.objects.get().body == "hello"
    assert not Task.objects.exists()


def test_a_key_is_enqueued_once():
    first = tasks.remember.enqueue("a", "1")
    assert tasks.remember.enqueue("a", "1").id == first.id
    assert tasks.remember.enqueue("b", "1").id != first.id
    assert run_tasks() == 2
    assert tasks.remember.enqueue("a", "1").id == first.id
    assert run_tasks() == 0


def test_calls_of_a_key_coalesce():
    first = tasks.report.enqueue(1, "early")
    assert tasks.report.enqueue(1, "late").id == first.id
    assert run_tasks() == 1
    assert Note.objects.get().body == "1 late"


def test_an_error_is_kept():
    result = tasks.fail.enqueue("no such thing")
    assert run_tasks() == 0
    [task] = Task.objects.all()
    assert task.attempts == 1
    assert task.last_error.startswith("builtins.ValueError: no such thing")
    assert tasks.fail.get_result(result.id).status == "READY"
