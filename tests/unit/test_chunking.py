from __future__ import annotations

import random
import re
import unicodedata
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.chunking import kinds
from pgembed_django.chunking import TOKEN, Chunk, Chunker, truncate
from pgembed_django.core.text import clean, digest

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"

chunkers = st.builds(
    lambda size, share, unit: Chunker(size=size, overlap=int(size * share), unit=unit),
    size=st.integers(1, 40),
    share=st.floats(0, 0.99),
    unit=st.sampled_from(["tokens", "characters"]),
)
SPACED = ["word", "Donaudampfschiff", "42", ". ", "? ", " ", "  ", "\n", "\n\n"]
UNSPACED = ["\u6f22\u5b57", "\u3002", "\u0928\u092e\u0938\u094d\u0924\u0947"]
CLUSTERED = [FAMILY, FLAG, "e\u0301\u0308", " \u0301", "\u0600"]
pieces = st.sampled_from(SPACED + UNSPACED + CLUSTERED)
texts = st.lists(pieces | st.characters(), max_size=60).map("".join).map(clean)


def estimate_tokens(text: str) -> int:
    return len(re.findall(TOKEN, text, re.VERBOSE))


def count_in(chunker: Chunker, text: str) -> int:
    return len(text) if chunker.unit == "characters" else estimate_tokens(text)


def boundaries(text: str) -> set[int]:
    return {0, *accumulate(len(cluster) for cluster in regex.findall(r"\X", text))}


def passages(text: str, **options: object) -> list[str]:
    options = {"overlap": 0, "unit": "characters", **options}
    return [chunk.text for chunk in Chunker(**options).split(text)]


def make_article(paragraphs: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(500)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(5, 20))).capitalize() + "."

    return [" ".join(sentence() for _ in range(rng.randint(1, 5))) for _ in range(paragraphs)]


@given(chunkers, texts)
def test_chunks_are_slices_that_hold_every_visible_character(chunker, text):
    missing = list(text)
    for position, chunk in enumerate(chunker.split(text)):
        assert chunk.text == text[chunk.start : chunk.end]
        assert chunk.text.strip()
        assert (chunk.position, chunk.digest) == (position, digest(chunk.text))
        missing[chunk.start : chunk.end] = " " * len(chunk.text)

    assert not "".join(missing).strip()


@given(chunkers, texts)
def test_only_a_single_grapheme_exceeds_the_size(chunker, text):
    for chunk in chunker.split(text):
        if count_in(chunker, chunk.text) > chunker.size:
            # Next to what a newer Unicode may join, more is kept together.
            rare = regex.search(r"[\p{Cn}\p{Cf}]", chunk.text)
            # Python's own tables may be older than those of regex.
            is_new = any(unicodedata.category(one) in {"Cn", "Cf"} for one in chunk.text)
            assert rare or is_new or len(regex.findall(r"\X", chunk.text)) == 1


@given(chunkers, texts)
def test_neighbours_move_forward_and_share_the_overlap_at_most(chunker, text):
    for before, after in pairwise(chunker.split(text)):
        assert before.start < after.start
        assert before.end < after.end
        assert count_in(chunker, text[after.start : before.end]) <= chunker.overlap


@given(chunkers, texts)
@example(Chunker(size=3, overlap=2, unit="characters"), FLAG * 9)
@example(Chunker(size=2, overlap=1, unit="characters"), "a \u0301b c \u0301d")
def test_no_grapheme_is_torn(chunker, text):
    for chunk in chunker.split(text):
        assert {chunk.start, chunk.end} <= boundaries(text)


@given(chunkers, texts.filter(bool))
def test_a_text_that_fits_is_one_chunk(chunker, text):
    chunks = chunker.split(text)

    if count_in(chunker, text) <= chunker.size:
        assert chunks == [Chunk(0, 0, len(text), text, digest(text))]


@given(st.text())
@example("")
@example("\r\n")
def test_text_that_is_not_clean_is_cut_too_unless_it_is_blank(text):
    assert bool(Chunker(size=5, overlap=2).split(text)) == bool(text.strip())


@pytest.mark.parametrize(
    ("marked", "size"),
    [
        pytest.param("One two. Three\nfour.|\n\nFive six.\nSeven. Eight", 36, id="paragraph"),
        pytest.param("One two. Three\nfour.|\n \t\nFive six.\nSeven. Eight", 36, id="almost blank"),
        pytest.param("One two. Three|\nfour. Five six", 24, id="else line"),
        pytest.param('One two "three four."| Five six', 27, id="else sentence"),
        pytest.param("\u6f22\u5b57\u6f22\u300d\u3002|\u304b\u306a\u304b", 7, id="without spaces"),
        pytest.param("\u6f22\u5b57\u6f22\u3002\u300d|\u304b\u306a\u304b", 7, id="quoted"),
        pytest.param("one two| three four", 10, id="else word"),
        pytest.param("a Donaudam|pfschiff", 10, id="inside a word of more than half a chunk"),
        pytest.param("one.|\n\ntwo| two", 4, id="at the very end of the room"),
        pytest.param(f"{FAMILY}|{FAMILY}|ab", 3, id="never inside a grapheme, however large"),
    ],
)
def test_it_cuts_at_the_best_break_in_the_second_half(marked, size):
    expected = [passage.strip() for passage in marked.split("|")]

    assert passages(marked.replace("|", ""), size=size) == expected


@pytest.mark.parametrize(
    ("text", "size", "overlap", "expected"),
    [
        ("It is one. Two. Three four", 16, 7, ["It is one. Two.", "Two. Three four"]),
        ("one two three four", 13, 7, ["one two three", "three four"]),
        (FLAG * 5, 6, 3, [FLAG * 3, FLAG * 3]),
    ],
    ids=["sentence", "else word", "else grapheme"],
)
def test_an_overlap_begins_with_the_best_start(text, size, overlap, expected):
    assert passages(text, size=size, overlap=overlap) == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        *[("", 0), ("the", 1), ("quick", 2), ("The quick fox.", 5), ("\xe9t\xe9", 1), ("2026", 2)],
        *[("\u043c\u0438\u0440", 2), ("\u6f22\u5b57\u304b\u306a", 4), ("a\n\n    b", 3)],
    ],
)
def test_tokens_are_estimated(text, tokens):
    assert estimate_tokens(text) == tokens


@given(texts, st.data())
def test_a_part_never_counts_more_than_the_whole(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))

    assert estimate_tokens(text[start:end]) <= estimate_tokens(text)


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("count", [count_words, f"{__name__}.count_words"])
def test_a_function_can_count_exactly(count):
    chunker = Chunker(size=2, overlap=0, count=count)

    assert [chunk.text for chunk in chunker.split("one two three")] == ["one two", "three"]
    assert chunker.recipe == f"chunker 1: size 2, overlap 0, {__name__}.count_words"


def count_in_numpy(text: str) -> Any:
    return np.int64(count_words(text))


def count_in_halves(text: str) -> Any:
    return count_words(text) / 2


def test_what_a_function_counts_is_a_whole_number():
    texts = [
        chunk.text for chunk in Chunker(size=2, overlap=0, count=count_in_numpy).split("a b c")
    ]
    assert texts == ["a b", "c"]
    with pytest.raises(TypeError, match=r"count_in_halves\(\) returned float. Return a whole"):
        Chunker(size=2, overlap=0, count=count_in_halves).split("a b c")


@pytest.mark.parametrize(
    "options", [{"size": 399}, {"overlap": 39}, {"unit": "characters"}, {"count": "shop.count"}]
)
def test_whatever_changes_the_chunks_changes_the_recipe(options):
    assert Chunker(**options).recipe != Chunker().recipe


def test_a_subclass_has_a_recipe_of_its_own():
    class Paragraphs(Chunker):
        pass

    assert Paragraphs().recipe != Chunker().recipe
    assert Paragraphs.__qualname__ in Paragraphs().recipe


def test_an_old_recipe_still_gives_the_old_chunks():
    """When this fails, raise VERSION: stored rows must become stale."""
    chunks = Chunker().split("\n\n".join(make_article(300)))

    assert Chunker().recipe == "chunker 1: size 400, overlap 40, tokens"
    assert digest(*(chunk.digest for chunk in chunks)).hex()[:16] == "7e4c9f10b47b46ef"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0. Give a whole number of 1 or more."),
        ({"size": True}, "size is True. Give a whole number"),
        ({"overlap": -1}, "overlap is -1. Give a whole number of 0 or more."),
        ({"size": 40}, "overlap is 40, size is 40. Make the overlap smaller .* instance 4"),
        ({"unit": "words"}, "unit is 'words'. Choose 'tokens' or 'characters'."),
        ({"unit": "characters", "count": "a.b"}, "count is 'a.b', but the unit is 'characters'"),
        ({"count": "tokens"}, "count is 'tokens', and no dotted path"),
        ({"count": "a.b-c"}, "count is 'a.b-c', and no dotted path"),
        ({"count": lambda text: 1}, "lambda.*Give a function defined in a module"),
        ({"count": "text".count}, "built-in method count.*, and no dotted path"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        Chunker(**options)


def digests(paragraphs: list[str]) -> list[bytes]:
    return [chunk.digest for chunk in Chunker().split("\n\n".join(paragraphs))]


def test_an_edit_near_the_end_leaves_all_earlier_chunks_alone():
    article = make_article(300)
    before = digests(article)

    article[-2] = "Something else entirely."
    after = digests(article)

    assert after[: len(before) - 3] == before[:-3]


@pytest.mark.parametrize("seed", range(10))
def test_an_edit_near_the_beginning_leaves_most_later_chunks_alone(seed):
    article = make_article(300, seed)
    before = digests(article)

    article.insert(3, "A new paragraph, of a few words.")
    after = digests(article)

    assert len(before) > 50
    assert len(set(after) - set(before)) < 15
    assert after[-30:] == before[-30:]


class Read(str):
    """A text that counts how many of its characters are read, other than by the regexes.

    Those read on from one place until they match, or parts that are counted here.
    """

    characters = 0

    def __getitem__(self, at: Any) -> str:
        found = super().__getitem__(at)
        self.characters += len(found)
        return found


KINDS = dict(kinds(100_000))


@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("unit", ["tokens", "characters"])
def test_each_character_is_read_a_few_times_however_long_the_text(text, unit):
    read = Read(text)

    Chunker(unit=unit).split(read)

    assert read.characters < 10 * len(text)


def test_a_function_counts_seldom_since_a_tokenizer_is_slow():
    text = "some words of many a size " * 1_000
    counted: list[str] = []

    def count(part: str) -> int:
        counted.append(part)
        return count_words(part)

    chunker = Chunker(size=400, overlap=40, count=count_words)
    object.__setattr__(chunker, "count", count)
    chunks = chunker.split(text)

    assert len(counted) < 15 * len(chunks)
    assert max(map(len, counted)) < 3 * max(len(chunk.text) for chunk in chunks)


# truncate


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
        (FAMILY, 3, FAMILY[:3]),
        ("", 5, ""),
    ],
)
def test_a_truncated_text_ends_after_a_word_else_between_graphemes(text, limit, expected):
    assert truncate(text, limit) == expected


@given(texts, st.integers(1, 20))
def test_a_truncated_text_is_a_beginning_that_fits(text, limit):
    beginning = truncate(text, limit)

    assert text.startswith(beginning)
    assert bool(text) <= len(beginning) <= limit
    first = min(boundaries(text) - {0}, default=0)
    rare = regex.search(r"[\p{Cn}\p{Cf}]", text)
    assert len(beginning) in boundaries(text) or first > limit or rare


def test_what_follows_the_cut_is_not_read():
    read = Read(FLAG * 50_000)

    truncate(read, 1_001)

    assert read.characters < 10_000
