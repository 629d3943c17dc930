"""What a server or a user's code says may not be storable: NUL, half a surrogate pair."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pgembed_django import providers, spaces
from pgembed_django.chunking import Chunker
from pgembed_django.declaration import specs
from pgembed_django.exceptions import ProviderError, ProviderUnavailable
from pgembed_django.models import Attempt, Job, Space, Worker
from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.deterministic import DeterministicProvider
from pgembed_django.queue import jobs
from pgembed_django.queue.liveness import WorkerRecord
from tests import played
from tests.app.models import Article, Product

pytestmark = pytest.mark.django_db

SAID = "caf\udce9 and \0 so on"
STORED = "caf\ufffd and  so on"
QUOTED = "caf\ufffd and so on"


class Garbler(DeterministicProvider):
    """A user's own provider, whose words nobody has cleaned."""

    error: type[ProviderError] = ProviderError

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        if any("bad" in text for text in texts):
            raise self.error(SAID)
        return super().embed_batch(texts)

    def model_digest(self) -> str | None:
        raise self.error(SAID)


class Outage(Garbler):
    error = ProviderUnavailable


def declare(settings: Any, provider: type[DeterministicProvider]) -> None:
    settings.PGEMBED_PROVIDERS = {
        "default": {
            "BACKEND": f"{__name__}.{provider.__name__}",
            "MODEL": "bag-of-words",
            "DIMENSIONS": 64,
        }
    }


@pytest.fixture
def server(settings: Any) -> Iterator[played.Ollama]:
    with played.serving(played.Ollama()) as server:
        settings.PGEMBED_PROVIDERS = {
            "default": {
                "BACKEND": "pgembed_django.providers.ollama.OllamaProvider",
                "MODEL": server.model,
                "DIMENSIONS": server.width,
                "OPTIONS": {"base_url": server.url},
            }
        }
        yield server
        providers.get().close()


def body(status: int) -> played.Reply:
    return played.Reply(
        status, b'{"error": "caf\\udce9 and \\u0000 so on"}', {"Content-Type": "application/json"}
    )


def assert_that_it_can_be_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.text.encode()
    assert "\0" not in caplog.text


def test_what_a_server_refuses_a_text_with_is_stored(server, make_article, run_jobs, caplog):
    server.poison = lambda text: body(400) if "bad" in text else None
    make_article(title="bad")

    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        run_jobs()

    job = Job.objects.get()
    assert QUOTED in job.last_error
    assert QUOTED in Attempt.objects.get().error
    assert_that_it_can_be_written(caplog)


def test_what_a_server_is_down_with_is_stored_and_reported(
    server, make_article, make_worker, caplog
):
    make_article()
    worker = make_worker()
    presence = WorkerRecord([], using="default")
    server.poison = lambda text: body(503)

    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        while worker.step():
            pass
        presence.report([worker])

    assert QUOTED in Job.objects.get().last_error
    [reason] = Worker.objects.get().paused.values()
    assert QUOTED in reason
    assert_that_it_can_be_written(caplog)


def test_what_a_users_own_provider_fails_with_is_stored(settings, make_article, run_jobs, caplog):
    declare(settings, Garbler)
    settings.PGEMBED_MAX_ATTEMPTS = 1
    make_article(title="bad")

    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        run_jobs()

    job = Job.objects.get()
    assert job.status == "failed"
    assert STORED in job.last_error
    assert job.signature == QUOTED
    assert_that_it_can_be_written(caplog)


def test_what_a_users_own_provider_is_down_with_is_stored_and_reported(
    settings, make_article, make_worker, caplog
):
    declare(settings, Outage)
    make_article(title="bad")

    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        worker = make_worker()
        presence = WorkerRecord([], using="default")
        while worker.step():
            pass
        presence.report([worker])

    assert STORED in Job.objects.get().last_error
    [reason] = Worker.objects.get().paused.values()
    assert STORED in reason
    assert_that_it_can_be_written(caplog)


def test_what_a_text_method_raises_is_stored(run_jobs, monkeypatch, settings, caplog):
    settings.PGEMBED_MAX_ATTEMPTS = 1

    def pitch(row: Product) -> str:
        raise OSError(SAID)

    monkeypatch.setattr(Product, "pitch", pitch)
    Product.objects.create(title="a file whose name is not UTF-8")

    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        run_jobs()

    job = Job.objects.get(spec="app.ProductEmbedding")
    assert (job.last_error, job.signature) == (f"OSError: {STORED}", f"OSError: {QUOTED}")
    assert_that_it_can_be_written(caplog)


def test_what_a_chunker_raises_is_stored(make_article, run_jobs, monkeypatch, caplog):
    def split(self: Chunker, text: str) -> list[Any]:
        raise ValueError(SAID)

    # As a project's own subclass does. The spec is declared already, with the one that is ours.
    monkeypatch.setattr(Chunker, "split", split)
    make_article()

    with caplog.at_level(logging.DEBUG, logger="pgembed_django"):
        run_jobs()

    assert Job.objects.get().last_error == f"ValueError: {STORED}"
    assert_that_it_can_be_written(caplog)


@pytest.mark.parametrize("error", [SAID, "\0", "\0 \0"])
def test_any_error_can_be_stored(make_article, error):
    make_article()
    [spec] = specs.of(Article)
    [claim] = jobs.claim([spec.key], limit=1, lease=jobs.Lease(1, 60), using="default")

    assert jobs.fail(claim, error, using="default") == "failed"

    job = Job.objects.get()
    assert "\0" not in job.last_error + job.signature
    assert job.last_error


def test_a_models_digest_can_be_stored(server):
    server.models = {f"{server.model}:latest": "sha\0 caf\udce9"}
    [spec] = specs.of(Article)

    [opened] = spaces.ensure(spec, using="default")
    [found] = spaces.ensure(spec, using="default")

    assert found.pk == opened.pk
    assert Space.objects.get(pk=opened.pk).model_digest == "sha caf\ufffd"
