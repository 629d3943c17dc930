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

VALUES = st.dictionaries(
    st.sampled_from(["semantic", "lexical"]),
    st.dictionaries(st.integers(0, 20), st.floats(0.0, 50.0), max_size=10),
)


# Fusing


def test_what_is_first_in_every_ranking_scores_one():
    both = {"semantic": {"a": 0.8, "b": 0.3}, "lexical": {"a": 12.0, "c": 2.0}}

    assert fusion.fuse(both)["a"] == pytest.approx(1.0)
    assert fusion.fuse({"semantic": {"a": 0.8, "b": 0.3}})["a"] == 1.0
    assert fusion.fuse({}) == {}


def test_being_good_in_both_beats_being_first_in_one():
    found = {
        "semantic": {"a": 0.8, "b": 0.7, "x": 0.1},
        "lexical": {"c": 12.0, "b": 11.0},
    }

    assert next(iter(fusion.fuse(found))) == "b"


def test_how_much_better_counts_and_not_the_rank_alone():
    near = {"a": 0.80, "b": 0.79, "x": 0.1}

    assert next(iter(fusion.fuse({"semantic": near, "lexical": {"b": 12.0, "a": 2.0}}))) == "b"
    assert next(iter(fusion.fuse({"semantic": near, "lexical": {"a": 12.0, "b": 2.0}}))) == "a"


def test_a_word_that_few_rows_have_lifts_all_of_them():
    near = {number: 0.9 - number / 100 for number in range(60)}
    found = {"semantic": near, "lexical": {40: 3.0, 45: 2.9}}

    assert list(fusion.fuse(found))[:3] == [40, 45, 0]


def test_of_equals_the_one_found_by_meaning_comes_first():
    assert list(fusion.fuse({"semantic": {"a": 0.5, "b": 0.5}})) == ["a", "b"]


def test_what_can_be_in_one_ranking_only_is_not_held_back():
    found = {"semantic": {"a": 0.5}, "lexical": {"b": 2.0, "a": 1.0}}

    assert fusion.fuse(found, only_in_one={"b"})["b"] == pytest.approx(1.0)
    assert fusion.fuse(found)["b"] == 0.5


@given(VALUES)
def test_a_fusion_has_every_item_once_with_falling_scores(values):
    ordered = {
        name: dict(sorted(items.items(), key=lambda item: -item[1]))
        for name, items in values.items()
    }

    fused = fusion.fuse(ordered)

    assert set(fused) == {item for items in values.values() for item in items}
    assert list(fused.values()) == sorted(fused.values(), reverse=True)
    assert all(0 <= score <= 1 + 1e-9 for score in fused.values())


@given(st.dictionaries(st.integers(), st.floats(-1, 1)))
def test_one_ranking_keeps_its_order(items):
    ordered = dict(sorted(items.items(), key=lambda item: -item[1]))

    assert list(fusion.fuse({"semantic": ordered})) == list(ordered)


# Words


@pytest.mark.parametrize(
    ("text", "words", "required"),
    [
        ("river trout", "river trout", ""),
        ("river -trout", "river", '-"trout"'),
        ('river "brown trout"', 'river "brown trout"', '"brown trout"'),
        ('river -"brown trout"', "river", '-"brown trout"'),
        ("join -os.path", "join", '-"os path"'),
        ("a well-known river - trout", "a well known river trout", ""),
        ('"brown trout" or salmon', 'or salmon "brown trout"', '"brown trout" or salmon'),
        ('""', '""', ""),
    ],
)
def test_quotes_and_minus_signs_require_and_other_words_do_not(text, words, required):
    found = statistics.parted(text)

    assert (" ".join(found[0].split()), found[1]) == (words, required)


def test_a_long_text_has_no_operators():
    text = 'What is the type of a module? How can one check that it "matches" - or not?'

    assert statistics.parted(text) == (text.replace("-", " "), "")


# Keywords


@pytest.mark.parametrize(
    ("function", "options", "others"),
    [(search, SearchOptions, set()), (similar_to, PageOptions, {"among"})],
)
def test_what_passes_keywords_on_declares_those_there_are(function, options, others):
    parameters = inspect.signature(function).parameters.values()
    keywords = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert get_type_hints(options).keys() == keywords - others
