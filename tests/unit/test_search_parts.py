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


@pytest.mark.parametrize(
    ("text", "words", "required"),
    [
        ("river trout", "river trout", ""),
        ("river -trout", "river", "-trout"),
        ('river "brown trout"', 'river "brown trout"', '"brown trout"'),
        ('river -"brown trout"', "river", '-"brown trout"'),
        ("a well-known river - trout", "a well-known river - trout", ""),
        ('"brown trout" or salmon', '"brown trout" or salmon', '"brown trout" or salmon'),
        ('""', '""', ""),
    ],
)
def test_quotes_and_minus_signs_require_and_other_words_do_not(text, words, required):
    found = statistics.parted(text)

    assert (found[0].strip(), found[1]) == (words, required)


def test_a_long_text_has_no_operators():
    text = 'What is the type of a module? How can one check that it "matches" -- or not?'

    assert statistics.parted(text) == (text, "")


# Keywords


@pytest.mark.parametrize(
    ("function", "options", "others"),
    [(search, SearchOptions, set()), (similar_to, PageOptions, {"among"})],
)
def test_what_passes_keywords_on_declares_those_there_are(function, options, others):
    parameters = inspect.signature(function).parameters.values()
    keywords = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert get_type_hints(options).keys() == keywords - others
