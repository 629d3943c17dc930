"""I8: an outage is not the jobs' fault."""

from __future__ import annotations

import pytest

from pgembed_django import search
from pgembed_django.models import Job, Space, Worker
from tests.app.models import Note, NoteEmbedding, Page, PageEmbedding
from tests.conftest import wait_until
from tests.live.conftest import OLLAMA, is_asleep, providers, wait_for_log
from tests.played import plain

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

ROWS = 500
DOWN = plain(503, "no healthy upstream")


def test_an_outage_in_the_middle_of_a_backlog_costs_nobody_an_attempt(start_drowsy_worker, server):
    embed = server.embed
    server.embed = lambda seen: embed(seen) if len(server.times) <= 6 else DOWN
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(ROWS))
    worker = start_drowsy_worker(PGEMBED_PROVIDERS=providers(server))

    log = wait_for_log(worker, "is paused", times=2)
    assert "Provider default is paused for" in log
    assert "no healthy upstream" in log

    server.embed = embed
    wait_until(lambda: embedded() == ROWS)
    wait_until(lambda: Job.objects.filter(status="succeeded").count() == ROWS)

    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}


def test_a_server_is_left_alone_for_as_long_as_it_asks_and_no_longer(start_drowsy_worker, server):
    embed, answers = server.embed, iter([plain(429, "slow down", **{"Retry-After": "2"})])
    server.embed = lambda seen: next(answers, None) or embed(seen)
    worker = start_drowsy_worker(PGEMBED_PROVIDERS=providers(server))
    Note.objects.create(body="a")

    wait_until(lambda: embedded() == 1)

    assert "Provider default is paused for 2.0 s" in worker.log.read_text()
    assert set(Job.objects.values_list("status", "attempts")) == {("succeeded", 0)}


def test_another_provider_goes_on_while_one_is_down(start_drowsy_worker, serve):
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
    start_drowsy_worker(PGEMBED_PROVIDERS=providers(down))
    note = Note.objects.create(body="down")
    wait_until(lambda: Worker.objects.exists() and down.times)

    # The next space is built with the one that is down: it delays nothing.
    wait_until(lambda: Space.objects.filter(spec="app.PageEmbedding").count() == 2)
    for number in range(5):
        Page.objects.create(slug=str(number), body="up")
        stored = PageEmbedding.objects.filter(source_id=str(number), embedding__isnull=False)
        wait_until(stored.exists)

    # Full-text search finds the other one's text meanwhile.
    wait_until(lambda: NoteEmbedding.objects.filter(source=note, passage="down").exists())
    assert embedded() == 0
    assert set(Job.objects.values_list("attempts", flat=True)) == {0}


def test_a_text_is_found_by_its_words_while_its_provider_hangs(start_drowsy_worker, server):
    start_drowsy_worker(PGEMBED_PROVIDERS=providers(server))
    Note.objects.create(body="a warm up")
    wait_until(lambda: embedded() == 1)
    server.gate.clear()

    note = Note.objects.create(body="The quick brown fox.")

    wait_until(lambda: note in search(Note, "foxes", mode="lexical"))
    assert embedded() == 1
    server.gate.set()
    wait_until(lambda: embedded() == 2)


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
