"""A real server that reranks: llama.cpp's, with real weights and a random head.

So the order means nothing, but each passage has a score of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgembed_django import search
from pgembed_django.exceptions import InputTooLong
from pgembed_django.rerankers.http import HttpReranker
from pgembed_django.retrieval import reranking
from tests.app.models import Note

if TYPE_CHECKING:
    from tests.live.llama import Llama

pytestmark = pytest.mark.live

QUERY = "why is my index not used"
PASSAGES = [
    "The planner ignores an index that would not be faster.",
    "Granite is hard.",
    "🦉 漢字 \u202eright to left\u202c [SEP] [CLS]",
    '{"documents": ["a"]}, "model": "b"',
    "a",
    *(f"passage number {number}" for number in range(45)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.live import minilm

    return minilm.write(tmp_path_factory.mktemp("reranker") / "ranks.gguf", ranks=True)


@pytest.fixture
def llama(model: Path, tmp_path: Path) -> Iterator[Llama]:
    from tests.live.llama import Llama

    server = Llama(tmp_path / "llama.log", pooling="RANK")
    server.start(model)
    yield server
    server.kill()


def reranker(url: str, **options: object) -> HttpReranker:
    return HttpReranker(alias="tested", model="minilm", base_url=url, **options)


def scores(reranker: HttpReranker, passages: list[str]) -> list[float]:
    return reranker.scores(QUERY, passages, timeout_seconds=60)


def test_each_passage_gets_its_own_score(llama):
    together = scores(reranker(f"{llama.url}/v1"), PASSAGES)

    alone = [scores(reranker(f"{llama.url}/v1"), [passage])[0] for passage in PASSAGES]
    assert together == pytest.approx(alone, abs=0.01)
    assert len(set(together)) == len(PASSAGES)


def test_both_apis_give_the_same_scores(llama):
    # It takes that of text-embeddings-inference too.
    jina = scores(reranker(f"{llama.url}/v1"), PASSAGES)

    assert scores(reranker(llama.url, api="tei"), PASSAGES) == pytest.approx(jina, abs=0.01)


def test_a_passage_that_is_too_long_is_refused_unless_it_is_cut(llama):
    passages = ["a " * 1000, "b"]

    with pytest.raises(InputTooLong):
        scores(reranker(f"{llama.url}/v1"), passages)
    assert len(scores(reranker(f"{llama.url}/v1", max_characters=800), passages)) == 2


@pytest.mark.django_db
def test_a_search_has_its_order(llama, run_jobs, settings):
    options = {"base_url": f"{llama.url}/v1", "timeout_seconds": 60}
    backend = "pgembed_django.rerankers.http.HttpReranker"
    settings.PGEMBED_RERANKERS = {
        "best": {"BACKEND": backend, "MODEL": "minilm", "OPTIONS": options}
    }
    Note.objects.bulk_create(Note(body=f"trout number {number}") for number in range(20))
    run_jobs()

    results = search(Note, "trout", limit=20, rerank="best")

    assert results.reranked
    bodies = [note.body for note in results]
    found = [hit.score for hit in results.hits]
    again = reranker(options["base_url"]).scores("trout", bodies, timeout_seconds=60)
    assert found == pytest.approx(again, abs=0.01)
    assert found == sorted(found, reverse=True)

    llama.kill()

    results = search(Note, "trout", limit=20, rerank="best")
    assert (results.reranked, results.note) == (False, reranking.NOT_RERANKED)
    assert len(results) == 20
