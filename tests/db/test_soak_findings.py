"""Races that the soak found, each forced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pgembed_django.models import StagedVector
from pgembed_django.pipeline import Pipeline
from tests.app.models import Article, ArticleComment
from tests.db.conftest import make_due
from tests.played.provider import PlayedProvider

pytestmark = pytest.mark.django_db(transaction=True)

CHUNKS = ["The first of four.", "This is the second.", "A third one follows", "And now the fourth."]


@pytest.fixture
def make_comment(make_article: Callable[..., Article]) -> Callable[[str], ArticleComment]:
    return lambda text: ArticleComment.objects.create(article=make_article(), text=text)


def embedded_texts(provider: type[PlayedProvider]) -> Counter[str]:
    return Counter(text for text in provider.embedded if text in CHUNKS)


def until_nothing_moves(worker: Pipeline) -> None:
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


def test_chunks_that_come_after_another_has_failed_are_not_paid_for_again(
    provider: type[PlayedProvider], make_worker: Any, make_comment: Any
) -> None:
    comment = make_comment("\n\n".join(["There is trouble.", *CHUNKS]))
    worker = make_worker(batch_size=2, concurrency=3)
    worker.step()
    # All three batches are answered; the first one, with the trouble, is taken before the others.
    until_nothing_moves(worker)

    assert StagedVector.objects.filter(source_pk=comment.pk).count() == len(CHUNKS)
