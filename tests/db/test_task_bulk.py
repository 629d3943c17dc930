"""Many calls in one statement, and calls that are taken back."""

from __future__ import annotations

import json

import pytest
from django.db import DataError, connection

from pgembed_django.models import Task, TaskKey
from pgembed_django.tasks import api, cancel, enqueue_many
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.db.conftest import until_waiting

pytestmark = pytest.mark.django_db


class TestEnqueueMany:
    def test_enqueues_thousands_with_one_statement(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            results = enqueue_many(tasks.note, [{"body": str(n)} for n in range(3000)])
        assert Task.objects.count() == 3000
        row = Task.objects.get(pk=int(results[7].id))
        assert (row.arguments, row.unit) == ({"args": [], "kwargs": {"body": "7"}}, str(row.pk))
        assert results[7] == tasks.note.get_result(results[7].id)

    def test_numbers_them_in_their_order(self):
        results = enqueue_many(tasks.note, [{"body": body} for body in "cab"])
        rows = Task.objects.order_by("pk")
        assert [row.arguments["kwargs"]["body"] for row in rows] == ["c", "a", "b"]
        assert [result.id for result in results] == [str(row.pk) for row in rows]
        assert run_tasks() == 3

    def test_enqueues_each_key_once_within_a_call_and_before_it(self):
        first = tasks.remember.enqueue("a", "1")
        calls = [{"tenant": tenant, "request": request} for tenant, request in ["b2", "a1", "b2"]]
        results = enqueue_many(tasks.remember, calls)
        assert results[1].id == first.id
        assert results[0].id == results[2].id
        assert Task.objects.count() == 2
        assert TaskKey.objects.count() == 2

    def test_coalesces_within_a_call(self):
        calls = [{"account": 1, "text": text} for text in ("early", "late")]
        assert len({result.id for result in enqueue_many(tasks.report, calls)}) == 1
        assert Task.objects.get().arguments["kwargs"]["text"] == "late"

    def test_enqueues_calls_with_and_without_a_key_together(self):
        calls = [{"tenant": "a", "request": request} for request in ("1", None, "1", None)]
        results = enqueue_many(tasks.keyed, calls)
        rows = Task.objects.in_bulk([int(result.id) for result in results])
        assert [rows[int(result.id)].once for result in results] == ["a:1", None, "a:1", None]
        assert len(rows) == 3

    def test_uses_priority_queue_and_time(self):
        task = tasks.keyed.using(priority=5, queue_name="llm")
        enqueue_many(task, [{"tenant": "a", "account": 3}])
        row = Task.objects.get()
        assert (row.priority, row.queue, row.tenant, row.serial) == (5, "llm", "a", "3")

    def test_enqueues_nothing_if_one_call_is_wrong(self):
        with pytest.raises(TypeError, match="missing"):
            enqueue_many(tasks.add, [{"a": 1, "b": 2}, {"a": 1}])
        with pytest.raises(TypeError, match="Unsupported type"):
            enqueue_many(tasks.note, [{"body": "a"}, {"body": object()}])
        assert not Task.objects.exists()

    def test_enqueues_none(self):
        assert enqueue_many(tasks.note, []) == []

    def test_sends_a_signal_for_each(self):
        seen = []

        def receive(sender, task_result, **rest):
            seen.append(task_result.id)

        api.task_enqueued.connect(receive)
        try:
            results = enqueue_many(tasks.note, [{"body": "a"}, {"body": "b"}])
        finally:
            api.task_enqueued.disconnect(receive)
        assert seen == [result.id for result in results]

    def test_works_with_the_backend_of_a_test(self, settings):
        settings.TASKS = {
            "default": {"BACKEND": f"{api.BaseTaskBackend.__module__[:-5]}.dummy.DummyBackend"}
        }
        [result] = enqueue_many(tasks.note, [{"body": "a"}])
        assert api.task_backends["default"].results == [result]


@pytest.mark.django_db(transaction=True)
def test_callers_with_the_same_keys_in_another_order_do_not_deadlock(second_connection, writer):
    """Each locks the keys in their order, so the second one holds none of those to come."""

    def calls(keys):
        return json.dumps([{"once": key} for key in keys])

    statement = "SELECT pgembed_enqueue_tasks_v1('tests.app.tasks.add', %s::jsonb)"
    second_connection.execute(statement, [calls("a")])
    writer.start(statement, calls("ba"))
    until_waiting(writer)
    second_connection.execute(statement, [calls("b")])
    second_connection.commit()
    writer.end()
    writer.connection.commit()
    assert sorted(TaskKey.objects.values_list("key", flat=True)) == ["a", "b"]
    assert Task.objects.count() == 2


class TestCancel:
    def test_deletes_a_waiting_task_and_lets_its_key_expire(self):
        result = tasks.remember.enqueue("a", "1")
        assert cancel(result) == "canceled"
        assert not Task.objects.exists()
        assert TaskKey.objects.get().expires_at is not None
        assert tasks.remember.enqueue("a", "1").id == result.id
        assert run_tasks() == 0

    def test_takes_an_id(self):
        assert cancel(tasks.note.enqueue("a").id) == "canceled"

    def test_asks_a_running_one(self):
        result = tasks.note.enqueue("a")
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pgembed_task SET status = 'running', claims = 1, worker_id = 1, "
                "started_at = now(), lease_expires_at = now()"
            )
        assert cancel(result) == "asked"
        asked_at = Task.objects.get().cancel_asked_at
        assert asked_at is not None
        assert cancel(result) == "asked"
        assert Task.objects.get().cancel_asked_at == asked_at

    @pytest.mark.parametrize("result_id", ["1", "", "nonsense", str(2**63), "9" * 5000])
    def test_of_what_is_not_there_does_nothing(self, result_id):
        assert cancel(result_id) == "gone"

    def test_of_what_has_ended_does_nothing(self):
        result = tasks.note.enqueue("a")
        run_tasks()
        assert cancel(result) == "gone"

    def test_of_a_failure_leaves_it_to_a_person(self):
        result = tasks.fail_at_once.enqueue("no such thing")
        run_tasks()
        assert cancel(result) == "gone"
        failed = Task.objects.get()
        assert (failed.status, failed.cancel_asked_at) == ("failed", None)


@pytest.mark.django_db(transaction=True)
def test_a_task_that_another_transaction_has_locked_is_not_waited_for_long(second_connection):
    result = tasks.note.enqueue("a")
    second_connection.execute("SELECT FROM pgembed_task FOR UPDATE")
    assert cancel(result) == "busy"
    second_connection.rollback()
    assert cancel(result) == "canceled"


class TestOfSql:
    """What only callers of the SQL functions can get wrong, or right."""

    def call(self, function: str, *parameters: object) -> object:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}", parameters)
            return cursor.fetchone()[0]

    def test_enqueues_by_names_alone(self):
        task_id = self.call(
            'pgembed_enqueue_task_v1(\'tests.app.tasks.note\', \'{"kwargs": {"body": "a"}}\')'
        )
        assert Task.objects.get().pk == task_id
        assert run_tasks() == 1

    def test_enqueues_many(self):
        ids = self.call(
            "pgembed_enqueue_tasks_v1('tests.app.tasks.note', %s::jsonb, queue => 'llm')",
            json.dumps([{"arguments": {"args": ["a"]}}, {"once": "b", "arguments": {}}, {}]),
        )
        assert sorted(Task.objects.values_list("pk", flat=True)) == sorted(ids)
        assert Task.objects.get(pk=ids[1]).once == "b"

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            ("pgembed_enqueue_task_v1('a.b', '[1]')", "must be an object"),
            ("pgembed_enqueue_task_v1('a.b', queue => 'a.b')", "no dot"),
            ("pgembed_enqueue_tasks_v1('a.b', '[{\"arguments\": 3}]')", "must be an object"),
            ("pgembed_enqueue_tasks_v1('a.b', '[{}]', queue => 'a.b')", "no dot"),
        ],
    )
    def test_is_told_what_is_wrong(self, call, said):
        with pytest.raises(DataError, match=said):
            self.call(call)

    def test_long_keys_are_as_good_as_short_ones(self):
        """No index takes entries of more than 2,700 bytes."""
        long, other = "".join(map(str, range(5000))), "".join(map(str, range(5001)))
        [first, again, third] = enqueue_many(
            tasks.keyed,
            [
                {"tenant": long, "request": "1", "account": 1},
                {"tenant": long, "request": "1", "account": 1},
                {"tenant": long, "request": other},
            ],
        )
        assert first.id == again.id != third.id
        assert tasks.keyed.enqueue(long, other).id == third.id
        assert tasks.keyed.enqueue(long).id != third.id
        assert len(TaskKey.objects.first().key) < 200
        results = enqueue_many(tasks.one_at_a_time, [{"account": int(long[:4000])}])
        assert len(Task.objects.get(pk=int(results[0].id)).serial) < 200
