"""The weights of words, and the conditions that find what can score enough. No database."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgembed_django.retrieval import bm25
from pgembed_django.retrieval.bm25 import Word

WORDS = st.lists(
    st.tuples(st.floats(0.001, 20), st.floats(0, 1)).map(lambda drawn: Word("", *drawn)),
    max_size=12,
).map(lambda words: [word._replace(lexeme=f"w{at}") for at, word in enumerate(words)])


def matches(condition: str, present: set[str]) -> bool:
    """Return whether a passage with these words matches a tsquery."""
    tested = re.sub(r"'(\w+)'", lambda found: str(found[1] in present), condition)
    return bool(eval(tested.replace("&", " and ").replace("|", " or ")))


def test_a_rare_word_weighs_more_and_one_that_all_have_hardly_anything():
    def bound(share, times=1):
        word = bm25.word("trout", times=times, share=share, passages=1000, k1=1.2)
        return word.bound

    assert bound(0.001) == pytest.approx(2.2 * math.log1p(999.5 / 1.5))
    assert bound(0.001) > bound(0.1) > bound(1.0) > 0
    assert bound(0.1, times=3) == pytest.approx(3 * bound(0.1))


@given(WORDS.filter(bool), st.data())
def test_whatever_can_score_enough_is_found(words, data):
    present = data.draw(st.sets(st.sampled_from(words), min_size=1))
    # Most often just what they can score: then a condition must not miss one of them.
    least = data.draw(st.sampled_from([1.0, 1.0, 0.9, 0.5])) * sum(one.bound for one in present)

    condition = bm25.condition(words, least=least)

    assert matches(condition, {word.lexeme for word in present})


def test_what_cannot_score_enough_is_not_found():
    words = [Word("a", 5.0, 0.1), Word("b", 3.0, 0.1), Word("c", 2.0, 0.1)]

    assert bm25.condition(words, least=0.0) == "'a' | 'b' | 'c'"
    assert bm25.condition(words, least=3.0) == "'a' | 'b'"
    assert bm25.condition(words, least=5.0) == "'a' | 'b' & ('c')"
    assert bm25.condition(words, least=6.0) == "'a' & ('b' | 'c')"
    assert bm25.condition(words, least=10.0) == "'a' & ('b' & ('c'))"


def test_a_condition_on_many_words_stays_short():
    words = [Word(f"w{at}", 1.0 + at / 100, 0.01) for at in range(64)]

    for part in range(1, 64):
        condition = bm25.condition(words, least=part * 1.2)
        assert 0 < condition.count("'") / 2 <= bm25.MOST_OPERANDS


@given(WORDS, st.integers(0, 10**6))
def test_the_threshold_is_none_that_nothing_can_reach(words, most):
    least = bm25.threshold(words, passages=10**5, most=most)

    assert 0.0 <= least <= sum(word.bound for word in words) * (1 + 1e-9)


def test_the_threshold_leaves_about_as_many_as_are_wanted():
    words = [Word("a", 5.0, 0.001), Word("b", 3.0, 0.1), Word("c", 1.0, 0.5)]

    def least(most):
        return bm25.threshold(words, passages=100_000, most=most)

    assert least(100_000) == 0.0
    # Half of a tenth have both of the commoner words, and so does one in a thousand the rarest.
    assert 3.0 < least(6_000) <= 4.0
    assert 4.0 < least(120) <= 5.0


def test_lexemes_are_quoted():
    assert bm25.any_of(["it's", "a\\b", "x"]) == r"'it''s' | 'a\\b' | 'x'"
    assert bm25.any_of([]) == ""
