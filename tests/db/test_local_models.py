"""A worker whose model runs in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from django.db.models import Q
from django.db.models.functions import Now

from pgembed_django import conf, providers, spaces
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.executors import InProcess
from pgembed_django.executors.own_process import DEPTH
from pgembed_django.models import Job, Space
from pgembed_django.queue.work import Work
from pgembed_django.testing import run_jobs
from tests.app.models import Article, ArticleEmbedding
from tests.conftest import wait_until
from tests.db.conftest import make_due

pytestmark = pytest.mark.django_db(transaction=True)


LOCAL = {
    "BACKEND": "tests.providers.PlayedLocalProvider",
    "MODEL": "played",
    "DIMENSIONS": 4,
    "EXECUTOR": {"BACKEND": "pgembed_django.executors.OwnProcess"},
}


@pytest.fixture
def provider(settings: Any) -> Any:
    settings.PGEMBED_PROVIDERS = {"default": LOCAL}
    found = providers.get()
    yield found
    found.close()


def make_threaded_worker() -> Work:
    """Return a worker that asks its provider in threads."""
    known = {spec.key: spec for spec in specs.of(Article)}
    for spec in known.values():
        spaces.ensure(spec, using="default")
    handler = EmbeddingHandler(known, using="default")
    return Work(handler, using="default", worker_id=1, settings=conf.current())


def drain_all() -> None:
    """Work until no job is left, and wait for no backoff."""
    while Job.objects.filter(status="pending").exists():
        make_due()
        run_jobs()


def test_a_text_that_kills_its_process_fails_alone_and_no_other_is_charged(make_article, provider):
    fine = [make_article() for _ in range(8)]
    fatal = make_article(title="exit", contents="")

    drain_all()

    embedded = ArticleEmbedding.objects.filter(embedding__isnull=False)
    assert {row.source_id for row in embedded} == {row.pk for row in fine}
    [failed] = Job.objects.filter(status="failed")
    assert failed.source_pk == str(fatal.pk)
    assert "went down 3 times at this text alone: The process of the model 'played' ended" in (
        failed.last_error
    )
    assert Job.objects.exclude(pk=failed.pk).filter(attempts__gt=0).count() == 0


def test_a_killed_process_costs_no_row_an_attempt(make_article, provider):
    make_article()
    run_jobs()
    pid = int(provider.executor.compute(["one"]).values[0][0])
    rows = [make_article() for _ in range(8)]
    os.kill(pid, signal.SIGKILL)

    drain_all()

    assert ArticleEmbedding.objects.count() == len(rows) + 1
    assert not Job.objects.filter(Q(attempts__gt=0) | Q(status="failed")).exists()


def test_a_worker_claims_as_much_as_keeps_the_model_busy(make_article, provider, settings):
    make_article()
    run_jobs()
    worker = make_threaded_worker()
    worker.step()  # its pools are made

    assert provider.concurrency == DEPTH
    assert worker.handler.room == min(conf.current().claim_limit, 2 * 256 * DEPTH)
    worker.close()


def test_leases_are_renewed_while_a_model_is_being_loaded(make_article, settings, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    settings.PGEMBED_PROVIDERS = {"default": {**LOCAL, "OPTIONS": {"fifo": str(fifo)}}}
    make_article()
    worker = make_threaded_worker()
    worker.step()
    assert worker.handler.is_waiting
    Job.objects.update(lease_expires_at="2020-01-01T00:00:00Z")

    worker.held.heartbeat()

    assert Job.objects.filter(lease_expires_at__gt=Now()).count() == 1
    fifo.write_bytes(b"")
    wait_until(lambda: worker.step() and ArticleEmbedding.objects.exclude(embedding=None).exists())
    worker.close()
    providers.get().close()


def test_the_model_of_a_former_space_is_run_by_the_executor_that_is_set_now(
    make_article, provider, settings
):
    make_article()
    run_jobs()
    here = {"BACKEND": "pgembed_django.executors.InProcess"}
    settings.PGEMBED_PROVIDERS = {"default": {**LOCAL, "MODEL": "another", "EXECUTOR": here}}

    [space] = Space.objects.filter(spec="app.ArticleEmbedding")
    former = spaces.provider_of(space)

    assert former.model == "played"
    assert isinstance(former.executor, InProcess)
