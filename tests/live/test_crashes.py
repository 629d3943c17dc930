"""I6: a text that kills its worker ends as failed, and takes no neighbour along."""

from __future__ import annotations

import json

import pytest

from pgembed_django.models import Job
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

NEIGHBOURS = 12


def test_a_text_that_kills_its_worker_fails_alone_after_a_bounded_number_of_crashes(
    start_worker, tmp_path
):
    notes = tmp_path / "batches"
    settings = {
        "PGEMBED_PROVIDERS": {
            "default": {
                "BACKEND": "tests.providers.ExitingProvider",
                "MODEL": "bag-of-words",
                "DIMENSIONS": 64,
                "OPTIONS": {"notes": str(notes)},
            }
        },
        "PGEMBED_LEASE_SECONDS": 1,
        "PGEMBED_REAP_SECONDS": 0.1,
        "PGEMBED_MAX_CRASHES": 2,
    }
    Note.objects.bulk_create(
        Note(body="poison" if number == 5 else f"neighbour {number}")
        for number in range(NEIGHBOURS + 1)
    )

    for _ in range(2):
        assert start_worker(**settings).wait(timeout=60) == 13
    start_worker(**settings)
    failure = wait_until(Job.objects.filter(status="failed").first)
    wait_until(lambda: Job.objects.filter(status="succeeded").count() == NEIGHBOURS)

    assert failure.last_error == "worker lost"
    assert (failure.crashes, failure.attempts) == (2, 0)
    neighbours = Job.objects.exclude(pk=failure.pk)
    # One crash each, that of the worker that held them all.
    assert set(neighbours.values_list("status", "attempts", "crashes")) == {("succeeded", 0, 1)}
    assert NoteEmbedding.objects.filter(embedding__isnull=False).count() == NEIGHBOURS
    first, *others = [json.loads(line) for line in notes.read_text().splitlines()]
    assert len(first) == NEIGHBOURS + 1
    assert {len(batch) for batch in others} == {1}
    assert others.count(["poison"]) == 1
