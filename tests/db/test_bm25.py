"""Rankings by words, beside BM25 as the books have it, computed here word by word."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgembed_django import search, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Space
from pgembed_django.retrieval import frequencies, fusion, retrievers, statistics, targets
from pgembed_django.retrieval.retrievers import Depth
from pgembed_django.spaces import indexes
from tests.app.models import Note, NoteEmbedding

pytestmark = pytest.mark.django_db

VOCABULARY = [f"w{number}" for number in range(40)]
CHANCES = [1 / (number + 1) for number in range(40)]
QUERIES = [
    "w0",
    "w7 w30",
    "w39 w3 w3 w3 w0",
    " ".join(VOCABULARY[::3]),
    "w1 w2 absent",
    " ".join(VOCABULARY[10:16]),
]
K1, B = 1.2, 0.75


@pytest.fixture(autouse=True)
def _words_are_as_written(settings):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "simple"
    frequencies.forget()
    statistics.forget()
    yield
    frequencies.forget()
    statistics.forget()


@pytest.fixture
def texts(run_jobs) -> dict[Any, list[str]]:
    """The words of three hundred stored rows, by their keys."""
    draw = random.Random(5)
    written = [draw.choices(VOCABULARY, CHANCES, k=draw.randrange(1, 60)) for _ in range(300)]
    rows = Note.objects.bulk_create(Note(body=" ".join(words)) for words in written)
    run_jobs()
    return {row.pk: words for row, words in zip(rows, written, strict=True)}


def scores(
    texts: dict[Any, list[str]],
    query: str,
    *,
    among: Collection[Any] | None = None,
    k1: float = K1,
    b: float = B,
) -> list[float]:
    """Return the score of each text that has any of the words, best first."""
    mean = sum(map(len, texts.values())) / len(texts)
    found = []
    for words in [texts[key] for key in (texts if among is None else among)]:
        score, times = 0.0, Counter(words)
        for word, asked in Counter(query.split()).items():
            having = sum(word in others for others in texts.values())
            rarity = math.log1p((len(texts) - having + 0.5) / (having + 0.5))
            norm = k1 * (1 - b + b * len(words) / mean)
            if times[word]:
                score += asked * rarity * (k1 + 1) * times[word] / (times[word] + norm)
        found.append(score)
    return sorted((score for score in found if score), reverse=True)


def known_of_notes() -> frequencies.Frequencies:
    target = targets.of(Note, name=None)
    both = retrievers.of(target, statistics.survey(target, "w0"), within=False)
    return both.known


def found_scores(query: str, *, among: Any = Note, limit: int = 50) -> Sequence[float]:
    return [hit.score for hit in search(among, query, mode="lexical", limit=limit).hits]


@pytest.mark.parametrize("query", QUERIES)
def test_a_score_is_that_of_the_books(texts, query):
    assert found_scores(query) == pytest.approx(scores(texts, query)[:50])


@pytest.mark.parametrize("query", QUERIES)
# With the first, too few are found at first; with the second enough, but not all of the best.
@pytest.mark.parametrize("share", [0.01, 0.7])
@pytest.mark.parametrize("has_index", [False, True])
def test_the_best_are_found_although_few_passages_are_scored(
    texts, monkeypatch, query, share, has_index
):
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", share)
    if has_index:
        with connection.cursor() as cursor:
            cursor.execute("CREATE INDEX ON app_noteembedding USING gin (fulltext)")
            cursor.execute("SET LOCAL enable_seqscan = off")

    assert found_scores(query) == pytest.approx(scores(texts, query)[:50])


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("lacking", ["w0", "w3", "w39"])
def test_so_are_the_best_that_pass_a_filter(texts, monkeypatch, query, lacking):
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", 0.01)
    passing = [key for key, words in texts.items() if lacking not in words]

    found = found_scores(query, among=Note.objects.filter(pk__in=passing))

    assert found == pytest.approx(scores(texts, query, among=passing)[:50])


def test_the_few_that_pass_a_filter_are_scored_at_once(texts, monkeypatch):
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", 0.2)
    few = [*texts][:10]

    with CaptureQueriesContext(connection) as captured:
        found = found_scores(QUERIES[2], among=Note.objects.filter(pk__in=few))

    assert found == pytest.approx(scores(texts, QUERIES[2], among=few))
    assert len([one for one in captured if "ts_rank" in one["sql"]]) == 1


@pytest.mark.parametrize(("k1", "b"), [(0.1, 0.75), (2.0, 0.0), (0.9, 1.0)])
def test_its_two_numbers_are_settings(texts, settings, k1, b):
    settings.PGEMBED_BM25_K1, settings.PGEMBED_BM25_B = k1, b

    expected = scores(texts, QUERIES[2], k1=k1, b=b)
    assert found_scores(QUERIES[2]) == pytest.approx(expected[:50])


def test_a_filter_does_not_change_how_rare_a_word_is(texts):
    chosen = [key for key, words in texts.items() if "w3" in words]

    found = search(Note.objects.filter(pk__in=chosen), "w3 w7", mode="lexical", limit=50)

    everything = {hit.instance.pk: hit.score for hit in _all_hits("w3 w7")}
    assert found.hits
    assert {hit.instance.pk: hit.score for hit in found.hits} == pytest.approx(
        {hit.instance.pk: everything[hit.instance.pk] for hit in found.hits}
    )


def _all_hits(query: str):
    return search(Note, query, mode="lexical", limit=1000).hits


@pytest.mark.parametrize("times", [1, 2, 3, 17, 100, 254, 255])
def test_postgres_tells_how_often_a_passage_has_a_word(run_jobs, settings, times):
    settings.PGEMBED_BM25_B = 0.0
    Note.objects.create(body="a " * times)
    run_jobs()

    [hit] = search(Note, "a", mode="lexical").hits

    assert hit.score == pytest.approx(math.log1p(0.5 / 1.5) * 2.2 * times / (times + 1.2))


def test_a_word_without_positions_counts_once(run_jobs):
    Note.objects.create(body="river river trout")
    run_jobs()
    [before] = found_scores("river")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE app_noteembedding SET fulltext = strip(fulltext)")
    frequencies.forget()

    [hit] = search(Note, "river", mode="lexical").hits

    # Of two words, like all passages there are.
    assert hit.score == pytest.approx(math.log1p(0.5 / 1.5) * 2.2 / 2.2)
    assert hit.score < before


def test_a_row_scores_as_its_best_passage(run_jobs):
    long = Note.objects.create(body="river " * 500 + "trout " * 3 + "granite " * 500)
    short = Note.objects.create(body="trout " + "granite " * 100)
    run_jobs()
    assert NoteEmbedding.objects.filter(source=long, position__gt=1).exists()

    found = search(Note, "trout", mode="lexical", limit=10)

    assert list(found) == [long, short]


def test_a_row_without_vectors_ranks_among_the_others(run_jobs):
    Note.objects.create(body="trout trout salmon")
    Note.objects.create(body="granite trout salmon")
    run_jobs()
    late = Note.objects.create(body="trout trout trout")
    _store_text_of(late)

    assert next(iter(search(Note, "trout", mode="lexical"))) == late


def _store_text_of(note: Note) -> None:
    """Store the words of a row whose vectors are awaited, as a worker does."""
    done = NoteEmbedding.objects.order_by("pk").first()
    NoteEmbedding.objects.create(
        source=note,
        space=done.space,
        position=0,
        start_offset=0,
        end_offset=len(note.body),
        passage=note.body,
        chunk_digest=b"",
        text_digest=b"",
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE app_noteembedding SET fulltext = to_tsvector('simple', passage) "
            "WHERE fulltext IS NULL"
        )


def test_no_more_passages_are_scored_than_the_bound(texts, monkeypatch):
    monkeypatch.setattr(retrievers, "MOST_SCORED", 7)
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", 0.01)

    assert len(found_scores("w0")) == 7


def test_as_many_are_found_as_match_although_few_passages_are_scored(texts, monkeypatch):
    monkeypatch.setattr(retrievers, "MOST_SCORED", 100)
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", 0.01)
    passing = [key for key, words in texts.items() if "w39" not in words]

    # None of them has the word that alone would leave few to score.
    assert len(found_scores("w0 w39", among=Note.objects.filter(pk__in=passing))) == 50


def test_deep_pages_do_not_ask_for_more_passages_than_are_scored(texts, monkeypatch):
    monkeypatch.setattr(retrievers, "MOST_SCORED", 150)
    monkeypatch.setattr(fusion, "SHALLOW", Depth(results=5, rows=5))
    monkeypatch.setattr(fusion, "DEEP", Depth(results=20, rows=20))

    assert found_scores("w0 w39", limit=15) == pytest.approx(scores(texts, "w0 w39")[:15])


def test_a_phrase_finds_itself_and_ranks_by_all_words(run_jobs):
    Note.objects.create(body="slow rise")
    both = Note.objects.create(body="slow rise bread")
    Note.objects.create(body="rise slow bread")
    run_jobs()

    found = list(search(Note, '"slow rise" bread', mode="lexical"))

    assert (found[0], len(found)) == (both, 2)


def test_all_that_have_a_phrase_are_ranked_at_once(texts, monkeypatch):
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", 0.01)
    having = [key for key, words in texts.items() if "w0 w1 " in f"{' '.join(words)} "]

    with CaptureQueriesContext(connection) as captured:
        found = found_scores('"w0 w1" w39')

    assert found == pytest.approx(scores(texts, "w0 w1 w39", among=having)[:50])
    assert len([one for one in captured if "ts_rank" in one["sql"]]) == 1


def test_an_excluded_word_leaves_the_others_optional(run_jobs):
    one = Note.objects.create(body="bread slow")
    Note.objects.create(body="bread rise")
    other = Note.objects.create(body="slow")
    run_jobs()

    assert list(search(Note, "bread slow -rise", mode="lexical")) == [one, other]


def test_a_table_that_has_grown_is_read_again(texts, run_jobs):
    found_scores("w0")
    for body in ["w39 w38"] * 99 + ["w38 w37 rare"]:
        texts[Note.objects.create(body=body).pk] = body.split()
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE app_noteembedding")

    for query in (*QUERIES, "w38 rare absent"):
        assert found_scores(query) == pytest.approx(scores(texts, query)[:50])
    assert frequencies._kept.cache_info().currsize == 1


def test_how_many_passages_a_space_of_a_large_table_has_the_statistics_tell(texts, monkeypatch):
    monkeypatch.setattr(frequencies, "COUNTED", 100)
    monkeypatch.setattr(retrievers, "SCORED_AT_FIRST", 0.7)
    other = Space.objects.get(spec="app.NoteEmbedding")
    other.pk, other.state, other.fingerprint = None, "retired", "another"
    other.save()
    for chunk in NoteEmbedding.objects.all():
        chunk.pk, chunk.space = None, other
        chunk.save()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE app_noteembedding SET fulltext = to_tsvector('simple', passage)")
        cursor.execute("ANALYZE app_noteembedding")

    for query in QUERIES:
        assert found_scores(query) == pytest.approx(scores(texts, query)[:50])


def test_a_word_that_the_statistics_do_not_tell_is_counted(texts, run_jobs):
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE app_noteembedding")
    texts[Note.objects.create(body="w38 rare").pk] = ["w38", "rare"]
    run_jobs()

    assert found_scores("rare") == pytest.approx(scores(texts, "rare"))


@pytest.mark.parametrize("query", ["w0 w39", "w0 w39 -absent"])
def test_few_with_a_rare_word_are_best_although_too_many_have_the_other(texts, monkeypatch, query):
    monkeypatch.setattr(retrievers, "MOST_SCORED", 60)
    having = sum("w39" in words for words in texts.values())
    assert having < fusion.SHALLOW.results

    found = found_scores(query, limit=having)

    assert found == pytest.approx(scores(texts, "w0 w39")[:having])


def test_words_are_counted_once(texts):
    found_scores("w7 w30")
    with CaptureQueriesContext(connection) as captured:
        found_scores("w30 w7")

    assert not [one for one in captured if "FILTER" in one["sql"]]


def test_words_of_no_passage_leave_room_for_those_of_some(texts):
    absent = " ".join(f"absent{number}" for number in range(100))

    assert found_scores(f"{absent} w7") == pytest.approx(scores(texts, "w7")[:50])


def test_a_query_may_have_more_words_than_a_statement_has_columns(texts):
    letters = " ".join(map(chr, range(0x4E00, 0x4E00 + 1900)))

    with CaptureQueriesContext(connection) as captured:
        found = found_scores(f"{letters} w7 w7")

    assert found == pytest.approx([2 * score for score in scores(texts, "w7")[:50]])
    [counting] = [one["sql"] for one in captured if "FILTER" in one["sql"]]
    assert counting.count("FILTER") == frequencies.MOST_COUNTED


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_words_are_as_common_as_they_are_although_few_are_counted(texts, monkeypatch, is_analyzed):
    """Of a table without statistics on words: by row-level security, for instance."""
    monkeypatch.setattr(frequencies, "COUNTED", 150)
    if is_analyzed:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE app_noteembedding ALTER fulltext SET STATISTICS 0")
            cursor.execute("ANALYZE app_noteembedding")

    found_scores("w0 w1 w9")

    shares = known_of_notes().shares
    assert shares.keys() == {"w0", "w1", "w9"}
    for word, share in shares.items():
        having = sum(word in words for words in texts.values())
        assert share == pytest.approx(having / len(texts), abs=0.2)
    assert min(shares["w0"], shares["w1"]) > shares["w9"]


def test_passages_of_a_space_that_no_sample_has_are_taken_as_long_as_the_others(texts):
    [spec] = specs.of(Note)

    known = frequencies.of("default", spec, 0, table_oid=0, chunks=float(len(texts)))

    assert known.length == pytest.approx(sum(map(len, texts.values())) / len(texts))


def test_only_so_many_words_are_remembered(texts, monkeypatch):
    found_scores("w7")
    known = known_of_notes()
    monkeypatch.setattr(frequencies, "MOST_REMEMBERED", len(known.shares) + 1)

    assert found_scores("w1 w2") == pytest.approx(scores(texts, "w1 w2")[:50])
    assert found_scores("w3") == pytest.approx(scores(texts, "w3")[:50])

    assert {"w1", "w2"} <= known.shares.keys()
    assert "w3" not in known.shares


@pytest.mark.django_db(transaction=True)
def test_a_new_index_comes_with_statistics_of_more_words(texts, settings):
    settings.PGEMBED_INDEX_ROWS = 1
    [spec] = specs.of(Note)

    indexes.build(spec, spaces.active(spec, using="default"), using="default")

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attstattarget FROM pg_attribute "
            "WHERE attrelid = 'app_noteembedding'::regclass AND attname = 'fulltext'"
        )
        assert cursor.fetchone() == (indexes.STATISTICS_TARGET,)
        cursor.execute(
            "SELECT most_common_elems::text::text[] FROM pg_stats "
            "WHERE tablename = 'app_noteembedding' AND attname = 'fulltext'"
        )
        [words] = cursor.fetchone()
    assert set(words) == set(VOCABULARY)


def test_a_name_with_dots_is_found_by_each_of_its_words_and_marked(run_jobs):
    note = Note.objects.create(body="see /usr/share/doc, os.path.join or ask@example.org")
    run_jobs()

    for word in ("path", "os.path", "example", "share"):
        [hit] = search(Note, word, mode="lexical").hits
        assert hit.instance == note
        assert {hit.passage[start:end] for start, end in hit.marks} == set(word.split("."))
    assert not search(Note, '"path os"', mode="lexical").hits
    assert not search(Note, "see -os.path", mode="lexical").hits
