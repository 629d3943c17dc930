"""A worker whose model runs in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from django.db.models import Q

from pgembed_django import conf, providers
from pgembed_django.declaration import specs
from pgembed_django.embedding.handler import EmbeddingHandler
from pgembed_django.executors.own_process import DEPTH
from pgembed_django.models import Job
from pgembed_django.queue.work import Work
from pgembed_django.testing import run_jobs
from tests.app.models import Article, ArticleEmbedding
from tests.db.conftest import make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def provider(settings: Any) -> Any:
    settings.PGEMBED_PROVIDERS = {
        "default": {
            "BACKEND": "tests.providers.PlayedLocalProvider",
            "MODEL": "played",
            "DIMENSIONS": 4,
            "EXECUTOR": {"BACKEND": "pgembed_django.executors.OwnProcess"},
        }
    }
    found = providers.get()
    yield found
    found.close()


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
    handler = EmbeddingHandler({spec.key: spec for spec in specs.of(Article)}, using="default")
    work = Work(handler, using="default", worker_id=0, settings=conf.current())
    work.step()  # its pools are made

    assert provider.concurrency == DEPTH
    assert handler.room == min(conf.current().claim_limit, 2 * 256 * DEPTH)
    work.close()
