"""I7: one bad text among a thousand fails alone."""

from __future__ import annotations

from math import ceil, log2

import pytest

from pgembed_django.models import Job
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.live.conftest import providers
from tests.played import plain

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

ROWS = 1000
BATCH = 32


def test_one_poison_text_among_a_thousand_fails_alone(start_worker, server):
    server.poison = lambda text: plain(400, "this text is poison") if "poison" in text else None
    Note.objects.bulk_create(
        Note(body="poison" if number == 500 else f"note {number}") for number in range(ROWS)
    )

    start_worker(PGEMBED_PROVIDERS=providers(server), PGEMBED_BATCH_SIZE=BATCH)
    wait_until(lambda: not Job.objects.filter(status__in=["pending", "running"]).exists())

    [failure] = Job.objects.filter(status="failed")
    assert Note.objects.get(pk=failure.source_pk).body == "poison"
    assert "this text is [the text]" in failure.last_error
    assert NoteEmbedding.objects.filter(embedding__isnull=False).count() == ROWS - 1
    # In the first pass: nobody was claimed twice, and nothing was charged.
    others = Job.objects.exclude(pk=failure.pk)
    assert set(others.values_list("claims", "attempts")) == {(1, 0)}
    assert failure.claims == 1
    batches = [batch for batch in server.asked if batch != ["hello"]]
    # Two more for each halving, two more of it alone, and a few batches that a claim's end left
    # short.
    assert len(batches) <= ceil(ROWS / BATCH) + 2 * log2(BATCH) + 12
    assert len(server.asked) - len(batches) <= 5
