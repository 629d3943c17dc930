from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgembed_django.core import signature


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("timed out after 30.5 s", "timed out after # s"),
        ("no row 17, 18, 19", "no row #"),
        ("the key 'it is here' is unknown", "the key … is unknown"),
        ('answered "no such model" and «rien»', "answered … and …"),
        ("I can't and won't", "I can't and won't"),
        ("http://localhost:11434 answered 503: busy", "http://localhost:# answered 503: busy"),
        ("HTTP 429, request req_8Hj2k", "HTTP 429, request #"),
        ("at 0x7f9a01, in 550e8400-e29b-41d4-a716-446655440000", "at #, in #"),
        ("two\nlines   and\ttabs", "two lines and tabs"),
        ("nul\0byte", "nulbyte"),
        ("", "unknown error"),
        (" \n ", "unknown error"),
        ("short", "short"),
    ],
)
def test_the_details_go_and_the_kind_stays(error: str, expected: str) -> None:
    assert signature.of(error) == expected


def test_errors_of_one_kind_have_one_signature() -> None:
    errors = [
        f"http://10.0.0.{n}:11434 answered 400: {n * 7} tokens are more than 8192 (id '{n}')"
        for n in range(20)
    ]

    assert len({signature.of(error) for error in errors}) == 1


def test_two_answers_with_different_statuses_stay_apart() -> None:
    assert signature.of("x answered 400: y") != signature.of("x answered 413: y")


@given(st.text() | st.text(alphabet="'\"`“”«»…#012aé., -:_HTP", max_size=200))
@example('0""')
@example("x" * 157 + '"a"b')
def test_a_signature_is_short_one_line_and_its_own_signature(error: str) -> None:
    found = signature.of(error)

    assert 0 < len(found) <= signature.MAX_CHARACTERS
    assert "\n" not in found
    assert "\0" not in found
    assert signature.of(found) == found


def test_a_traceback_is_no_part_of_it():
    error = "ValueError: no\nTraceback (most recent call last):\n  File x, line 3, in call"

    assert signature.of(error) == "ValueError: no"
