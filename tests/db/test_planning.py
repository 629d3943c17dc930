"""How many units are planned before the providers' answers are looked at again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgembed_django.core import adapting
from pgembed_django.embedding.units import State
from pgembed_django.models import Job, Space
from pgembed_django.queue.work import Work

pytestmark = pytest.mark.django_db


@pytest.fixture
def sizes(
    make_worker: Callable[..., Work],
    make_article: Callable[..., object],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[float], list[int]]:
    """Plan nine claimed units, two of them first, and return how many were planned each time."""
    monkeypatch.setattr(adapting, "FIRST", 2)
    settings.PGEMBED_BATCH_SIZE = 1
    settings.PGEMBED_CONCURRENCY = 8
    for _ in range(9):
        make_article()

    def plan(seconds: float) -> list[int]:
        monkeypatch.setattr(adapting, "STEP_SECONDS", seconds)
        worker = make_worker()
        worker.claim()

        def planned() -> int:
            return sum(
                (unit.state is not State.UNREAD) for unit in worker.handler.units.by_id.values()
            )

        steps = takewhile(lambda _: worker.handler.planner.step(), range(9))
        totals = [0, *(planned() for _ in steps)]
        return [after - before for before, after in pairwise(totals)]

    return plan


def test_where_planning_is_quick_more_are_planned_at_once(sizes):
    assert sizes(3600.0) == [2, 4, 3]


def test_where_it_takes_long_fewer_are(sizes):
    assert sizes(0.0) == [2, 1, 1, 1, 1, 1, 1, 1]


def test_where_no_space_is_live_no_text_is_read(make_worker, make_article):
    worker = make_worker()
    Space.objects.all().delete()
    make_article()
    worker.claim()

    with CaptureQueriesContext(connection) as asked:
        worker.handler.planner.step()

    assert not [one["sql"] for one in asked if "app_article" in one["sql"]]
    worker.held.end_jobs()
    assert Job.objects.get().status == Job.Status.PENDING
