"""The search page: its options, what it says of values that cannot be used, why a row was found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from library.models import Entry

from pgembed_django.retrieval import query_vectors
from pgembed_django.testing import run_jobs
from tests import played

pytestmark = pytest.mark.django_db

DOCSTRINGS = {
    "math.gcd": "Greatest common divisor.",
    "math.lcm": "Least common multiple.",
    "shutil.rmtree": "Recursively delete a directory tree.",
    "shlex.split": "Split the string using shell-like syntax.",
}
QUERY = "greatest common divisor"


@pytest.fixture(autouse=True)
def _entries() -> None:
    query_vectors.vectors.clear()
    for name, docstring in DOCSTRINGS.items():
        Entry.objects.create(
            name=name,
            kind="function",
            module=name.partition(".")[0],
            docstring=docstring,
            is_public=True,
        )
    run_jobs()


@pytest.fixture
def look(client: Client) -> Callable[..., str]:
    """Search, and return the page."""

    def get(text: str = QUERY, **options: str) -> str:
        page = client.get("/", {"q": text, **options})
        assert page.status_code == 200
        return page.content.decode()

    return get


def names(page: str) -> list[str]:
    return [
        re.sub("<wbr>", "", name)
        for name in re.findall(r'<h2 class="code"><a href="[^"]*">(.*?)</a>', page)
    ]


def notes(page: str) -> list[str]:
    return re.findall(r'<p class="note[^>]*>(.*?)</p>', page)


def test_each_hit_says_why_it_was_found(look):
    page = look()

    assert re.search(
        r"<summary>Found by words \(1st, \d+\.\d\) and meaning \(1st, 0\.\d\d\)</summary>", page
    )
    assert "Found by meaning (4th, " in page
    assert re.search(r"Words: BM25 score \d+\.\d, in characters 0 to 44 of the text, shown", page)
    assert notes(page) == []


def test_the_mode_can_be_chosen(look):
    assert names(look(mode="lexical"))[0] == "math.gcd"
    assert set(names(look(mode="lexical"))) == {"math.gcd", "math.lcm"}
    assert "and meaning (" not in look(mode="lexical")
    assert len(names(look(mode="semantic"))) == 4
    assert "Found by words" not in look(mode="semantic")
    assert '<option value="semantic" selected>meaning</option>' in look(mode="semantic")


def test_the_language_of_the_words_can_be_chosen(look):
    # As written, "divisors" is another word than "divisor".
    assert names(look("divisors", mode="lexical")) == ["math.gcd"]
    page = look("divisors", mode="lexical", language="simple")

    assert names(page) == []
    assert '<option value="simple" selected>' in page


def test_less_similar_entries_can_be_left_out(look):
    assert len(names(look())) == 4
    page = look(min_similarity="0.5")

    assert names(page) == ["math.gcd"]
    assert re.search(r'name="min_similarity"[^>]* value="0\.5"', page)
    assert "<details open" in page.replace(' class="options"', "")
    assert notes(look(min_similarity="1")) == ["Nothing was found that is similar enough."]


def test_the_options_are_closed_until_one_is_chosen(look):
    assert '<details class="options">' in look(mode="", language="", min_similarity="")


@pytest.mark.parametrize("value", ["7", "nan", "much", "<b>", "\0"])
def test_a_similarity_that_is_none_is_told_and_the_rest_is_answered(look, value):
    page = look(min_similarity=value)

    assert "The least similarity is " in notes(page)[0]
    assert "<b>" not in page
    assert len(names(page)) == 4


def test_other_values_that_cannot_be_used_are_told(look):
    page = look(mode="x", language="klingon", reranker="y")

    assert [note.partition(",")[0] for note in notes(page)] == [
        "There is no mode &#x27;x&#x27; here",
        "There is no language &#x27;klingon&#x27; here",
        "There is no reranker &#x27;y&#x27; here",
    ]
    assert len(names(page)) == 4


def test_a_search_by_words_with_a_least_similarity_is_answered_and_says_so(look):
    page = look(mode="lexical", min_similarity="0.5")

    assert "compares no vectors" in notes(page)[0]
    assert names(page)[0] == "math.gcd"


@pytest.fixture
def reranker(settings: Any) -> Iterator[played.Reranking]:
    with played.serving(played.Reranking()) as server:
        server.score = lambda query, passage: float("rmtree" in passage)
        settings.PGEMBED_RERANKERS = {
            "best": {
                "BACKEND": "pgembed_django.rerankers.http.HttpReranker",
                "MODEL": "m",
                "OPTIONS": {"base_url": server.url},
            }
        }
        yield server


def test_the_entries_can_be_reranked_if_there_is_a_reranker(look, reranker):
    assert names(look())[0] == "math.gcd"
    page = look(reranker="best")

    assert names(page)[0] == "shutil.rmtree"
    assert 'value="best" checked' in page


def test_without_a_reranker_nothing_is_said_of_one(look):
    assert "erank" not in look()
