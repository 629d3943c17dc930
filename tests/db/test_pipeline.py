from __future__ import annotations

import pytest

from pgembed_django import specs
from pgembed_django.models import Job
from pgembed_django.search import search
from pgembed_django.testing import run_jobs
from tests.app.models import Article, ArticleEmbedding

pytestmark = pytest.mark.django_db


def test_a_saved_row_is_found_by_its_meaning() -> None:
    fish = Article.objects.create(title="Fish", contents="A trout swims in the river.", published_time="2026-01-01T00:00Z")
    Article.objects.create(title="Stones", contents="Granite is hard.", published_time="2026-01-01T00:00Z")

    run_jobs()

    [found] = search(Article, "a trout in the river", limit=1)
    assert found == fish
    assert "trout" in found.passage
    assert 0 < found.score <= 1
