"""A person on call in a real browser: failed tasks, queues, schedules and results."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Page, expect

from pgembed_django.models import Task, TaskRecord, Worker
from pgembed_django.queue.rollups import Tally
from pgembed_django.testing import run_tasks
from tests.app import tasks
from tests.live import test_triage_room as room
from tests.live.test_triage_room import browser, looked_at, open_admin, row, time_enough

__all__ = ["browser", "open_admin", "time_enough"]  # fixtures

SHOTS = os.environ.get("PGEMBED_SCREENSHOTS")

pytestmark = room.pytestmark

OPERATOR = (
    "view_task",
    "retry_task",
    "dismiss_task",
    "cancel_task",
    "operate_task",
    "view_taskrecord",
    "view_task_arguments",
)


@pytest.fixture
def trouble(transactional_db: None, settings: Any) -> None:
    """Tasks that failed in two ways, some that wait, one with a schedule, and a kept result."""
    settings.PGEMBED_MAX_ATTEMPTS = 1
    for number in range(30):
        tasks.fail.using(queue_name="llm").enqueue(f"The model did not answer within {number} s.")
    tasks.fail.using(queue_name="llm").enqueue("The request is too long.")
    run_tasks()
    for number in range(40):
        tasks.remember.enqueue(f"tenant {number % 4}", str(number))
    tasks.add.using(run_after=timezone.now() + timedelta(hours=3)).enqueue(1, 2)
    Task.objects.filter(function="tests.app.tasks.add").update(is_scheduled=True)
    Worker.objects.create(host="worker-1", pid=17, version="1", specs=["default", "llm"])
    tally = Tally()
    for number in range(500):
        tally.completed("default", waited=0.02 + number / 900)
        tally.completed("llm", waited=1 + number / 100)
    tally.flush(using="default")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE pgembed_taskrecord_of_test PARTITION OF pgembed_taskrecord DEFAULT"
        )
    now = timezone.now()
    TaskRecord.objects.create(
        pk=1,
        queue="default",
        function="tests.app.tasks.add",
        arguments={"args": [1, 2], "kwargs": {}},
        tenant="",
        priority=0,
        claims=1,
        worker="17",
        result=3,
        created_at=now,
        started_at=now,
        finished_at=now,
        expires_at=now + timedelta(days=1),
    )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE pgembed_taskrecord_of_test")


def test_an_operator_retries_one_kind_and_pauses_a_queue(
    trouble: None, open_admin: Callable[..., Page]
) -> None:
    page = open_admin(*OPERATOR, "view_worker")
    llm = row(page, "llm")
    expect(llm).to_contain_text("Degraded.")
    expect(llm).to_contain_text("31 tasks have failed.")
    looked_at(page, "queues")
    if SHOTS:
        page.locator("[aria-labelledby=pgembed-queues].module").screenshot(
            path=Path(SHOTS) / "queues.png"
        )

    # Reads why, and retries one kind.
    page.get_by_role("link", name="Failed tasks (31)").click()
    slow = row(page, "The model did not answer within #")
    expect(slow).to_contain_text("30")
    looked_at(page, "failed-tasks")
    slow.get_by_role("link", name="Show the latest").click()
    expect(page.locator("#content")).to_contain_text("The model did not answer")
    expect(page.locator("#content")).to_contain_text('"args"')
    looked_at(page, "task")
    page.go_back()
    slow.get_by_role("button", name="Retry all").click()
    expect(page.locator("h1")).to_have_text("Retry 30 tasks?")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator(".messagelist")).to_have_text("30 tasks retried.")
    assert Task.objects.filter(status="pending", function="tests.app.tasks.fail").count() == 30

    # Pauses the queue meanwhile.
    page.goto("/admin/pgembed/")
    llm.get_by_role("button", name="Pause").click()
    expect(page.locator(".messagelist")).to_contain_text("Paused llm.")
    expect(llm).to_contain_text("Stalled.")

    # Narrows the list down to a tenant, and cancels its tasks.
    page.goto("/admin/pgembed/task/?status=pending&spec=default")
    looked_at(page, "tasks")
    page.get_by_role("link", name="tenant 2").first.click()
    expect(page.locator("#result_list tbody tr")).to_have_count(10)

    # Has a look at what is to come, and at what was returned.
    page.goto("/admin/pgembed/task/schedules/")
    looked_at(page, "schedules")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".messagelist")).to_have_text("1 task made due now.")
    page.goto("/admin/pgembed/taskrecord/")
    looked_at(page, "results")
    page.locator("#result_list tbody tr th a").first.click()
    expect(page.locator(".field-result_text")).to_contain_text("3")
    looked_at(page, "result")


def test_a_viewer_can_do_none_of_it(trouble: None, open_admin: Callable[..., Page]) -> None:
    page = open_admin("view_task")
    content = page.locator("#content")
    for where in ("", "task/failures/", "task/schedules/"):
        page.goto(f"/admin/pgembed/{where}")
        for name in ("Retry", "Dismiss", "Pause", "Run now", "Cancel", "Release"):
            for role in ("button", "link"):
                expect(content.get_by_role(role, name=name)).to_have_count(0)
    page.goto("/admin/pgembed/task/?status=failed")
    expect(page.locator("select[name=action]")).to_have_count(0)
