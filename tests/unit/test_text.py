from __future__ import annotations

import time
import unicodedata
from hashlib import sha256
from itertools import accumulate

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from pgembed_django.text import clean, cut, digest, encodable, is_boundary, reach, reach_back, trim

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
GERMANY = "\U0001f1e9\U0001f1ea"
THUMB = "\U0001f44d\U0001f3fd"

# Where clusters are made: one sample at least of each class of UAX #29, and plain letters.
JOINING = (
    "ab .\r\n\t\0\x85\u2028\xad\u200b"  # letters, spaces, controls
    "\u0301\u0308\u20dd\ufe0f\U000e0101\u200c\u200d\uff9e\u302e"  # extenders
    "\u0903\u0e33\u0eb3\u093e\U0001d166"  # spacing marks
    "\u0600\u06dd\u070f\u0890\u0d4e\U000110bd\U000113d1\U00011f02"  # prefixes
    "\u1100\u1160\u11a8\uac00\uac01\ua960\ud7b0\ud7cb\U00016d63\U00016d67"  # syllables
    "\u0915\u094d\u0937\u093c\u0995\u09cd\u1b13\u1b44\u1780\u17d2"  # Indic conjuncts
    "\U0001f469\U0001f467\u2764\xa9\U0001f3fd\U0001f1e9\U0001f1ea\U000e0067\U000e007f"  # emoji
    "\u0378\U0001fadf\U00020000\U0002ebf0\U000323b0\ud800\ufffd\uffff"  # unassigned and odd
)
joining_text = st.text(st.sampled_from(JOINING) | st.characters(), max_size=30)


def true_boundaries(text: str) -> set[int]:
    return {0, *accumulate(len(cluster) for cluster in regex.findall(r"\X", text))}


def allowed_boundaries(text: str) -> set[int]:
    return {index for index in range(len(text) + 1) if is_boundary(text, index)}


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


# is_boundary


@given(joining_text)
@example("\u0915\u094d\u200d\u0937")
@example("\u0301\u0915")
@example(GERMANY * 2 + "\U0001f1eb")
@example("\n\u0301 \u0301")
def test_no_cut_is_allowed_inside_a_grapheme(text):
    assert allowed_boundaries(text) <= true_boundaries(text)


@given(joining_text, st.data())
def test_a_boundary_known_already_saves_looking_before_it(text, data):
    start = data.draw(st.sampled_from(sorted(true_boundaries(text))))

    allowed = {i for i in range(start, len(text) + 1) if is_boundary(text, i, start=start)}

    assert allowed <= true_boundaries(text)


@pytest.mark.parametrize(
    "around", ["a{}a", "\u0915{}\u0301\u0915", "\u0915\u094d{}\u0915", "\u1100{}\u11a8"]
)
def test_every_character_is_judged_safely(around):
    texts = [around.format(chr(code)) for code in (*range(0x20000), *range(0xE0000, 0xE1000))]

    assert [t for t in texts if not allowed_boundaries(t) <= true_boundaries(t)] == []


@pytest.mark.parametrize(
    "text",
    [
        "Plain English, with 2 lines.\nAnd a tab\t.",
        "d\xe9j\xe0 vu, gro\xdf, \u010de\u0161tina",
        "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
        "\u6f22\u5b57\u304b\u306a\u3002\ud55c\uad6d\uc5b4",
        "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
        f"x{FAMILY}y{GERMANY}{GERMANY}{THUMB}\u2764\ufe0f1\ufe0f\u20e3",
        "e\u0301\u0308\nz",
    ],
)
def test_in_common_text_every_boundary_is_found(text):
    assert allowed_boundaries(text) == true_boundaries(text)


def test_a_character_from_a_later_unicode_is_not_torn_off():
    assert allowed_boundaries("a\u0378b") == {0, 3}


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


def test_a_megabyte_of_flags_is_cut_at_once():
    began = time.process_time()

    cut(GERMANY * 500_000, 1_001)

    assert time.process_time() - began < 1
