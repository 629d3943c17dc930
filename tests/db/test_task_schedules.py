"""Schedules: one run each that is yet to end, inserted with the end of the last one."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from pgembed_django.models import Task
from pgembed_django.tasks import declaration, schedules
from pgembed_django.testing import run_tasks
from tests.app import scheduled
from tests.app.models import Note

pytestmark = pytest.mark.django_db

TICK = "tests.app.scheduled.tick"
NIGHTLY = "tests.app.scheduled.nightly"


def run_of(path: str) -> Task:
    return Task.objects.get(function=path, is_scheduled=True, status__in=["pending", "running"])


def make_due(path: str) -> None:
    Task.objects.filter(function=path).update(run_at=Now() - timedelta(hours=5))


@pytest.fixture(autouse=True)
def only_these(monkeypatch):
    """Leave out what other tests have declared."""
    ours = {
        path: task
        for path, task in declaration.scheduled.items()
        if path.startswith("tests.app.scheduled.")
    }
    monkeypatch.setattr(declaration, "scheduled", ours)


def test_a_worker_adds_missing_runs_once():
    assert schedules.restore(using="default") == 2
    assert schedules.restore(using="default") == 0
    assert run_of(TICK).run_at - timezone.now() <= timedelta(minutes=5)
    assert not run_of(TICK).is_awaited


def test_a_run_that_succeeds_inserts_the_next_one():
    schedules.restore(using="default")
    make_due(TICK)
    former = run_of(TICK).pk
    assert run_tasks() == 1
    assert Note.objects.count() == 1
    assert run_of(TICK).pk != former
    # Though five hours were missed.
    assert run_of(TICK).run_at > timezone.now()


def test_a_run_that_fails_for_good_inserts_the_next_one():
    schedules.restore(using="default")
    make_due(NIGHTLY)
    former = run_of(NIGHTLY).pk
    run_tasks()
    assert Task.objects.get(pk=former).status == "failed"
    assert run_of(NIGHTLY).pk != former


def test_a_call_by_hand_leaves_the_schedule_as_it_is():
    schedules.restore(using="default")
    former = run_of(TICK).pk
    scheduled.tick.enqueue()
    assert run_tasks() == 1
    assert run_of(TICK).pk == former


def test_an_interval_that_was_shortened_brings_the_run_forward():
    schedules.restore(using="default")
    Task.objects.filter(function=TICK).update(run_at=Now() + timedelta(days=1))
    assert schedules.restore(using="default") == 1
    assert run_of(TICK).run_at - timezone.now() <= timedelta(minutes=5)


def test_the_next_run_keeps_when_the_last_one_began():
    schedules.restore(using="default")
    assert run_of(TICK).started_at is None
    make_due(TICK)
    run_tasks()
    assert run_of(TICK).started_at <= timezone.now()


def test_intervals_do_not_drift():
    now = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)
    first = schedules.next_run(scheduled.tick, now)
    assert now < first <= now + timedelta(minutes=5)
    assert schedules.next_run(scheduled.tick, first) == first + timedelta(minutes=5)
    assert schedules.next_run(scheduled.tick, first + timedelta(seconds=3)) == first + timedelta(
        minutes=5
    )


def test_cron_lines_follow_the_time_zone_of_the_project_and_its_summer_time(settings):
    settings.TIME_ZONE = "Europe/Vienna"
    with timezone.override(None):
        winter = schedules.next_run(scheduled.nightly, datetime(2026, 3, 28, 12, tzinfo=UTC))
        summer = schedules.next_run(scheduled.nightly, datetime(2026, 3, 29, 12, tzinfo=UTC))
    for due in (winter, summer):
        local = due.astimezone(ZoneInfo("Europe/Vienna"))
        assert (local.hour, local.minute) == (3, 30)
    assert summer - winter == timedelta(hours=24)


def test_a_cron_line_whose_time_has_just_come_is_not_passed_over():
    due = schedules.next_run(scheduled.nightly, datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert due.second
    assert schedules.next_run(scheduled.nightly, due.replace(second=0)) == due
    assert schedules.next_run(scheduled.nightly, due) > due + timedelta(hours=23)


def test_no_run_is_in_the_past_when_the_clock_is_put_back_to_winter_time(settings):
    settings.TIME_ZONE = "Europe/Vienna"
    at_half_past_two = dataclasses.replace(scheduled.nightly, every="30 2 * * *")
    with timezone.override(None):
        # 02:10 for the second time. Half past two has been.
        due = schedules.next_run(at_half_past_two, datetime(2026, 10, 25, 1, 10, tzinfo=UTC))
        assert due.astimezone(ZoneInfo("Europe/Vienna")).day == 26


def test_a_workers_clock_that_is_behind_repeats_no_run(monkeypatch):
    before = datetime.now(UTC)
    monkeypatch.setattr(timezone, "now", lambda: before - timedelta(hours=1))
    schedules.restore(using="default")
    assert run_of(TICK).run_at > before


def test_a_run_of_a_changed_cron_line_is_moved():
    schedules.restore(using="default")
    due = run_of(NIGHTLY).run_at
    Task.objects.filter(function=NIGHTLY).update(run_at=due + timedelta(minutes=10))
    assert schedules.restore(using="default") == 1
    assert run_of(NIGHTLY).run_at == due


def test_a_run_that_a_person_runs_now_is_not_moved():
    schedules.restore(using="default")
    make_due(NIGHTLY)
    assert schedules.restore(using="default") == 0
    assert run_of(NIGHTLY).run_at < timezone.now()


def test_runs_of_functions_that_are_scheduled_no_more_are_deleted():
    schedules.restore(using="default")
    Task.objects.filter(function=TICK).update(function="tests.app.tasks.note")
    Task.objects.filter(function=NIGHTLY).update(function="tests.app.tasks.of_newer_code")
    schedules.restore(using="default")
    left = {TICK, NIGHTLY, "tests.app.tasks.of_newer_code"}
    assert {*Task.objects.values_list("function", flat=True)} == left
