"""A server that tells no digest is exchanged in mid-run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pgembed_django.models import Job, Space
from tests.app.models import Note, NoteEmbedding
from tests.conftest import wait_until
from tests.played import OpenAI, Reply, Seen, serving, vector_of

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]

EARLY, LATE = 20, 400


class ExchangedInMidRun(OpenAI):
    """Gets other weights after some more requests, once it is told when."""

    last = float("inf")

    def embed(self, seen: Seen) -> Reply:
        if len(self.asked) > self.last and not self.weights:
            self.exchange("other weights")
        return super().embed(seen)


@pytest.fixture
def server() -> Iterator[OpenAI]:
    with serving(ExchangedInMidRun()) as server:
        yield server


def is_of_former(chunk: NoteEmbedding) -> bool:
    vector = vector_of(chunk.passage, OpenAI().width)
    return float(np.dot(chunk.embedding, vector)) > 0.999


def test_no_vector_of_the_other_model_meets_the_space(start_worker, server):
    providers = {
        "default": {
            "BACKEND": "pgembed_django.providers.openai.OpenAIProvider",
            "MODEL": server.model,
            "DIMENSIONS": server.width,
            "OPTIONS": {"base_url": f"{server.url}/v1"},
        }
    }
    worker = start_worker(PGEMBED_PROVIDERS=providers, PGEMBED_CANARY_SECONDS=300)
    Note.objects.bulk_create(Note(body=f"early {number}") for number in range(EARLY))
    stored = NoteEmbedding.objects.exclude(embedding=None)
    wait_until(lambda: stored.count() == EARLY)
    worker.terminate()
    assert worker.wait(30) == 0

    start_worker(PGEMBED_PROVIDERS=providers, PGEMBED_CANARY_SECONDS=300)
    Note.objects.create(body="proves that the model is still the same")
    wait_until(lambda: stored.count() == EARLY + 1)
    server.last = len(server.asked) + 4
    Note.objects.bulk_create(Note(body=f"late {number}") for number in range(LATE))

    former = wait_until(lambda: Space.objects.exclude(exchanged="").first())
    wait_until(lambda: not Job.objects.filter(status="running").exists())
    stored = stored.filter(space=former)
    assert EARLY <= stored.count() < EARLY + LATE
    assert all(map(is_of_former, stored))
    assert set(Job.objects.values_list("attempts", "crashes")) == {(0, 0)}
