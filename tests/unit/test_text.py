from __future__ import annotations

import unicodedata
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgembed_django.core.text import clean, digest, encodable
from tests.unit.joining import JOINING

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


# encodable


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
