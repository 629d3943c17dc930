"""Tasks in the admin: who sees what, and what is done to them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.db import connection
from django.db.models.functions import Now
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from pgembed_django.models import Pause, Task, TaskKey, TaskRecord, Worker
from pgembed_django.queue import jobs
from pgembed_django.tasks import triage
from pgembed_django.tasks.table import TASKS
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.app.models import Note

pytestmark = pytest.mark.django_db

LIST = "/admin/pgembed/task/"
OVERVIEW = "/admin/pgembed/"
FAILURES = "/admin/pgembed/task/failures/"
SECRET = "the quick brown fox"


@pytest.fixture
def operator(make_client: Callable[..., Client]) -> Client:
    names = ("view_task", "retry_task", "dismiss_task", "cancel_task", "operate_task")
    return make_client(*(f"pgembed.{name}" for name in names))


@pytest.fixture
def viewer(make_client: Callable[..., Client]) -> Client:
    return make_client("pgembed.view_task")


@pytest.fixture
def make_failure(settings: Any) -> Callable[..., Task]:
    """Failed tasks, as a worker leaves them."""

    def make(message: str = "The server is down.") -> Task:
        settings.PGEMBED_MAX_ATTEMPTS = 1
        result = tasks.fail.enqueue(message)
        run_tasks()
        task = Task.objects.get(pk=int(result.id))
        assert task.status == "failed"
        return task

    return make


@pytest.fixture
def start() -> Callable[[Task], None]:
    """Let a worker have claimed a task."""

    def claimed(task: Task) -> None:
        Worker.objects.get_or_create(pk=7, host="host", pid=7, version="1", specs=["default"])
        Task.objects.filter(pk=task.pk).update(
            status="running",
            claims=1,
            worker_id=7,
            started_at=Now(),
            lease_expires_at=Now() + timedelta(hours=1),
        )

    return claimed


def act(client: Client, action: str, *selected: int, where: str = LIST) -> str:
    """Run an action on tasks and return what the page said."""
    return said(client.post(where, {"action": action, "_selected_action": selected}))


def said(response: HttpResponse) -> str:
    assert response.status_code == 302
    return str(list(get_messages(response.wsgi_request))[-1])


def text(client: Client, where: str = LIST) -> str:
    response = client.get(where)
    assert response.status_code == 200
    return response.content.decode()


def detail(task: Task) -> str:
    return f"{LIST}{task.pk}/change/"


def last_task() -> Task:
    return Task.objects.latest("pk")


# Who sees what


def test_staff_without_the_permission_sees_no_tasks(make_client: Callable[..., Client]) -> None:
    client = make_client("pgembed.view_job")

    assert client.get(LIST).status_code == 403
    assert client.get(FAILURES).status_code == 403
    assert client.get(f"{LIST}schedules/").status_code == 403
    assert "Queues" not in text(client, OVERVIEW)


def test_a_viewer_sees_failures_but_no_button(
    viewer: Client, make_failure: Callable[..., Task]
) -> None:
    task = make_failure()

    for page in (text(viewer), text(viewer, detail(task))):
        assert "The server is down." in page
        assert "tests.app.tasks.fail" in page
        for action in ("retry", "dismiss", "cancel", "release", "run_now"):
            assert f'value="{action}"' not in page


@pytest.mark.parametrize("action", ["retry", "dismiss", "cancel", "run_now", "release"])
def test_a_viewer_who_posts_an_action_changes_nothing(
    viewer: Client, make_failure: Callable[..., Task], action: str
) -> None:
    task = make_failure()
    tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    before = list(Task.objects.order_by("pk").values())

    viewer.post(LIST, {"action": action, "_selected_action": [task.pk, last_task().pk]})

    assert list(Task.objects.order_by("pk").values()) == before


def test_arguments_and_results_are_shown_only_with_the_permission(
    viewer: Client, make_client: Callable[..., Client]
) -> None:
    tasks.note.enqueue(SECRET)
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE pgembed_taskrecord_of_test PARTITION OF pgembed_taskrecord DEFAULT"
        )
    TaskRecord.objects.create(
        pk=1,
        queue="default",
        function="tests.app.tasks.note",
        arguments={"args": [SECRET], "kwargs": {}},
        tenant="",
        priority=0,
        claims=1,
        worker="7",
        result=SECRET,
        created_at=now,
        started_at=now,
        finished_at=now,
        expires_at=now,
    )
    pages = [detail(last_task()), "/admin/pgembed/taskrecord/1/change/"]
    allowed = ("pgembed.view_task", "pgembed.view_taskrecord")

    for page in (LIST, *pages):
        assert SECRET not in text(make_client(*allowed), page)
    for page in pages:
        assert SECRET in text(make_client(*allowed, "pgembed.view_task_arguments"), page)
        assert "Not shown: it needs the permission" in text(make_client(*allowed), page)


def test_nobody_adds_edits_or_deletes(
    admin_client: Client, make_failure: Callable[..., Task]
) -> None:
    task = make_failure()

    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(detail(task), {"status": "pending"}).status_code == 403
    assert admin_client.get(f"{LIST}{task.pk}/delete/").status_code == 403
    assert set(
        Permission.objects.filter(content_type__model="task").values_list("codename", flat=True)
    ) == {
        "view_task",
        "retry_task",
        "dismiss_task",
        "cancel_task",
        "operate_task",
        "view_task_arguments",
    }


# Lists


def test_tasks_are_listed_by_queue_tenant_function_and_kind_of_error(
    viewer: Client, make_failure: Callable[..., Task]
) -> None:
    failed = make_failure()
    tasks.remember.enqueue("north", "1")
    tasks.remember.enqueue("south", "2")
    tasks.add.using(queue_name="llm").enqueue(1, 2)

    def listed(**query: str) -> list[tuple[str, str]]:
        rows = viewer.get(f"{LIST}?{urlencode(query)}").context["cl"].result_list
        return [(row.function.rpartition(".")[2], row.tenant) for row in rows]

    assert listed(spec="llm") == [("add", "")]
    assert listed(tenant="south") == [("remember", "south")]
    assert listed(function="tests.app.tasks.remember") == [
        ("remember", "south"),
        ("remember", "north"),
    ]
    assert listed(signature=failed.signature) == [("fail", "")]
    assert listed(status="failed") == [("fail", "")]
    assert len(listed(status="pending")) == 3
    assert listed(q=str(failed.pk)) == [("fail", "")]
    assert listed(q="nothing") == []


def test_a_page_of_tasks_never_counts_or_sorts_all_of_them(admin_client: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgembed_task (spec, source_pk, kind, arguments, status, finished_at)"
            " SELECT 'default', n::text, 'a.b', '{}', 'succeeded', now()"
            " FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE pgembed_task")

    for where in (LIST, f"{LIST}?spec=default", OVERVIEW, FAILURES):
        with CaptureQueriesContext(connection) as queries:
            text(admin_client, where)
        asked = [query["sql"] for query in queries if "pgembed_task" in query["sql"]]
        for statement in asked:
            if "count(*)" in statement.lower():
                assert "LIMIT" in statement, statement
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {statement}")
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Sort Key: id DESC" not in plan


# What is done to them


def test_a_retried_task_is_pending_in_place_and_runs(
    operator: Client, make_failure: Callable[..., Task]
) -> None:
    task = make_failure()
    Task.objects.filter(pk=task.pk).update(
        function="tests.app.tasks.note", arguments={"args": ["again"], "kwargs": {}}
    )

    assert act(operator, "retry", task.pk) == "1 task retried."

    again = Task.objects.get()
    assert (again.pk, again.status, again.attempts) == (task.pk, "pending", 0)
    assert run_tasks() == 1
    assert Note.objects.get().body == "again"
    [entry] = LogEntry.objects.all()
    assert (entry.content_type.model, entry.object_id) == ("task", str(task.pk))


def test_the_key_of_a_retried_task_is_kept_until_it_ends_again(settings: Any) -> None:
    tasks.remember.enqueue("north", "1")
    Task.objects.update(status="failed", finished_at=Now(), last_error="no", signature="no")
    TaskKey.objects.update(expires_at=Now() + timedelta(days=7))

    triage.retry_failed([last_task().pk], using="default")

    assert TaskKey.objects.get().expires_at is None


def test_a_retry_gives_way_to_a_newer_task_of_its_key(operator: Client, settings: Any) -> None:
    tasks.report.enqueue(1, "old")
    Task.objects.update(status="failed", finished_at=Now(), last_error="no", signature="no")
    old = last_task()
    tasks.report.enqueue(1, "new")

    assert act(operator, "retry", old.pk) == "1 superseded by newer work."

    run_tasks()
    assert [note.body for note in Note.objects.all()] == ["1 new"]
    assert not Task.objects.filter(settled_at=None).exists()


def test_a_retried_run_of_a_schedule_does_not_meet_the_next_one() -> None:
    tasks.add.enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    first, following = Task.objects.order_by("pk")
    Task.objects.filter(pk=first.pk).update(
        status="failed", finished_at=Now(), last_error="no", signature="no", is_scheduled=True
    )
    Task.objects.filter(pk=following.pk).update(is_scheduled=True)

    assert triage.retry_failed([first.pk], using="default") == {"retried": 1}

    assert list(Task.objects.filter(status="pending", is_scheduled=True)) == [following]


def test_a_dismissed_task_is_no_failure_any_more(
    operator: Client, make_failure: Callable[..., Task]
) -> None:
    task = make_failure()

    assert act(operator, "dismiss", task.pk) == "1 task dismissed."

    assert "There are no open failures." in text(operator, FAILURES)
    assert Task.objects.get().status == "dismissed"
    assert "dismissed, kept until" in text(operator, detail(task))
    assert act(operator, "retry", task.pk) == "1 task retried."


def test_a_pending_task_is_deleted_and_a_running_one_asked_to_stop(
    operator: Client, start: Callable[[Task], None], make_failure: Callable[..., Task]
) -> None:
    failed = make_failure()
    tasks.add.enqueue(1, 2)
    running = last_task()
    start(running)
    tasks.add.enqueue(3, 4)
    pending = last_task()

    told = act(operator, "cancel", running.pk, pending.pk, failed.pk)

    assert told == "1 task canceled, 1 running task asked to stop, 1 left unchanged."
    assert not Task.objects.filter(pk=pending.pk).exists()
    assert Task.objects.get(pk=running.pk).cancel_asked_at is not None


def test_a_task_for_later_is_run_now(operator: Client) -> None:
    tasks.note.using(run_after=timezone.now() + timedelta(days=1)).enqueue("early")
    assert run_tasks() == 0

    assert act(operator, "run_now", last_task().pk) == "1 task made due now."

    assert run_tasks() == 1


def test_what_a_dead_worker_holds_is_released(
    operator: Client, start: Callable[[Task], None]
) -> None:
    tasks.add.enqueue(1, 2)
    start(last_task())
    page = text(operator, OVERVIEW)
    assert "1 of default, for" in page
    assert "Release its tasks" in page

    everything = {"action": "release", "_selected_action": "all", "select_across": "1"}
    where = f"{LIST}?status=running&worker_id=7"
    asked = operator.post(where, everything)
    assert said(operator.post(where, {**everything, **dict(asked.context["form"])})) == (
        "1 task released."
    )

    released = Task.objects.get()
    assert (released.status, released.crashes) == ("pending", 1)


def test_all_that_match_are_done_after_a_question(
    operator: Client, make_failure: Callable[..., Task]
) -> None:
    for number in range(3):
        make_failure(f"gave up after {number} s")
    other = make_failure("another kind")
    page = text(operator, FAILURES)
    assert page.count('<th scope="row">') == 2
    query = {"status": "failed", "spec": "default", "signature": Task.objects.first().signature}
    where = f"{LIST}?{urlencode(query)}"
    assert html.escape(where) in page

    everything = {"action": "dismiss", "_selected_action": "all", "select_across": "1"}
    asked = operator.post(where, everything)
    assert "Dismiss 3 tasks?" in asked.content.decode()
    response = operator.post(where, {**everything, **dict(asked.context["form"])})

    assert said(response) == "3 tasks dismissed."
    assert response["Location"] == FAILURES
    assert list(Task.objects.filter(status="failed")) == [other]


def test_a_long_tenant_is_cut_in_the_list_and_whole_on_the_page(viewer: Client) -> None:
    tenant = "<b>north</b> " * 16
    tasks.remember.enqueue(tenant, "1")

    listed = text(viewer, LIST)

    assert html.escape(tenant) not in listed
    assert f'href="?{urlencode({"tenant": tenant})}">{html.escape(tenant[:79])}…</a>' in listed
    assert html.escape(tenant.strip()) in text(viewer, detail(last_task()))


def test_the_list_of_workers_names_specs_and_queues(make_client: Callable[..., Client]) -> None:
    Worker.objects.create(host="worker-1", pid=17, version="1", specs=["blog.Vectors", "llm"])

    assert "blog.Vectors, llm" in text(make_client("pgembed.view_worker"), "/admin/pgembed/worker/")


def test_a_task_without_an_error_shows_a_dash_for_it(viewer: Client) -> None:
    tasks.add.enqueue(1, 2)

    _, _, after = text(viewer, detail(last_task())).partition("Last error")

    assert '<div class="readonly">-</div>' in after.partition("</fieldset>")[0]


# Overview


def test_the_overview_shows_queues_beside_specs(
    make_client: Callable[..., Client], make_failure: Callable[..., Task]
) -> None:
    make_failure()
    tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    Task.objects.filter(status="pending", run_at__lte=Now()).update(
        run_at=Now() - timedelta(minutes=7)
    )
    client = make_client("pgembed.view_task", "pgembed.view_job")

    response = client.get(OVERVIEW)
    page = response.content.decode()

    [queue, empty] = response.context["seen"]["queues"]
    assert (queue.key, str(queue.waiting), str(queue.later)) == ("default", "2", "1")
    assert (queue.verdict.state, empty.verdict.state) == ("stalled", "degraded")
    assert "No worker is running: 1 task waits, the oldest for 7 min." in page
    assert "app.ArticleEmbedding" in page
    assert page.count("<svg viewBox=") == 6


def test_who_may_see_tasks_alone_sees_no_specs(viewer: Client) -> None:
    page = text(viewer, OVERVIEW)

    assert "Queues" in page
    assert "app.ArticleEmbedding" not in page


def test_a_queue_is_paused_seen_to_be_and_resumed(operator: Client, viewer: Client) -> None:
    def press(client: Client, verb: str, name: str, what: str = "spec") -> HttpResponse:
        where = reverse("admin:pgembed_task_operate", args=[verb])
        return client.post(where, {"name": name, "what": what})

    assert press(viewer, "pause", "llm").status_code == 403
    assert press(operator, "pause", "default", "provider").status_code == 404
    assert press(operator, "pause", "app.ArticleEmbedding").status_code == 404
    assert press(operator, "pause", "nothing").status_code == 404
    assert said(press(operator, "pause", "llm")).startswith("Paused llm.")
    [pause] = Pause.objects.all()
    assert (pause.what, pause.name) == ("spec", "llm")
    assert re.search(r"Paused by user", text(viewer, OVERVIEW))
    assert said(press(operator, "resume", "llm")).startswith("Resumed llm.")
    assert not Pause.objects.exists()


def test_schedules_are_listed_with_their_last_and_next_run(operator: Client) -> None:
    assert "No task with a schedule" in text(operator, f"{LIST}schedules/")
    tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    Task.objects.update(is_scheduled=True, started_at=datetime(2026, 5, 17, 12, tzinfo=UTC))

    page = text(operator, f"{LIST}schedules/")

    assert "tests.app.tasks.add" in page
    assert "05/17/2026" in page
    assert 'value="run_now"' in page


# The verbs


def test_what_an_open_transaction_has_locked_is_busy(
    make_failure: Callable[..., Task], connect: Callable[..., Any]
) -> None:
    """Nothing waits: another person may have the page open in a transaction."""
    task = make_failure()

    assert jobs.dismiss([task.pk + 1000], using="default", table=TASKS) == {"gone": 1}
    assert triage.run_now([task.pk], using="default") == {"gone": 1}
    assert triage.cancel([task.pk], using="default") == {"gone": 1}
