"""Rows may hold megabytes: what is read and kept at once is bounded by its length, not by rows."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.db.models import Q

from pgembed_django import sources, spaces
from pgembed_django.chunking import Chunker
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding import planner
from pgembed_django.models import Job, ScanCursor
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.queue.work import Work
from pgembed_django.spaces import reconcile
from pgembed_django.spaces.backfill import Backfill
from tests.app.models import Note, NoteEmbedding, Page, Product, ProductEmbedding

pytestmark = pytest.mark.django_db

MB = 2**20
WHOLE = Chunker(size=10**8, overlap=0, unit="characters")


class Quick(DeterministicProvider):
    """Embeds anything in no time."""

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), self.dimensions), dtype=np.float32)

    def count_tokens(self, text: str) -> int:
        return len(text) // 3


@pytest.fixture(autouse=True)
def _quick(settings: Any) -> None:
    settings.PGEMBED_PROVIDERS = {
        "default": {"BACKEND": f"{__name__}.Quick", "MODEL": "quick", "DIMENSIONS": 16}
    }


@pytest.fixture
def long_notes() -> list[Note]:
    """Return 14 of 3 MB each, in the order of their keys."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO app_note (id, body, seen)"
            "SELECT gen_random_uuid(), repeat('long ', 600000) || number, 0 "
            "FROM generate_series(1, 14) AS number"
        )
    return list(Note.objects.order_by("pk").only("pk"))


@pytest.fixture
def spec() -> Spec:
    """A spec whose chunks take no time to cut."""
    [spec] = specs.of(Note)
    return dataclasses.replace(spec, chunker=WHOLE)


def peak(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and how many MB of Python's memory it took at most."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()


def test_a_page_of_long_texts_has_fewer_rows_and_the_scan_gets_to_its_end(long_notes, spec):
    spaces.ensure(spec, using="default")
    scan = ScanCursor.Scan.STALE

    page, megabytes = peak(lambda: reconcile.reconcile_page(spec, scan, using="default"))

    at = ScanCursor.objects.get(spec=spec.key, scan=scan)
    assert at.cursor == str(long_notes[4].pk)
    assert not page.is_last
    assert megabytes < 50
    assert reconcile.reconcile_once(spec, using="default", scans=[scan]) == 0
    at.refresh_from_db()
    assert at.cursor is None


def test_texts_that_a_method_makes_of_short_rows_are_dropped_one_by_one(run_jobs, monkeypatch):
    for number in range(20):
        Product.objects.create(title=f"product {number}")
    run_jobs()
    ProductEmbedding.objects.update(text_digest=b"another")
    monkeypatch.setattr(Product, "pitch", lambda row: row.title + " from a file" * 250_000)
    product = specs.get("app.ProductEmbedding")
    live = spaces.live(product, using="default")

    (found, _), megabytes = peak(lambda: reconcile.stale(product, live, Q(), using="default"))

    assert len(found) == 20
    assert megabytes < 30


def test_an_estimate_holds_few_long_texts(long_notes, spec):
    backfill = Backfill(spec, using="default", where=())

    [estimate], megabytes = peak(lambda: list(backfill.estimates()))

    assert (estimate.rows, estimate.chunks) == (14, 14)
    assert megabytes < 40


def test_a_worker_plans_few_long_texts_at_once(long_notes, spec, make_worker):
    worker = make_worker()
    worker.handler.worked_on = {spec.key: spec}

    worker.step()

    assert len(worker.handler.units.by_id) == 14
    assert 0 < held(worker) <= 16 * MB


def test_texts_of_a_method_are_few_until_it_is_known_how_long_they_are(make_worker, monkeypatch):
    for number in range(60):
        Product.objects.create(title=f"product {number}")
    monkeypatch.setattr(Product, "pitch", lambda row: row.title + " from a file" * 100_000)
    pitched = specs.get("app.ProductEmbedding")
    worker = make_worker()
    worker.handler.worked_on = {pitched.key: dataclasses.replace(pitched, chunker=WHOLE)}

    worker.step()

    assert len(worker.handler.units.by_id) == 60
    assert 0 < held(worker) <= 32 * MB


def test_what_does_not_fit_at_once_is_planned_in_its_turn(make_worker, monkeypatch):
    monkeypatch.setattr(sources, "READ_BYTES", 1000)
    monkeypatch.setattr(planner, "HELD_CHARACTERS", 2000)
    for number in range(40):
        Note.objects.create(body=f"{number} {'word ' * 60}")
    worker = make_worker(batch_size=4)
    most = 0

    while worker.step():
        most = max(most, held(worker))

    assert 0 < most <= 3000
    assert Job.objects.filter(status="succeeded").count() == 40
    assert NoteEmbedding.objects.exclude(embedding=None).count() == 40


def test_the_texts_of_two_specs_share_what_is_read_at_once(make_worker, monkeypatch):
    monkeypatch.setattr(sources, "READ_BYTES", 1000)
    for number in range(3):
        Note.objects.create(body=f"{number} {'word ' * 60}")
        Page.objects.create(slug=f"{number}", body="word " * 60)
    worker = make_worker()

    worker.step()

    assert len(worker.handler.units.by_id) == 6
    assert 600 < held(worker) <= 1000


def test_rows_that_are_gone_when_they_are_read_are_not_taken_for_long_ones(run_jobs):
    Note.objects.bulk_create(Note(body=f"{number}") for number in range(planner.UNASKED + 2))
    run_jobs()
    Note.objects.update(body="new")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM app_note")
        cursor.execute("RESET session_replication_role")

    run_jobs()

    assert not NoteEmbedding.objects.exists()
    assert not Job.objects.exclude(status="succeeded").exists()


def held(worker: Work) -> int:
    """Return how many characters of texts a worker holds."""
    return sum(
        len(chunk.text)
        for unit in worker.handler.units.by_id.values()
        for part in unit.parts
        for chunk in part.plan.insert
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(60)  # it would wait for ever
def test_what_is_longer_than_a_socket_takes_is_sent_whole_before_its_answer_is_waited_for(run_jobs):
    note = Note.objects.create(body="x" * 3 * MB)

    assert run_jobs() == 1

    stored = NoteEmbedding.objects.filter(source=note).order_by("position")
    assert stored.last().end_offset == 3 * MB
