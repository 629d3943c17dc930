"""Fusing and choosing words, without a database."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgembed_django import search, similar_to
from pgembed_django.retrieval import fusion, statistics
from pgembed_django.retrieval.searching import PageOptions, SearchOptions

RANKINGS = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=10), max_size=3)


# Fusing


def test_what_is_first_in_every_ranking_scores_one():
    assert fusion.fuse([["a", "b"], ["a", "c"]])["a"] == 1.0
    assert fusion.fuse([["a", "b"]])["a"] == 1.0
    assert fusion.fuse([]) == {}


def test_being_in_both_beats_being_first_in_one():
    assert next(iter(fusion.fuse([["a", "b"], ["c", "b"]]))) == "b"


def test_of_equals_the_earlier_ranking_comes_first():
    assert list(fusion.fuse([["a"], ["b"]])) == ["a", "b"]


def test_what_can_be_in_one_ranking_only_is_not_held_back():
    assert fusion.fuse([["a"], ["b", "a"]], only_in_one={"b"}) == {
        "a": pytest.approx(43 / 44),
        "b": 1.0,
    }


@given(RANKINGS)
def test_a_fusion_has_every_item_once_with_falling_scores(rankings):
    fused = fusion.fuse(rankings)

    assert set(fused) == {item for ranking in rankings for item in ranking}
    assert list(fused.values()) == sorted(fused.values(), reverse=True)
    assert all(0 < score <= 1 + 1e-9 for score in fused.values())


@given(st.lists(st.integers(), unique=True))
def test_one_ranking_keeps_its_order(ranking):
    assert list(fusion.fuse([ranking])) == ranking


# Words


def test_common_words_do_not_find_where_rarer_ones_do():
    common = {"return": 0.3, "use": 0.15, "file": 0.1}

    def rarest(chunks):
        return statistics.rarest(
            ["return", "trout", "use", "file"], common, most_matches=20_000, chunks=chunks
        )

    assert rarest(1_000_000) == ["trout"]
    assert rarest(150_000) == ["trout", "file"]
    assert rarest(10_000) == ["trout", "file", "use", "return"]


def test_the_rarest_word_is_looked_for_at_any_price():
    assert statistics.rarest(["a"], {"a": 1.0}, most_matches=1, chunks=10**9) == ["a"]
    assert statistics.rarest([], {}, most_matches=1, chunks=10**9) == []


def test_a_query_with_operators_is_looked_for_as_it_is_written():
    def asked(text, *, tree="'trout'"):
        return statistics.words_of(
            text, lexemes=["trout", "use"], written="'written'", tree=tree, common={}, chunks=1.0
        )

    assert asked("trout use").finding == "'trout' | 'use'"
    assert asked('"trout use"').finding == "'written'"
    assert asked("use -trout").finding == "'written'"
    assert not asked("-trout", tree="T")


def test_a_pasted_text_finds_by_its_rarest_words_and_has_no_operators():
    many = [f"word{number}" for number in range(100)]

    def asked(text, *, chunks):
        return statistics.words_of(
            text, lexemes=many, written="'written'", tree="'word1'", common={}, chunks=chunks
        )

    found = asked('He said "word1 word2" and more', chunks=10**6)
    assert found.finding.count("|") == statistics.MOST_WORDS - 1
    assert found.ranking.count("|") == 99
    assert asked("and -word1 more", chunks=1.0).finding.count("|") == 99


def test_common_words_that_do_not_find_rank_all_the_same():
    found = statistics.words_of(
        "the trout",
        lexemes=["the", "trout"],
        written="",
        tree="'the' & 'trout'",
        common={"the": 1.0},
        chunks=10**9,
    )

    assert (found.finding, found.ranking) == ("'trout'", "'the' | 'trout'")


def test_lexemes_are_quoted():
    assert statistics.any_of(["it's", "a\\b", "x"]) == r"'it''s' | 'a\\b' | 'x'"
    assert statistics.any_of([]) == ""


# Keywords


@pytest.mark.parametrize(
    ("function", "options", "others"),
    [(search, SearchOptions, set()), (similar_to, PageOptions, {"among"})],
)
def test_what_passes_keywords_on_declares_those_there_are(function, options, others):
    parameters = inspect.signature(function).parameters.values()
    keywords = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert get_type_hints(options).keys() == keywords - others
