"""I8: an outage is not the jobs' fault."""

from __future__ import annotations

import re
import time

import pytest

from pgembed_django.models import Job, Space, Worker
from tests.app.models import Note, NoteEmbedding, Page, PageEmbedding
from tests.conftest import wait_until
from tests.live.conftest import OLLAMA, is_asleep, providers, wait_for_log
from tests.played import plain

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

ROWS = 5000
DOWN = plain(503, "no healthy upstream")


def test_an_outage_in_the_middle_of_5000_rows_costs_nobody_an_attempt(start_worker, server):
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(ROWS))
    worker = start_worker(PGEMBED_PROVIDERS=providers(server))
    wait_until(lambda: embedded() > 1000)

    server.fault = DOWN
    log = wait_for_log(worker, "is paused", times=2)
    assert "Provider default is paused for" in log
    assert "no healthy upstream" in log
    [paused] = wait_until(lambda: list(Worker.objects.exclude(paused={})))
    assert all("no healthy upstream" in reason for reason in paused.paused.values())
    asked = embedded()
    assert asked < ROWS

    server.fault = None
    up_at = time.monotonic()
    wait_until(lambda: embedded() > asked, seconds=60)
    # No later than the pause at hand.
    pauses = re.findall(r"is paused for ([0-9.]+) s", worker.log.read_text())
    assert time.monotonic() - up_at < float(pauses[-1]) + 3
    wait_until(lambda: embedded() == ROWS, seconds=60)
    wait_until(lambda: Job.objects.filter(status="succeeded").count() == ROWS)

    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}
    wait_until(Worker.objects.filter(paused={}).exists)


def test_a_server_is_left_alone_for_as_long_as_it_asks(start_worker, server):
    server.fault = plain(429, "slow down", **{"Retry-After": "4"})
    start_worker(PGEMBED_PROVIDERS=providers(server))
    Note.objects.create(body="a")
    wait_until(lambda: server.times)

    server.fault = None
    wait_until(lambda: embedded() == 1)

    assert server.times[1] - server.times[0] >= 4
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}


def test_another_provider_goes_on_while_one_is_down(start_worker, serve):
    down, up = serve(), serve()
    down.fault = DOWN
    up.models["other:latest"] = "sha-two"
    Space.objects.create(
        spec="app.PageEmbedding",
        fingerprint="second",
        provider="second",
        backend=OLLAMA,
        model="other",
        dimensions=up.width,
        options={"base_url": up.url},
        state="active",
    )
    start_worker(PGEMBED_PROVIDERS=providers(down))
    note = Note.objects.create(body="down")
    wait_until(lambda: Worker.objects.exists() and down.times)

    # The next space is built with the one that is down: it delays nothing.
    wait_until(lambda: Space.objects.filter(spec="app.PageEmbedding").count() == 2)
    for number in range(5):
        Page.objects.create(slug=str(number), body="up")
        stored = PageEmbedding.objects.filter(source_id=str(number), embedding__isnull=False)
        wait_until(stored.exists, seconds=5)

    # Full-text search finds the other one's text meanwhile.
    wait_until(lambda: NoteEmbedding.objects.filter(source=note, passage="down").exists())
    assert embedded() == 0
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_a_server_that_is_not_there_yet_is_waited_for(start_worker, server):
    settings = providers(server)
    settings["default"]["OPTIONS"]["base_url"] = "http://127.0.0.1:9"
    worker = start_worker(PGEMBED_PROVIDERS=settings)
    Note.objects.create(body="a")

    wait_for_log(worker, "refused")
    wait_until(is_asleep)

    assert worker.poll() is None
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def embedded() -> int:
    return NoteEmbedding.objects.filter(embedding__isnull=False).count()
