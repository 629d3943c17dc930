from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgembed_django.chunking import is_boundary
from tests.unit.joining import FAMILY, GERMANY, THUMB, joining_text, true_boundaries


def allowed_boundaries(text: str) -> set[int]:
    return {index for index in range(len(text) + 1) if is_boundary(text, index)}


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


@pytest.mark.slow
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
