from __future__ import annotations

import signal
import time

import pytest
from django.db import connection

from pgembed_django.models import Job, Worker
from tests.conftest import embedded_text, wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_a_save_is_embedded_within_100_ms_while_the_worker_is_idle(start_worker, make_article):
    start_worker()
    article = make_article()
    wait_until(lambda: embedded_text(article))
    waits = []
    for number in range(15):
        wait_until(is_on_watch)
        article.title = f"Fresh {number}"
        article.save()
        saved = time.perf_counter()
        wait_until(lambda: embedded_text(article).startswith(article.title), seconds=5)
        waits.append(time.perf_counter() - saved)

    # The median: the machine that runs the tests has other things to do.
    assert sorted(waits)[len(waits) // 2] < 0.1, waits


def test_sigterm_leaves_nothing_behind(start_worker, make_article):
    worker = start_worker()
    article = make_article()
    wait_until(lambda: embedded_text(article))

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=20) == 0
    assert not Job.objects.filter(status="running").exists()
    assert not Worker.objects.exists()


def is_on_watch() -> bool:
    """Tell whether a worker is asleep, and wants to be told of a write."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks"
            " WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return cursor.fetchone()[0] > 0
