"""Runs of tasks: how they complete, fail, are canceled, and are kept apart by tenant."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from pgembed_django import conf
from pgembed_django.models import Attempt, Task, TaskRecord
from pgembed_django.queue import sessions
from pgembed_django.queue.work import Work
from pgembed_django.tasks.api import task_started
from pgembed_django.tasks.handler import TaskHandler
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.app.models import Note
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_seen():
    tasks.seen.clear()


@pytest.fixture
def make_work():
    """Workers of tasks with real threads, which a test moves step by step."""
    works = []

    def make(*, concurrency: int = 1, **settings):
        woken = threading.Event()
        handler = TaskHandler(["default"], using="default", concurrency=concurrency)
        chosen = dataclasses.replace(conf.current(), **settings)
        work = Work(handler, using="default", worker_id=7, settings=chosen, wake=woken.set)
        works.append(work)
        return work

    yield make
    for work in works:
        work.release()
        work.close()


def until(work: Work, condition):
    def look():
        work.step()
        return condition()

    return wait_until(look, seconds=20)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "1e300", "1e12"])
def test_whatever_time_another_run_is_asked_for_the_worker_goes_on(seconds):
    tasks.behave.enqueue(f"again in {seconds}")
    tasks.note.enqueue("neighbour")

    run_tasks()

    assert Note.objects.get().body == "neighbour"
    assert all(task.run_at > task.created_at for task in Task.objects.all())


def last_error() -> str:
    return Task.objects.get().last_error


def expire_leases() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgembed_task SET claims = claims + 1")


# Completing


def test_a_task_that_has_completed_and_then_fails_is_complete(caplog):
    tasks.behave.enqueue("late error")

    assert run_tasks() == 1

    assert Note.objects.get().body == "late error"
    assert not Task.objects.exists()
    assert "had completed, and then failed: builtins.ValueError: late error" in caplog.text


def test_an_error_inside_completing_commits_nothing():
    tasks.behave.enqueue("error inside")

    assert run_tasks() == 0

    assert not Note.objects.exists()
    assert last_error().startswith("builtins.ValueError: error inside")


def test_completing_twice_is_an_error_that_does_not_undo_the_first(caplog):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept PARTITION OF pgembed_taskrecord DEFAULT")
    tasks.twice.enqueue()

    assert run_tasks() == 1

    assert [note.body for note in Note.objects.all()] == ["first"]
    assert TaskRecord.objects.get().result == "first"
    assert "completing() may be used once" in caplog.text


def test_a_lost_lease_is_found_when_completing_and_the_late_result_is_discarded(monkeypatch):
    tasks.note_once.enqueue(body="late")
    begin = tasks.note_once.func

    def lose(context, body):
        expire_leases()
        begin(context, body)

    object.__setattr__(tasks.note_once, "func", lose)
    try:
        assert run_tasks() == 0
    finally:
        object.__setattr__(tasks.note_once, "func", begin)

    assert not Note.objects.exists()
    assert Task.objects.get().attempts == 0


@pytest.mark.django_db(transaction=True)
def test_completing_within_another_transaction_is_refused(make_work):
    tasks.behave.enqueue("nested")
    work = make_work()

    until(work, lambda: Task.objects.filter(attempts=1).exists())

    assert "durable" in last_error()
    assert not Note.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_committed", [True, False])
def test_a_commit_whose_answer_is_lost_counts_if_it_has_happened(
    make_work, monkeypatch, has_committed
):
    commit, lost = BaseDatabaseWrapper.commit, []

    def lose(wrapper):
        thread = threading.current_thread().name
        if lost or thread != "pgembed-task":
            return commit(wrapper)
        lost.append(thread)
        if has_committed:
            commit(wrapper)
        wrapper.connection.close()
        with wrapper.wrap_database_errors:
            return wrapper.connection.execute("SELECT 1")

    monkeypatch.setattr(BaseDatabaseWrapper, "commit", lose)
    tasks.note_once.enqueue(body="once")
    work = make_work(backoff_seconds=0)

    until(work, lambda: not Task.objects.exists() and not work.held.jobs)

    assert lost
    assert [note.body for note in Note.objects.all()] == ["once"]
    assert work.completed == 1
    assert not Attempt.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_completing_waits_for_who_has_locked_the_task(make_work, second_connection):
    tasks.note_once.enqueue(body="hello")
    work = make_work()
    work.claim()
    second_connection.execute("SELECT FROM pgembed_task FOR UPDATE")
    work.handler.advance(may_begin=True)
    wait_until(
        lambda: second_connection.execute(
            "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype IN ('tuple', 'transactionid')"
        ).fetchone()
    )
    second_connection.commit()

    until(work, lambda: work.completed == 1)

    assert Note.objects.get().body == "hello"


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_does_not_lose_a_task_that_completes_itself(make_work):
    tasks.note_once.enqueue(body="hello")
    work = make_work()
    work.step()
    wait_until(lambda: not Task.objects.exists())

    work.held.heartbeat()
    until(work, lambda: not work.held.jobs)

    assert work.completed == 1


# Errors


def test_an_error_is_stored_with_its_class_message_and_the_end_of_its_traceback():
    tasks.behave.enqueue("long")
    run_tasks()

    line, _, trace = last_error().partition("\n")

    assert line.startswith("builtins.LookupError: xxx")
    assert len(last_error()) <= 2000
    assert "raise LookupError(message)" in trace or trace.rstrip().endswith("x")
    assert "pgembed_django/tasks/running.py" not in trace


def test_an_error_without_a_message_is_told_by_its_class():
    tasks.fail_silently.enqueue()
    run_tasks()

    assert last_error().partition("\n")[0] == "builtins.ValueError"


def test_secrets_are_not_stored():
    tasks.behave.enqueue("secret")
    run_tasks()

    assert "abcdef" not in last_error()
    assert "[hidden]" in last_error()


def test_the_signature_is_of_the_class_and_message_alone():
    tasks.give_up.enqueue("value")
    run_tasks()

    assert Task.objects.get().signature == "builtins.ValueError: value"


def test_sys_exit_fails_the_task_and_not_the_worker():
    tasks.behave.enqueue("exit")

    assert run_tasks() == 0

    assert last_error().startswith("builtins.SystemExit: 3")


@pytest.mark.parametrize(
    ("task", "kind", "status"),
    [
        (tasks.give_up, "value", "failed"),
        (tasks.give_up, "key", "pending"),
        (tasks.retry_keys, "value", "failed"),
        (tasks.retry_keys, "key", "pending"),
    ],
)
def test_some_errors_are_worth_another_try(task, kind, status, make_work):
    task.enqueue(kind)
    handler = TaskHandler(["default"], using="default", concurrency=1)
    work = Work(handler, using="default", worker_id=7, settings=conf.current(), inline=True)
    work.step()
    work.step(claim=False)

    assert Task.objects.get().status == status
    assert Task.objects.get().attempts == 1
    work.release()


def test_another_run_may_be_asked_for_without_an_attempt():
    result = tasks.behave.enqueue("again")

    assert run_tasks() == 1

    assert tasks.seen == [f"task-{result.id}"] * 2
    assert not Attempt.objects.exists()


def test_a_newer_call_of_its_key_supersedes_one_that_would_be_retried():
    tasks.fail_superseded.enqueue("key", "old")

    assert run_tasks() == 1

    assert tasks.seen == ["old", "new"]
    assert not Task.objects.exists()


def test_the_last_attempt_fails():
    tasks.behave.enqueue("error inside")

    while run_tasks() or Task.objects.filter(status="pending").exists():
        pass

    assert Task.objects.get().status == "failed"
    assert Task.objects.get().attempts == 2


def test_a_function_that_is_gone_is_given_back_for_a_while():
    tasks.note.enqueue("hello")
    Task.objects.update(function="tests.app.tasks.gone")

    assert run_tasks() == 0

    assert Task.objects.get().status == "pending"
    assert Task.objects.get().attempts == 0
    assert "gone" in last_error()


# Time-outs and cancellations


@pytest.mark.django_db(transaction=True)
def test_a_task_whose_time_is_up_costs_attempts_and_its_place_is_free_again(make_work, tmp_path):
    gate = tmp_path / "gate"
    tasks.hang.enqueue(str(gate))
    work = make_work()

    failed = until(work, Task.objects.filter(status="failed").first)
    tasks.note.enqueue("next")
    until(work, lambda: work.completed == 1)
    gate.touch()
    wait_until(lambda: [t.name for t in threading.enumerate()].count("pgembed-task") == 1)
    work.step()

    assert failed.attempts == 2
    assert failed.last_error == "builtins.TimeoutError: No end within 0.3 s"
    assert [note.body for note in Note.objects.all()] == ["next"]


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_whose_time_is_up_is_canceled(make_work):
    tasks.ahang.enqueue()
    work = make_work()

    until(work, lambda: Task.objects.filter(status="failed").exists())

    wait_until(lambda: tasks.seen == ["canceled"])
    assert last_error() == "builtins.TimeoutError: No end within 0.3 s"


@pytest.mark.django_db(transaction=True)
def test_a_person_may_ask_a_running_task_to_end(make_work, tmp_path):
    tasks.wait_for.enqueue(str(tmp_path / "gate"))
    work = make_work()
    until(work, lambda: [*tmp_path.glob("*.began")])

    Task.objects.update(cancel_asked_at="2026-01-01T00:00:00Z")
    until(work, lambda: not Task.objects.exists())

    assert not work.held.jobs
    assert not Note.objects.exists()


# On the event loop


@pytest.mark.django_db(transaction=True)
def test_coroutines_run_at_once_and_complete_by_the_async_orm(make_work):
    work = make_work(concurrency=5)
    for number in range(3):
        tasks.anote.enqueue(f"note {number}")
    for _ in range(5):
        tasks.meet.enqueue(5)

    until(work, lambda: work.completed == 8)

    assert Note.objects.count() == 3
    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("how", "failed"), [("exit", 1), ("stop", 0)])
def test_a_coroutine_that_ends_the_event_loop_takes_no_other_one_along(make_work, how, failed):
    work = make_work(concurrency=2)
    tasks.leave_loop.enqueue(how)
    until(work, lambda: not Task.objects.exclude(status="failed").exists())

    tasks.anote.enqueue("next")
    until(work, lambda: Note.objects.exists())

    assert Task.objects.filter(status="failed").count() == failed


@pytest.mark.django_db(transaction=True)
def test_arguments_that_cannot_be_read_cost_a_coroutine_attempts(make_work):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pgembed_enqueue_task_v1('tests.app.tasks.plain_async', %s)",
            ['{"args": [1e10000]}'],  # Python reads no number of so many digits
        )
    work = make_work(max_attempts=1)
    states = Task.objects.values_list("status", "claims")

    # Its signals are told the arguments before it is called.
    task_started.connect(ignore)
    try:
        until(work, lambda: states.get()[1] and work.held.is_empty)
    finally:
        task_started.disconnect(ignore)

    assert states.get() == ("failed", 1)


def ignore(**_: object) -> None:
    """Receive a signal."""


# Places


@pytest.mark.django_db(transaction=True)
def test_tasks_that_find_no_place_are_given_back(make_work, tmp_path):
    work = make_work(concurrency=1)
    work.handler._mean_seconds = 0.001  # so far, all were short
    for _ in range(3):
        tasks.wait_for.enqueue(str(tmp_path / "gate"))

    work.step()
    assert Task.objects.filter(status="running").count() == 3
    wait_until(lambda: [*tmp_path.glob("*.began")])
    work.handler._mean_seconds = 1.0
    until(work, lambda: Task.objects.filter(status="running").count() == 1)
    (tmp_path / "gate").touch()
    until(work, lambda: work.completed == 3)

    assert Note.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_a_task_has_a_session_as_a_web_request_has_it(make_work):
    sessions.configure_sessions("default")
    try:
        tasks.show_session.enqueue()
        work = make_work()
        until(work, lambda: work.completed == 1)
    finally:
        sessions.end_sessions("default")

    assert tasks.seen == ["on", "0", "0"]


# Tenants


@pytest.fixture
def tenant_context(settings):
    def use(name):
        [backend] = settings.TASKS.values()
        options = {"tenant_context": f"tests.app.tasks.{name}"}
        settings.TASKS = {"default": {**backend, "OPTIONS": options}}

    return use


@pytest.mark.django_db(transaction=True)
def test_policies_of_a_tenant_hold_within_its_tasks(tenant_context, make_work):
    tenant_context("as_tenant")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE TABLE tenant_note (
                tenant text DEFAULT current_setting('app.tenant', true), body text
            );
            ALTER TABLE tenant_note ENABLE ROW LEVEL SECURITY;
            ALTER TABLE tenant_note FORCE ROW LEVEL SECURITY;
            CREATE POLICY own ON tenant_note USING (tenant = current_setting('app.tenant', true));
            CREATE ROLE tenant_member;
            GRANT ALL ON ALL TABLES IN SCHEMA public TO tenant_member;
            """
        )
    options = connections["default"].settings_dict["OPTIONS"]
    options["assume_role"] = "tenant_member"
    try:
        for tenant in ("a", "b", "a"):
            tasks.note_of_tenant.enqueue(tenant, "hello")
        work = make_work()
        until(work, lambda: work.completed == 3)
    finally:
        del options["assume_role"]
        with connection.cursor() as cursor:
            cursor.execute("SELECT tenant FROM tenant_note ORDER BY 1")
            found = cursor.fetchall()
            cursor.execute("DROP TABLE tenant_note; DROP OWNED BY tenant_member")
            cursor.execute("DROP ROLE tenant_member")

    assert found == [("a",), ("a",), ("b",)]
    assert sorted(tasks.seen) == [("a", 1), ("a", 2), ("b", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_tenant_may_have_a_schema_in_which_ours_is_not_found(tenant_context, make_work):
    tenant_context("in_schema")
    with connection.cursor() as cursor:
        for tenant in ("a", "b"):
            cursor.execute(f"CREATE SCHEMA tenant_{tenant}")
            cursor.execute(f"CREATE TABLE tenant_{tenant}.tenant_note (body text)")
    try:
        for tenant in ("a", "b", "a"):
            tasks.note_of_tenant.enqueue(tenant, "hello")
        work = make_work()
        until(work, lambda: work.completed == 3)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA tenant_a CASCADE; DROP SCHEMA tenant_b CASCADE")

    assert sorted(tasks.seen) == [("a", 1), ("a", 2), ("b", 1)]


@pytest.mark.django_db
def test_a_worker_that_a_policy_may_hide_tasks_from_does_not_start():
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE ROLE pgembed_hidden_from NOLOGIN;
            GRANT SELECT ON pgembed_task TO pgembed_hidden_from;
            ALTER TABLE pgembed_task ENABLE ROW LEVEL SECURITY;
            SET LOCAL row_security = off;
            SET LOCAL ROLE pgembed_hidden_from
            """
        )
    handler = TaskHandler(["default"], using="default", concurrency=1)
    with pytest.raises(ImproperlyConfigured, match="Give it BYPASSRLS"):
        handler.prepare()
