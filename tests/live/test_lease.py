"""Leases: kept while the worker lives, whatever the run takes; lost for good once lost."""

from __future__ import annotations

import re
import signal
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from pgembed_django.models import Job, Worker
from pgembed_django.queue import jobs
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import providers

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

LEASE = {"PGEMBED_LEASE_SECONDS": 1, "PGEMBED_REAP_SECONDS": 0.1}

LOST = re.compile(r"Lost the leases of (\d+) jobs")


def test_heartbeats_outlast_a_run_that_is_longer_than_the_lease(start_worker, server):
    server.gate.clear()
    settings = {"PGEMBED_PROVIDERS": providers(server), **LEASE}
    start_worker(**settings)
    note = Note.objects.create(body="long")
    wait_until(lambda: server.times)
    start_worker(**settings)  # reaps whatever runs out

    wait_until(has_run_for_leases(3))
    server.gate.set()

    wait_until(lambda: is_embedded(note))
    wait_until(Job.objects.filter(status="succeeded").exists)
    [(claims, crashes, attempts)] = Job.objects.values_list("claims", "crashes", "attempts")
    assert (claims, crashes, attempts) == (1, 0, 0)
    assert len(server.times) == 1


def test_a_database_blip_does_not_lose_the_lease(start_worker, server):
    server.gate.clear()
    settings = {"PGEMBED_PROVIDERS": providers(server), **LEASE, "PGEMBED_LEASE_SECONDS": 3}
    worker = start_worker(**settings)
    note = Note.objects.create(body="long")
    wait_until(lambda: server.times)
    before = Job.objects.get().lease_expires_at

    for _ in range(3):
        assert hang_up_on_everybody() >= 1
        wait_until(Job.objects.filter(lease_expires_at__gt=before).exists)
        before = Job.objects.get().lease_expires_at
    start_worker(**settings)
    wait_until(has_run_for_leases(1.5, lease_seconds=3))
    server.gate.set()

    wait_until(lambda: is_embedded(note))
    wait_until(Job.objects.filter(status="succeeded").exists)
    [(claims, crashes)] = Job.objects.values_list("claims", "crashes")
    assert (claims, crashes) == (1, 0)
    assert worker.poll() is None


def test_a_worker_frozen_past_its_lease_stores_nothing_and_asks_no_more_when_it_wakes(
    start_worker, server
):
    server.gate.clear()
    settings = {
        "PGEMBED_PROVIDERS": providers(server, batch_size=1),
        "PGEMBED_CONCURRENCY": 1,
        "PGEMBED_BATCH_SIZE": 5,
        **LEASE,
    }
    notes = [Note(body=f"old {number}") for number in range(10)]
    Note.objects.bulk_create(notes)
    frozen = start_worker("-v", "2", **settings)
    # One request is with the server, the others wait.
    held = Job.objects.filter(status="running")
    wait_until(lambda: server.times and held.count() > 2)
    frozen.send_signal(signal.SIGSTOP)
    count = held.count()
    wait_until(Job.objects.filter(lease_expires_at__lt=Now()).exists)
    second = start_worker(**settings)
    wait_until(Job.objects.filter(crashes=1).exists)
    server.gate.set()  # answers the frozen one's request too
    wait_until(lambda: Job.objects.filter(status="succeeded").count() == 10)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0
    asked, stored, done = len(server.times), snapshot(NoteEmbedding), snapshot(Job)

    frozen.send_signal(signal.SIGCONT)
    wait_until(lambda: sum(map(int, LOST.findall(frozen.log.read_text()))) >= count)
    frozen.send_signal(signal.SIGTERM)
    assert frozen.wait(timeout=60) == 0

    # One, if it was frozen right before it sent that.
    assert len(server.times) - asked <= 1
    assert snapshot(NoteEmbedding) == stored
    assert snapshot(Job) == done


def test_a_frozen_worker_that_was_taken_for_dead_is_seen_again(start_worker):
    frozen = start_worker(**LEASE, PGEMBED_RECONCILE_SECONDS=0)
    [row] = wait_until(lambda: list(Worker.objects.all()))
    frozen.send_signal(signal.SIGSTOP)
    Worker.objects.all().delete()

    frozen.send_signal(signal.SIGCONT)

    wait_until(Worker.objects.filter(pk=row.pk).exists)


def test_lease_times_are_the_database_s(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    monkeypatch.setattr("django.utils.timezone.now", lambda: pytest.fail("Python's clock"))
    Note.objects.create(body="a")
    claim = {"lease": jobs.Lease(1, 60), "using": "default"}

    [one] = jobs.claim(["app.NoteEmbedding"], limit=1, **claim)
    left = Job.objects.annotate(left=F("lease_expires_at") - Now()).values_list("left", flat=True)

    assert 0 < left.get().total_seconds() <= 60
    jobs.heartbeat([one], lease_seconds=600, using="default")
    assert 60 < left.get().total_seconds() <= 600


def has_run_for_leases(count, *, lease_seconds=1):
    long_ago = Now() - timedelta(seconds=count * lease_seconds)
    return Job.objects.filter(started_at__lt=long_ago).exists


def hang_up_on_everybody() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def is_embedded(note: Note) -> bool:
    return NoteEmbedding.objects.filter(source=note, embedding__isnull=False).exists()


def snapshot(model) -> list:
    """Every row, with the transaction that wrote it last."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id, xmin::text FROM {model._meta.db_table} ORDER BY id")
        return cursor.fetchall()
