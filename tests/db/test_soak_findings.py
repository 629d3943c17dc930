"""Races that the soak found, each forced."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from benchmarks.soak import leases, processes, repeats
from benchmarks.soak.server import Delivery
from pgembed_django import store
from pgembed_django.core import faults
from pgembed_django.declaration import specs
from pgembed_django.models import Job, StagedVector
from pgembed_django.queue.work import Work
from tests.app.models import Article, ArticleComment, ArticleCommentEmbedding
from tests.db.conftest import backend_pid, claim, expire_leases, make_due, reap
from tests.played.provider import PlayedProvider

pytestmark = pytest.mark.django_db(transaction=True)

CHUNKS = ["The first of four.", "This is the second.", "A third one follows", "And now the fourth."]


@pytest.fixture
def make_comment(make_article: Callable[..., Article]) -> Callable[[str], ArticleComment]:
    # The article itself is not embedded.
    return lambda text: ArticleComment.objects.create(
        article=make_article(published_time=None), text=text
    )


def embedded_texts(provider: type[PlayedProvider]) -> Counter[str]:
    return Counter(text for text in provider.embedded if text in CHUNKS)


def until_nothing_moves(worker: Work) -> None:
    while worker.step():
        pass


def test_chunks_that_came_beside_a_failed_one_are_not_paid_for_again(
    provider: type[PlayedProvider], make_worker: Any, make_comment: Any
) -> None:
    make_comment("\n\n".join([CHUNKS[0], "There is trouble.", *CHUNKS[1:]]))

    for _ in range(3):
        make_due()
        until_nothing_moves(make_worker())

    assert embedded_texts(provider) == Counter(CHUNKS)


def test_a_long_text_tells_how_far_it_has_come(
    provider: type[PlayedProvider], make_worker: Any, make_comment: Any, settings: Any
) -> None:
    settings.PGEMBED_BATCH_SIZE = 2
    make_comment("\n\n".join(CHUNKS))
    worker = make_worker(concurrency=1)

    worker.step()
    worker.step()

    [job] = Job.objects.all()
    assert (job.status, job.items_done, job.items_total) == ("running", 2, 4)
    until_nothing_moves(worker)
    [job] = Job.objects.all()
    assert (job.status, job.items_done, job.items_total) == ("succeeded", 4, 4)


def test_chunks_that_come_after_another_has_failed_are_not_paid_for_again(
    provider: type[PlayedProvider], make_worker: Any, make_comment: Any, settings: Any
) -> None:
    settings.PGEMBED_BATCH_SIZE = 2
    comment = make_comment("\n\n".join(["There is trouble.", *CHUNKS]))
    worker = make_worker(concurrency=3)
    worker.step()
    # All three batches are answered; the first one, with the trouble, is taken before the others.
    until_nothing_moves(worker)

    assert StagedVector.objects.filter(source_pk=comment.pk).count() == len(CHUNKS)


def test_text_that_is_stored_early_leaves_staged_vectors_for_the_completion(
    provider: type[PlayedProvider], make_worker: Any, make_comment: Any, settings: Any
) -> None:
    settings.PGEMBED_BATCH_SIZE = 2
    comment = make_comment("\n\n".join(CHUNKS))
    worker = make_worker(concurrency=1)
    worker.step()
    [unit] = worker.handler.units.by_id.values()
    worker.step()
    assert StagedVector.objects.exists()
    worker.handler.writer.store_text([unit])
    until_nothing_moves(worker)

    assert embedded_texts(provider) == Counter(CHUNKS)
    assert ArticleCommentEmbedding.objects.filter(embedding=None).count() == 0
    assert Job.objects.get(source_pk=comment.pk, spec="app.ArticleCommentEmbedding").attempts == 0


def test_a_connection_lost_while_the_vector_type_is_looked_up_is_known_as_lost(
    connect: Callable[..., psycopg.Connection],
) -> None:
    connection.close()
    connect(autocommit=True).execute("SELECT pg_terminate_backend(%s)", [backend_pid()])

    with pytest.raises(OperationalError) as caught:
        store.ask_stored(specs.of(Article)[0], ["1"], [], using="default")()

    assert faults.is_lost_connection(caught.value)
    connection.close()


def test_a_lease_that_ran_out_without_a_blow_explains_one_repeat(make_article):
    """Its worker got no processor, say, or a writer kept its job locked."""
    make_article()
    claimed = time.monotonic()
    claim()
    expire_leases()
    reap()
    blows = leases.ran_out({"#1": "worker-1"}, [])

    def unexplained(*seconds: float) -> list[str]:
        times = [Delivery(claimed + after, "worker-1", "one") for after in seconds]
        return list(repeats.count(times, carried={}, blows=blows, ignored="-").unexplained)

    assert unexplained(0, 100) == []
    assert unexplained(100, 200) == ["one"]
    # A blow explains what it did before: what came shortly before it.
    killed = processes.Blow("worker-1", "SIGKILL", claimed, claimed + 60)
    assert leases.ran_out({"#1": "worker-1"}, [killed]) == []
