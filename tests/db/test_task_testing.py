"""The helpers for tests of projects with tasks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import TestCase
from django.utils import timezone

from pgembed_django.models import Task
from pgembed_django.testing import assert_enqueued, run_tasks
from tests.app import tasks
from tests.app.models import Note

pytestmark = pytest.mark.django_db


# run_tasks


def test_tasks_of_all_queues_run_and_those_that_they_enqueue() -> None:
    tasks.note.enqueue("one")
    tasks.note.using(queue_name="llm").enqueue("two")
    tasks.note_later.enqueue("three")

    assert run_tasks() == 4

    assert sorted(note.body for note in Note.objects.all()) == ["one", "three", "two"]


def test_what_is_for_later_or_backs_off_is_not_waited_for() -> None:
    tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2)
    tasks.fail.enqueue("no")

    assert run_tasks() == 0
    assert run_tasks() == 0

    assert sorted(Task.objects.values_list("function", "attempts")) == [
        ("tests.app.tasks.add", 0),
        ("tests.app.tasks.fail", 1),
    ]


def test_an_error_is_raised_once_all_have_run_if_asked_for() -> None:
    tasks.fail.enqueue("no such thing")
    tasks.note.enqueue("after it")

    with pytest.raises(ValueError, match="no such thing"):
        run_tasks(raises=True)

    assert Note.objects.get().body == "after it"
    assert Task.objects.get().last_error.startswith("builtins.ValueError: no such thing")


def test_the_fixture_raises_errors(pgembed_run_tasks: Callable[..., int]) -> None:
    tasks.note.enqueue("one")
    assert pgembed_run_tasks() == 1
    tasks.fail.enqueue("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        pgembed_run_tasks()


class InATestCase(TestCase):
    def test_tasks_run_where_nothing_ever_commits(self) -> None:
        tasks.note_once.enqueue("one")
        assert connection.in_atomic_block

        assert run_tasks(raises=True) == 1

        assert Note.objects.get().body == "one"


# assert_enqueued


def test_a_call_is_enqueued_however_its_arguments_were_given() -> None:
    tasks.add.enqueue(1, b=2)

    assert_enqueued(tasks.add, 1, 2)
    assert_enqueued(tasks.add, b=2, a=1)
    assert_enqueued(tasks.add, b=2)
    assert_enqueued(tasks.add)


def test_a_context_is_no_argument() -> None:
    tasks.note_once.enqueue("one")

    assert_enqueued(tasks.note_once, "one")


def test_what_there_is_instead_is_told() -> None:
    with pytest.raises(AssertionError, match=r"^add\(a=1\) is not enqueued. There is: nothing.$"):
        assert_enqueued(tasks.add, 1)
    tasks.add.enqueue(3, 4)
    tasks.note.enqueue("one")

    with pytest.raises(AssertionError) as raised:
        assert_enqueued(tasks.add, 1, 2)

    assert str(raised.value) == (
        "add(a=1, b=2) is not enqueued. There is: add(a=3, b=4) (pending); "
        "tests.app.tasks.note (pending)."
    )


def test_what_has_run_is_not_enqueued_any_more() -> None:
    tasks.add.enqueue(1, 2)
    run_tasks()

    with pytest.raises(AssertionError, match="There is: nothing"):
        assert_enqueued(tasks.add, 1, 2)


def test_arguments_that_the_function_does_not_take_are_refused() -> None:
    with pytest.raises(TypeError):
        assert_enqueued(tasks.add, c=3)
