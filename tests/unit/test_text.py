from __future__ import annotations

import time
import unicodedata
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgembed_django.text import clean, cut, digest, encodable, reach, reach_back, trim
from tests.unit.joining import FAMILY, GERMANY, JOINING, joining_text, true_boundaries

# clean


def test_clean_text_fits_postgres_and_utf8():
    assert clean(" \0a\r\nb\rc \ud800 cafe\u0301\n") == "a\nb\nc \ufffd caf\xe9"


def test_two_halves_of_a_surrogate_pair_become_their_character():
    assert clean("\ud83d\ude00 \ude00\ud83d") == "\U0001f600 \ufffd\ufffd"


@given(st.text(st.sampled_from(JOINING) | st.characters()))
@example("\r\r\n")
@example("\r\0\n")
@example("\ud83d\0\ude00")
@example("\u2000\u0301")
def test_cleaning_twice_changes_nothing_more(text):
    cleaned = clean(text)

    assert clean(cleaned) == cleaned
    assert "\0" not in cleaned
    assert "\r" not in cleaned
    assert cleaned == cleaned.strip()
    assert cleaned.encode().decode() == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)


def test_a_pile_of_combining_marks_is_cleaned_in_parts():
    marks = "\u0301\u0323" * 10_000

    cleaned = clean(f"e{marks}")

    assert max(len(part) for part in cleaned.split("\u034f")) <= 1_001
    assert cleaned.replace("\u034f", "").count("\u0301") == 10_000
    assert clean(cleaned) == cleaned
    assert "\u034f" not in clean(f"e{marks[:900]} and {'─' * 900}")


# digest


def test_a_digest_never_changes_for_it_is_stored():
    framed = b"\0\0\0\0\0\0\0\1a" + b"\0\0\0\0\0\0\0\2\xc3\xa9"

    assert digest("a", "\xe9") == sha256(framed).digest()


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
@example(["ab", "c"], ["a", "bc"])
@example([], [""])
@example([""], ["", ""])
def test_digests_are_equal_only_for_the_same_parts(parts, others):
    assert (digest(*parts) == digest(*others)) == (parts == others)


def test_a_str_is_digested_as_its_utf8():
    assert digest("\xe9") == digest(b"\xc3\xa9")
    assert len(digest()) == len(digest("\ud800")) == 32


# reach and cut


@given(joining_text, st.integers(0, 40), st.data())
def test_reach_is_the_furthest_that_fits(text, limit, data):
    weights = {char: data.draw(st.integers(0, 3)) for char in set(text)}

    def count(part: str) -> int:
        return sum(weights[char] for char in part)

    ends = [end for end in range(len(text) + 1) if count(text[:end]) <= limit]
    starts = [start for start in range(len(text) + 1) if count(text[start:]) <= limit]

    assert reach(text, limit, count=count) == max(ends)
    assert reach_back(text, limit, start=0, end=len(text), count=count) == min(starts)


def test_reach_measures_seldom_since_a_tokenizer_is_slow():
    measured = []

    def count(part: str) -> int:
        measured.append(len(part))
        return len(part.split())

    end = reach("some words of many a size " * 10_000, 400, count=count)

    assert len(measured) < 15
    assert max(measured) < 3 * end


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("hello world", 11, "hello world"),
        ("hello world", 10, "hello"),
        ("hello world", 5, "hello"),
        ("hello   world", 7, "hello"),
        ("Donaudampfschiff", 5, "Donau"),
        ("a Donaudampfschiff", 7, "a Donau"),
        ("\u6f22\u5b57\u304b\u306a", 2, "\u6f22\u5b57"),
        (f"{FAMILY}{FAMILY}", 7, FAMILY),
        (FAMILY, 3, ""),
        ("hello", 0, ""),
        ("", 5, ""),
    ],
)
def test_a_cut_ends_after_a_word_else_between_graphemes(text, limit, expected):
    assert cut(text, limit) == expected


def test_a_cut_counts_in_any_unit():
    assert cut("one two three four", 3, count=lambda text: len(text.split())) == "one two three"


@given(joining_text, st.integers(0, 20))
def test_a_cut_is_a_beginning_that_fits(text, limit):
    beginning = cut(text, limit)

    assert text.startswith(beginning)
    assert len(beginning) <= limit
    assert len(beginning) in true_boundaries(text)


@pytest.mark.parametrize(
    ("encoding", "stored"),
    [
        ("UTF8", "café 日 …"),
        ("SQL_ASCII", "café 日 …"),
        ("LATIN1", r"café \u65e5 \u2026"),
        ("WIN1252", r"café \u65e5 …"),
        ("MULE_INTERNAL", r"caf\xe9 \u65e5 \u2026"),
    ],
)
def test_what_an_encoding_has_no_character_for_is_escaped(encoding, stored):
    assert encodable("café 日 …", encoding) == stored


@pytest.mark.parametrize("encoding", ["KOI8R", "KOI8U", "WIN1251", "ISO_8859_5"])
def test_what_an_encoding_has_no_character_for_may_be_replaced(encoding):
    assert encodable("чай 日", encoding, errors="replace") == "чай ?"


@given(joining_text)
def test_trimming_loses_only_white_space_and_no_mark(text):
    start, end = trim(text, 0, len(text))

    assert not (text[:start] + text[end:]).strip()
    assert {start, end} <= true_boundaries(text) | {0, len(text)}


def seconds_to_cut(text: str) -> float:
    """Return the CPU seconds of the best of three runs, in this thread."""

    def once() -> float:
        began = time.thread_time()
        cut(text, 1_001)
        return time.thread_time() - began

    return min(once() for _ in range(3))


def test_what_follows_the_cut_is_not_read():
    """Read as a whole, 500 times as many flags take many times as long."""
    assert seconds_to_cut(GERMANY * 500_000) < 10 * seconds_to_cut(GERMANY * 1_000)
