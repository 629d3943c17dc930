"""A hit says how it was found: by which ways, how well, and where in its text."""

from __future__ import annotations

import pytest

from pgembed_django import search, similar_to
from pgembed_django.retrieval import Match
from tests.app.models import Article, Page, PageComment

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_known_queries")]


def test_a_row_found_by_both_ways_says_so(make_article, run_jobs):
    make_article(title="trout", contents="river")
    make_article(title="trout", contents="granite and sand and stone")
    run_jobs()

    first, second = search(Article, "river trout").hits
    by_meaning, by_words = first.matched_by

    assert first.similarity is not None
    assert by_meaning == Match("semantic", 1, first.similarity, first.start, first.end)
    assert by_words[:2] == ("lexical", 1)
    assert by_words[3:] == (first.start, first.end) == (0, len("trout\n\nriver"))
    assert [match[:2] for match in second.matched_by] == [("semantic", 2), ("lexical", 2)]
    assert all(
        better.score > worse.score
        for better, worse in zip(first.matched_by, second.matched_by, strict=True)
    )


def test_a_score_is_that_of_its_own_way(make_article, run_jobs):
    make_article(title="trout", contents="river")
    make_article(title="trout", contents="granite")
    run_jobs()

    scores = {
        mode: [hit.score for hit in search(Article, "river trout", mode=mode).hits]
        for mode in ("semantic", "lexical")
    }
    hits = search(Article, "river trout").hits

    for place, mode in enumerate(("semantic", "lexical")):
        assert [hit.matched_by[place].score for hit in hits] == scores[mode]


@pytest.mark.parametrize("mode", ["semantic", "lexical"])
def test_a_search_by_one_way_finds_by_that_one(make_article, run_jobs, mode):
    make_article(title="trout")
    run_jobs()

    [hit] = search(Article, "trout", mode=mode).hits

    assert [match[:3] for match in hit.matched_by] == [(mode, 1, hit.score)]


def test_a_row_without_the_words_was_found_by_its_meaning(make_article, run_jobs):
    make_article(title="trout", contents="")
    make_article(title="granite", contents="")
    run_jobs()

    [_, hit] = search(Article, "trout").hits

    assert [match[:2] for match in hit.matched_by] == [("semantic", 2)]


def test_similar_rows_were_found_by_their_meaning(make_article, run_jobs):
    start = make_article(title="trout")
    make_article(title="trout")
    run_jobs()

    [hit] = similar_to(start).hits

    assert hit.matched_by == (Match("semantic", 1, hit.score, hit.start, hit.end),)


def test_without_the_querys_vector_rows_were_found_by_their_words(make_article, run_jobs, provider):
    make_article(title="trout")
    run_jobs()
    provider.is_down = True

    [hit] = search(Article, "trout").hits

    assert [match[:2] for match in hit.matched_by] == [("lexical", 1)]


def test_each_way_names_the_passage_that_it_matched(run_jobs):
    # To the tests' provider "the" is a word like any other; full text passes over it.
    page = Page.objects.create(slug="p", body="")
    comment = PageComment.objects.create(page=page, text="The the the the. A trout swims fast.")
    PageComment.objects.create(page=page, text="The the the the. Granite is hard.")
    run_jobs()

    [hit] = [hit for hit in search(PageComment, "the the trout").hits if hit.instance == comment]
    places = {match.mode: comment.text[match.start : match.end] for match in hit.matched_by}

    assert places == {"semantic": "The the the the.", "lexical": "A trout swims fast."}
    assert hit.passage in places.values()


def test_ranks_count_all_rows_and_not_those_of_the_page(make_article, run_jobs):
    for number in range(60):
        make_article(title="trout", contents="pebble " * number)
    run_jobs()

    page = search(Article, "trout", mode="lexical", limit=5, offset=53)

    assert [match.rank for hit in page.hits for match in hit.matched_by] == [54, 55, 56, 57, 58]
