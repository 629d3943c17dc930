"""Two workers keep one quota together, and sleep while it is used up."""

from __future__ import annotations

import os
import time
from pathlib import Path
from subprocess import Popen

import pytest

from pgembed_django.models import Job
from pgembed_django.quotas import MINUTE_SECONDS, SAVED_SECONDS
from tests.app.models import Note
from tests.conftest import wait_until
from tests.live.conftest import providers
from tests.played import Reply, Seen

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

A_MINUTE = 120
ROWS = 12
LATE_SECONDS = 0.5
"""A request may be on its way for so long, on a busy machine."""


def test_two_workers_keep_a_quota_together_and_sleep_meanwhile(start_worker, server):
    asked: list[float] = []
    embed = server.embed

    def note(seen: Seen) -> Reply:
        asked.append(time.monotonic())
        return embed(seen)

    server.embed = note
    config = providers(server)
    config["default"]["REQUESTS_PER_MINUTE"] = A_MINUTE
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(ROWS))

    workers = [start_worker(PGEMBED_PROVIDERS=config, PGEMBED_BATCH_SIZE=1) for _ in range(2)]
    wait_until(lambda: len(asked) >= 3)
    before, spent_before = time.monotonic(), sum(map(cpu_seconds, workers))
    wait_until(lambda: not Job.objects.filter(status__in=["pending", "running"]).exists())
    waited, spent = time.monotonic() - before, sum(map(cpu_seconds, workers)) - spent_before

    assert len(asked) == ROWS
    for first, begin in enumerate(asked):
        for number, end in enumerate(asked[first:], start=1):
            seconds = end - begin + SAVED_SECONDS + LATE_SECONDS
            assert number <= 1 + seconds * A_MINUTE / MINUTE_SECONDS
    assert waited > 2
    assert spent < waited / 2, "they sleep, and do not look again and again"
    assert all(worker.poll() is None for worker in workers)


def cpu_seconds(process: Popen[str]) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
