"""Tasks that are enqueued from SQL, by triggers and other languages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import DataError, connection, transaction

from pgembed_django.models import Task
from pgembed_django.testing import run_tasks
from pgembed_django.triggers import sql
from tests.app.models import Note

pytestmark = pytest.mark.django_db

NOTE = "tests.app.tasks.note"


def call(arguments: str, *given: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pgembed_enqueue_task_v1({arguments})", given)
        return cursor.fetchone()[0]


def test_a_call_runs():
    arguments = json.dumps({"kwargs": {"body": "hello"}})
    task_id = call("%s, %s, tenant => 'a', priority => 5", NOTE, arguments)
    task = Task.objects.get(pk=task_id)
    assert (task.queue, task.tenant, task.priority) == ("default", "a", 5)
    assert run_tasks() == 1
    assert Note.objects.get().body == "hello"


def test_a_trigger_of_the_users_own():
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION pg_temp.tell() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pgembed_enqueue_task_v1(
                    'tests.app.tasks.note',
                    jsonb_build_object('args', jsonb_build_array('saw ' || NEW.body))
                );
                RETURN NEW;
            END $$;
            CREATE TRIGGER tell AFTER INSERT ON app_note
            FOR EACH ROW WHEN (NEW.body NOT LIKE 'saw %') EXECUTE FUNCTION pg_temp.tell()
            """
        )
    Note.objects.create(body="hello")
    assert run_tasks() == 1
    assert {*Note.objects.values_list("body", flat=True)} == {"hello", "saw hello"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("NULL", "must not be NULL"),
        ("'a.b', '[]'", "arguments must be an object"),
        ("'a.b', '{\"body\": 1}'", "arguments must be an object"),
        ("'a.b', '{\"args\": {}}'", '"args" must be an array'),
        ("'a.b', '{\"kwargs\": []}'", '"kwargs" must be an object'),
        ("'a.b', queue => 'a.b'", "has no dot"),
        ("'a.b', bump => 'often'", "bump must be keep, latest or replace"),
        ("'a.b', coalesce_key => 'a', bump => 'latest'", "needs max_wait"),
        ("'a.b', priority => 101", "between -100 and 100"),
        ("'a.b', coalesce_key => 'a', once => 'b'", "coalesce_key excludes once and batch"),
    ],
)
def test_bad_input_is_told(arguments, said):
    with pytest.raises(DataError, match=said), transaction.atomic():
        call(arguments)
    assert not Task.objects.exists()


def test_everybody_may_enqueue_and_nobody_else_ends():
    """Else any role could end a batch early, or the keys of others by a trigger of its own."""
    ours = [name for name in sql.FUNCTIONS if "task" in name or "batch" in name]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT proname, has_function_privilege('public', oid, 'EXECUTE') "
            "FROM pg_proc WHERE proname = ANY(%s)",
            [ours],
        )
        may = dict(cursor.fetchall())
    assert may == {name: name.startswith("pgembed_enqueue_") for name in ours}
