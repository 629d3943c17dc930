from __future__ import annotations

import signal
import time

import psycopg
import pytest

from pgembed_django.models import Job, Worker
from tests.conftest import embedded_text, wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_a_save_is_embedded_within_100_ms_while_the_worker_is_idle(start_worker, make_article):
    start_worker()
    article = make_article()
    wait_until(lambda: embedded_text(article))
    waits = []
    for n in range(20):
        wait_until(is_asleep)
        article.title = f"Fresh {n}"
        article.save()
        saved = time.perf_counter()
        wait_until(lambda: f"Fresh {n}" in (embedded_text(article) or ""), seconds=2)
        waits.append(time.perf_counter() - saved)

    assert sorted(waits)[len(waits) // 2] < 0.1, waits
    print(waits)


def is_asleep() -> bool:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
        )
        return cursor.fetchone()[0] > 0


def test_sigterm_leaves_nothing_behind(start_worker, make_article):
    worker = start_worker()
    article = make_article()
    wait_until(lambda: embedded_text(article))

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(timeout=20) == 0
    assert not Job.objects.filter(status="running").exists()
    assert not Worker.objects.exists()
