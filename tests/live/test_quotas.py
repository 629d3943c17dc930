"""Two workers keep one quota together, and sleep while it is used up."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from pgembed_django.embedding.rate_limits import MINUTE_SECONDS, SAVED_SECONDS
from pgembed_django.models import Quota
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import providers

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

A_MINUTE = 240
ROWS = 12


def test_two_workers_keep_a_quota_together_and_sleep_meanwhile(start_drowsy_worker, server):
    config = providers(server)
    config["default"]["REQUESTS_PER_MINUTE"] = A_MINUTE
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(ROWS))
    began = timezone.now()

    workers = [
        start_drowsy_worker(PGEMBED_PROVIDERS=config, PGEMBED_BATCH_SIZE=1) for _ in range(2)
    ]
    wait_until(lambda: NoteEmbedding.objects.filter(embedding__isnull=False).count() == ROWS)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)  # whereupon its counts are sent off

    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert len(server.times) == ROWS
    # Each was paid for, at the one place. What that means for the pace: tests/db/test_quotas.py.
    paid = timedelta(seconds=ROWS * MINUTE_SECONDS / A_MINUTE - SAVED_SECONDS)
    assert Quota.objects.get().requests_free_at >= began + paid
    assert looks() < 20 * ROWS, "they sleep, and do not look again and again"


def looks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'pgembed_quota'"
        )
        return int(cursor.fetchone()[0])
