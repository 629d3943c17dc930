"""embed_status, embed_retry and embed_dismiss of queues, and what a worker says of tasks."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone

from pgembed_django.declaration import specs
from pgembed_django.models import Job, Task, Worker
from pgembed_django.ops import status
from pgembed_django.ops.status import QueueStatus
from pgembed_django.queue import jobs, rollups
from pgembed_django.testing import run_tasks
from tests.app import tasks

pytestmark = pytest.mark.django_db


def of(name: str, **options: Any) -> QueueStatus:
    [found] = status.overview(using="default", specs=[], queues=[name], **options).queues
    return found


def run(name: str, *arguments: str) -> str:
    out = io.StringIO()
    call_command(name, *arguments, stdout=out, stderr=io.StringIO(), no_color=True)
    return out.getvalue()


def be_alive(*queues: str, **columns: Any) -> Worker:
    return Worker.objects.create(
        host="host", pid=7, version="1", specs=queues or ["default", "llm"], **columns
    )


def be_due_for(minutes: float) -> None:
    Task.objects.filter(status="pending").update(run_at=Now() - timedelta(minutes=minutes))


@pytest.fixture
def make_failure(settings: Any) -> Callable[..., Task]:
    def make(message: str = "no", *, queue: str = "default") -> Task:
        settings.PGEMBED_MAX_ATTEMPTS = 1
        result = tasks.fail.using(queue_name=queue).enqueue(message)
        run_tasks()
        return Task.objects.get(pk=int(result.id))

    return make


# The status of a queue


def test_a_queue_without_tasks_moves_if_it_has_a_worker() -> None:
    assert of("default").verdict.state == "degraded"
    be_alive()
    found = of("default")
    assert (found.verdict.state, found.verdict.reason) == ("moving", "Nothing is due.")


def test_what_is_due_and_what_is_for_later_are_told_apart() -> None:
    tasks.add.enqueue(1, 2)
    be_due_for(3)
    tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    tasks.add.using(queue_name="llm").enqueue(1, 2)

    found = of("default")

    assert (str(found.waiting), str(found.later), str(found.ready)) == ("2", "1", "1")
    assert 179 < found.oldest_seconds < 200


def test_a_task_for_later_has_not_waited() -> None:
    tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    be_alive()

    found = of("default")

    assert (found.oldest_seconds, found.verdict.state) == (0.0, "moving")


def test_the_oldest_task_is_found_in_any_tenant_and_priority() -> None:
    for number in range(3):
        tasks.remember.enqueue(f"tenant {number}", str(number))
        tasks.add.using(priority=number).enqueue(1, 2)
    for task in Task.objects.all():
        be_due_for(1)
        Task.objects.filter(pk=task.pk).update(run_at=Now() - timedelta(minutes=9))
        assert 530 < of("default").oldest_seconds < 600, task


def test_the_first_tasks_of_one_queue_do_not_hide_the_next_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgembed_django.ops.tasks.MAX_TENANTS", 2)
    for number in range(5):
        tasks.remember.enqueue(f"tenant {number}", str(number))
    tasks.add.using(queue_name="llm").enqueue(1, 2)

    found = status.overview(using="default", specs=[]).queues

    assert [(queue.key, str(queue.waiting)) for queue in found] == [("default", "5"), ("llm", "1")]


@pytest.mark.parametrize(
    ("minutes", "is_moving", "state"),
    [(0, False, "moving"), (2, False, "degraded"), (9, False, "stalled"), (9, True, "degraded")],
)
def test_the_state_is_that_of_the_wait_and_not_of_the_count(
    minutes: int, is_moving: bool, state: str
) -> None:
    be_alive()
    for _ in range(3):
        tasks.add.enqueue(1, 2)
    be_due_for(minutes)
    if is_moving:
        tally = rollups.Tally()
        tally.completed("default", waited=1.0)
        tally.flush(using="default")

    assert of("default").verdict.state == state


def test_why_nothing_moves_is_said() -> None:
    tasks.add.enqueue(1, 2)
    be_due_for(1)
    assert of("default").verdict.reason.startswith("No worker is running: 1 task waits")
    worker = be_alive()
    jobs.pause("spec", "default", by="Ada", using="default")
    assert of("default").verdict.reason.startswith("Paused by Ada: 1 task waits")
    jobs.resume("spec", "default", using="default")
    Worker.objects.filter(pk=worker.pk).update(aside={"default": "out of order"})
    assert of("default").verdict.reason.endswith("out of order")


def test_a_queue_that_waits_for_a_provider_is_not_taken_for_one_of_that_name() -> None:
    be_alive(paused={"default": "ollama: refused"}, paused_seconds={"default": 9.0})
    tasks.add.enqueue(1, 2)

    found = status.overview(using="default")

    assert found.queues[0].verdict.state == "stalled"
    assert found.queues[0].verdict.reason.endswith("ollama: refused")
    assert [provider.is_down for provider in found.providers] == [False]


def test_serial_tasks_suspects_and_those_whose_time_has_come_are_counted_too() -> None:
    tasks.one_at_a_time.enqueue(1)
    tasks.one_at_a_time.enqueue(1)
    tasks.add.enqueue(1, 2)
    Task.objects.filter(function="tests.app.tasks.add").update(crashes=1)
    tasks.note.enqueue("come due")
    Task.objects.filter(function="tests.app.tasks.note").update(
        created_at=Now() - timedelta(minutes=9), run_at=Now() - timedelta(minutes=4)
    )

    found = of("default")

    assert (str(found.waiting), str(found.later)) == ("4", "0")
    assert 230 < found.oldest_seconds < 300


def test_failures_and_p99_are_those_of_the_queue(make_failure: Callable[..., Task]) -> None:
    make_failure()
    tally = rollups.Tally()
    tally.completed("default", waited=2.0)
    tally.completed("llm", waited=200.0)
    tally.flush(using="default")

    found = of("default")

    assert str(found.open_failures) == "1"
    assert found.p99_seconds == pytest.approx(2.0, rel=0.4)


def test_a_queue_that_nobody_declares_is_shown_while_it_has_tasks() -> None:
    tasks.add.enqueue(1, 2)
    Task.objects.update(queue="other")

    [found] = [one for one in status.overview(using="default").queues if one.key == "other"]

    assert (found.is_declared, found.verdict.state) == (False, "stalled")


def test_the_counts_read_an_index_however_many_tasks_there_are() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgembed_task")  # what other tests have left of rows and indexes
        cursor.execute(
            "INSERT INTO pgembed_task (spec, source_pk, kind, arguments, tenant)"
            " SELECT 'default', n::text, 'a.b', '{}', n %% 300"
            " FROM generate_series(1, 20000) AS n",
            [],
        )
        cursor.execute("ANALYZE pgembed_task")
        cursor.execute("SELECT pg_stat_get_xact_blocks_fetched('pgembed_task'::regclass)")
        [[before]] = cursor.fetchall()
        found = of("default", max_count=100)
        cursor.execute("SELECT pg_stat_get_xact_blocks_fetched('pgembed_task'::regclass)")
        [[after]] = cursor.fetchall()

    assert str(found.waiting) == "100+"
    assert after - before < 1000


# embed_status


def test_the_status_shows_queues(make_failure: Callable[..., Task]) -> None:
    be_alive()
    make_failure("The server is down.")
    tasks.add.enqueue(1, 2)
    be_due_for(2)

    said = run("embed_status", "--queues", "default")

    assert "queue default  degraded" in said
    assert "waiting    1; longest due for 2 min" in said
    assert "failures   1" in said
    assert "The server is down." in said
    assert "queue llm" not in said
    assert "app.ArticleEmbedding" not in said.partition("Workers")[0]
    assert "queue" not in run("embed_status", "--specs", "app.ArticleEmbedding")


def test_the_json_has_the_queues(make_failure: Callable[..., Task]) -> None:
    make_failure("The server is down.")

    told = json.loads(run("embed_status", "--json"))

    assert [queue["key"] for queue in told["queues"]] == ["default", "llm"]
    assert told["queues"][0]["open_failures"]["value"] == 1
    [kind] = told["failed_tasks"]["kinds"]
    assert kind["spec"] == "default"


def test_the_exit_status_is_also_that_of_queues(make_failure: Callable[..., Task]) -> None:
    make_failure()
    with pytest.raises(CommandError, match="default: 1 open failure"):
        run("embed_status", "--queues", "default", "--fail-on-open-failures")
    run("embed_status", "--queues", "llm", "--fail-on-open-failures")
    tasks.add.using(queue_name="llm").enqueue(1, 2)
    be_due_for(9)
    with pytest.raises(CommandError, match="llm: a task has been due for 9 min"):
        run("embed_status", "--queues", "llm", "--fail-above-oldest-seconds", "300")
    run("embed_status", "--queues", "llm", "--fail-above-oldest-seconds", "600")


def test_a_queue_that_is_not_there_is_refused() -> None:
    with pytest.raises(CommandError, match=r"No queue 'lmm'.*Did you mean 'llm'"):
        run("embed_status", "--queues", "lmm")


def test_a_project_with_tasks_only_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "all", list)
    monkeypatch.setattr(specs, "on", lambda _: [])

    assert "queue default" in run("embed_status")


# embed_retry and embed_dismiss


def test_failed_tasks_are_retried_by_queue_function_and_kind(
    make_failure: Callable[..., Task],
) -> None:
    first, other = make_failure("gave up after 1 s"), make_failure("another kind", queue="llm")
    Task.objects.filter(pk=other.pk).update(function="tests.app.tasks.add")

    def failures() -> set[int]:
        return set(Task.objects.filter(status="failed").values_list("pk", flat=True))

    assert run("embed_retry", "--queues", "llm", "--dry-run") == "1 open failure.\n"
    assert run("embed_retry", "--function", "a.b", "--yes") == "No open failure matches.\n"
    assert run("embed_retry", "--specs", "app.ArticleEmbedding", "--yes").startswith("No open")
    assert run("embed_retry", "--signature", first.signature, "--yes").startswith("1 retried")
    assert failures() == {other.pk}
    assert run("embed_retry", "--function", "tests.app.tasks.add", "--yes").startswith("1 retried")
    assert failures() == set()


def test_all_is_units_and_tasks(
    make_failure: Callable[..., Task], make_article: Callable[..., Any]
) -> None:
    make_failure()
    make_article()
    [claim] = jobs.claim(
        ["app.ArticleEmbedding"], limit=1, lease=jobs.Lease(1, 60), using="default"
    )
    jobs.fail(claim, "no", using="default")

    assert run("embed_dismiss", "--all", "--yes").startswith("2 dismissed")

    assert not Job.objects.filter(status="failed").exists()
    assert not Task.objects.filter(status="failed").exists()
