"""The options of ``embed_worker`` count instead of the settings, in all of its process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from pgembed_django import conf
from tests import played
from tests.app.models import Note

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server() -> Iterator[played.Ollama]:
    with played.serving(played.Ollama()) as server:
        yield server


@pytest.mark.parametrize(("own", "most"), [({}, 3), ({"batch_size": 2}, 2)])
def test_a_batch_size_is_how_many_texts_a_request_holds(
    server: played.Ollama, settings: Any, own: dict[str, int], most: int
) -> None:
    settings.PGEMBED_PROVIDERS = {
        "default": {
            "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
            "MODEL": server.model,
            "DIMENSIONS": server.width,
            "OPTIONS": {"base_url": server.url, **own},
        }
    }
    Note.objects.bulk_create(Note(body=f"note {number}") for number in range(6))

    call_command("embed_worker", "--drain", "--batch-size", "3", verbosity=0)

    sizes = [len(texts) for texts in server.asked]
    assert max(sizes) == most
    assert sum(sizes) == 6
    assert conf.current().batch_size == 32  # of whatever else is done in this process
