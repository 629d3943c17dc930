from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgembed_django.chunking import Chunk
from pgembed_django.core.text import digest
from pgembed_django.embedding.planner import EMPTY, make_plan
from pgembed_django.store import StoredChunk

NEW, OLD = b"digest of the new text", b"digest of the old text"


def cut(*texts: str) -> list[Chunk]:
    """Return these texts as the chunks of one, a space apart."""
    chunks, start = [], 0
    for position, text in enumerate(texts):
        chunks.append(Chunk(position, start, start + len(text), text, digest(text)))
        start += len(text) + 1
    return chunks


def kept(
    *texts: str,
    text_digest: bytes = OLD,
    has_vector: bool = True,
    language: str | None = None,
) -> list[StoredChunk]:
    """Return these texts as stored rows, with ids from 100 on."""
    return [
        StoredChunk(
            100 + chunk.position,
            chunk.position,
            chunk.start,
            chunk.end,
            chunk.digest,
            text_digest,
            has_vector and bool(chunk.text),
            language,
        )
        for chunk in cut(*texts)
    ]


def texts(chunks: tuple[Chunk, ...]) -> list[str]:
    return [chunk.text for chunk in chunks]


def test_a_new_text_is_embedded_and_inserted_whole():
    made = make_plan(cut("a", "b"), NEW, stored=[])

    assert (texts(made.embed), texts(made.insert)) == (["a", "b"], ["a", "b"])
    assert (made.drop, made.is_new, made.is_fresh) == ((), True, False)


def test_a_text_that_is_stored_already_needs_nothing():
    made = make_plan(cut("a", "b"), NEW, stored=kept("a", "b", text_digest=NEW))

    assert made.is_fresh
    assert not made.is_new


def test_a_changed_recipe_with_the_same_chunks_embeds_none():
    made = make_plan(cut("a", "b"), NEW, stored=kept("a", "b"))

    assert (made.embed, texts(made.insert), made.drop) == ((), ["a", "b"], (100, 101))


def test_another_language_with_the_same_chunks_embeds_none():
    stored = kept("a", "b", text_digest=NEW, language="english")

    assert make_plan(cut("a", "b"), NEW, stored=stored, language="english").is_fresh
    made = make_plan(cut("a", "b"), NEW, stored=stored, language="german")

    assert (made.embed, texts(made.insert), made.drop) == ((), ["a", "b"], (100, 101))
    assert made.language == "german"


def test_one_changed_chunk_is_embedded_alone():
    made = make_plan(cut("a", "x", "c"), NEW, stored=kept("a", "b", "c"))

    assert (texts(made.embed), texts(made.insert)) == (["x"], ["a", "x", "c"])
    assert made.drop == (100, 101, 102)


def test_chunks_that_moved_are_inserted_with_the_vectors_they_had():
    made = make_plan(cut("x", "a", "b"), NEW, stored=kept("a", "b"))

    assert (texts(made.embed), texts(made.insert)) == (["x"], ["x", "a", "b"])
    assert made.drop == (100, 101)


def test_a_chunk_that_is_there_twice_is_embedded_once():
    made = make_plan(cut("a", "b", "a"), NEW, stored=[])

    assert (texts(made.embed), texts(made.insert)) == (["a", "b"], ["a", "b", "a"])


def test_what_an_earlier_run_staged_is_not_embedded_again():
    made = make_plan(cut("a", "b"), NEW, stored=[], staged={digest("a")})

    assert (texts(made.embed), texts(made.insert)) == (["b"], ["a", "b"])


def test_a_row_of_text_alone_is_no_vector():
    made = make_plan(cut("a"), NEW, stored=kept("a", has_vector=False))

    assert (texts(made.embed), texts(made.insert), made.drop) == (["a"], ["a"], (100,))
    assert not made.is_new


def test_a_shorter_text_drops_the_rest():
    made = make_plan(cut("a"), NEW, stored=kept("a", "b", "c"))

    assert (made.embed, made.drop) == ((), (100, 101, 102))


def test_an_empty_text_is_one_row_without_a_vector():
    made = make_plan([], NEW, stored=[])
    assert (made.embed, made.insert) == ((), (EMPTY,))

    again = make_plan([], NEW, stored=kept("", text_digest=NEW))
    assert again.is_fresh


def test_a_text_that_became_empty_drops_its_vectors():
    made = make_plan([], NEW, stored=kept("a", "b"))

    assert (made.embed, made.insert, made.drop) == ((), (EMPTY,), (100, 101))


words = st.lists(st.sampled_from("abcde"), max_size=6)


@given(before=words, after=words, staged=st.sets(st.sampled_from("abcde")), vectors=st.data())
def test_what_a_plan_leaves_is_the_text_and_every_vector_comes_from_somewhere(
    before, after, staged, vectors
):
    stored = [
        row
        for word, row in zip(before, kept(*before), strict=True)
        if vectors.draw(st.booleans(), label=word)
    ]
    staged_digests = {digest(word) for word in staged}

    made = make_plan(cut(*after), NEW, stored=stored, staged=staged_digests)

    left = {
        row.position: (row.digest, row.text_digest) for row in stored if row.id not in made.drop
    }
    assert not set(left) & {chunk.position for chunk in made.insert}
    left |= {chunk.position: (chunk.digest, NEW) for chunk in made.insert}
    assert left == {c.position: (c.digest, NEW) for c in cut(*after) or [EMPTY]}
    available = {row.digest for row in stored} | staged_digests
    embedded = {chunk.digest for chunk in made.embed}
    needed = {chunk.digest for chunk in made.insert if chunk.text}
    assert needed <= available | embedded
    assert not embedded & available  # nothing twice
    assert len(embedded) == len(made.embed)
