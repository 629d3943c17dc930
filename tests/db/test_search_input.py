"""Whatever is asked has an answer or an error that says what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import hypothesis
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.utils.functional import SimpleLazyObject
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pgembed_django import search, similar_to
from pgembed_django.exceptions import InputTooLong, SearchError
from pgembed_django.models import Space
from pgembed_django.retrieval import fusion, retrievers
from pgembed_django.retrieval.results import Mode
from pgembed_django.testing import DeterministicProvider, run_jobs
from tests.app.models import AbstractComment, Article, Category, Note, Page, PageExtra, Product
from tests.conftest import PUBLISHED

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_known_queries")]


class Narrow(DeterministicProvider):
    """Takes ten words."""

    def embed_batch(self, texts):
        if any(len(text.split()) > 10 for text in texts):
            raise InputTooLong("The input length exceeds the context length of 10 tokens")
        return super().embed_batch(texts)


@pytest.fixture(scope="module")
def stored(django_db_setup: None, django_db_blocker: Any) -> Iterator[Article]:
    """One for all: a test's own transaction is rolled back to it."""
    with django_db_blocker.unblock(), transaction.atomic():
        article = Article.objects.create(title="A trout", published_time=PUBLISHED)
        run_jobs()
        yield article
        transaction.set_rollback(True)


@pytest.fixture
def trout(stored: Article) -> Article:
    return Article.objects.get(pk=stored.pk)


# The text


@pytest.mark.parametrize("text", ["", "  \n\t ", "\0", "\0 \0"])
@pytest.mark.parametrize("mode", ["hybrid", "semantic", "lexical"])
def test_an_empty_query_finds_nothing_and_says_so(trout, text, mode):
    results = search(Article, text, mode=mode)

    assert len(results) == 0
    assert (results.ranking, results.note) == ("none", fusion.EMPTY)
    assert not results.degraded


@pytest.mark.parametrize("text", ["tro\0ut", "\0trout\0", "trout\r\n", "  trout "])
def test_what_postgres_cannot_hold_is_left_out_of_the_query(trout, text):
    assert list(search(Article, text)) == [trout]


def test_half_a_character_does_no_harm(trout):
    assert list(search(Article, "trout \ud800")) == [trout]


@pytest.mark.parametrize(
    "text", ["the of and", "!!! ???", "'", '"', '"" -', "\\", ":* & | !", "<->"]
)
def test_without_a_word_for_full_text_meaning_decides_alone(trout, text):
    results = search(Article, text)

    assert list(results) == [trout]
    assert (results.ranking, results.note) == ("semantic", fusion.NO_WORDS)
    assert not results.degraded

    lexical = search(Article, text, mode="lexical")
    assert (len(lexical), lexical.ranking, lexical.note) == (0, "lexical", fusion.NO_WORDS)


def test_a_query_of_exclusions_alone_finds_no_words(trout):
    assert list(search(Article, "-granite", mode="lexical")) == []


@pytest.mark.parametrize(
    "text",
    [
        "trout' | ''",
        "trout\\",
        "trout ''' it''s",
        "trout %s %(x)s {} $1",
        "trout; DROP TABLE app_article; --",
        "trout:A & !b",
        'trout "',
        "🐟 trout",
        "http://example.com/trout?x=1&y=2 trout",
        "trout <b>",
    ],
)
@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_no_character_is_special_to_anybody_else(trout, text, mode):
    assert list(search(Article, text, mode=mode)) == [trout]


def test_a_page_full_of_text_is_a_query_too(trout):
    text = "trout " + "and more of it " * 100_000

    results = search(Article, text)

    assert list(results) == [trout]
    assert results.ranking == "hybrid"


@pytest.mark.parametrize("word", ["x" * 5_000, "ü" * 5_000, "🦉" * 5_000])
def test_a_word_that_no_index_holds_is_passed_over(trout, word):
    assert list(search(Article, f"trout {word}")) == [trout]
    assert list(search(Article, word)) == [trout]


def test_a_query_that_the_model_refuses_is_looked_for_by_its_words(trout, provider):
    Space.objects.update(backend="tests.played.provider.PlayedProvider")

    results = search(Article, "trout poison")

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == ("lexical", True)
    assert results.note == fusion.NO_VECTOR


@pytest.mark.parametrize(("too_long", "ranking"), [("cut", "hybrid"), ("refuse", "lexical")])
def test_a_query_longer_than_the_models_context_is_cut_or_refused(trout, too_long, ranking):
    Space.objects.update(backend=f"{__name__}.Narrow", options={"too_long": too_long})

    results = search(Article, "trout " * 50)

    assert list(results) == [trout]
    assert (results.ranking, results.degraded) == (ranking, too_long == "refuse")


RULES = [
    "-" * 40,
    "- " * 40,
    "-" * 3_000,
    "-(" * 40,
    "-\u00a0" * 40,
    "\u200b-" * 40,
    "--" * 20 + "so",
]
ODD = [
    *RULES,
    "Ⱥ" * 1_000,  # in lower case it takes more bytes
    '"' + "Ⱥ" * 990 + '"',
    "-x " + "Ⱥ" * 990,
    '-"' * 400,
    '"' * 999,
    "(" * 999,
    "!" * 999,
    "or " * 999,
    "a or " * 300,
    '-"a b" or ' * 300,
    '"' + "a-" * 499,
    "漢" * 999,
    "e" + "\u0301" * 999,
    "\u202e\u05e9" * 300,
    "👩\u200d" * 300,
    "\x1c-" * 300,
    "".join(map(chr, range(1, 0x200))),
    "\ud800" * 99,
    "\0" * 99 + "-",
    ":*" * 300,
    "a:ABCD* " * 99,
    "<a &amp; " * 99,
    "a/" * 499,
    "1e9999 " * 99,
    "x" * 1_000_000,
    " ".join(f"word{n}" for n in range(10_000)),
]
PIECES = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["-", "- ", "--", '"', ' "', "(", ")", "!", "&", "|", "<->", ":*", "\\", "'"]),
    st.sampled_from([" ", "\n", "\t", "\u00a0", "\u200b", "\x1c", "\0", "\ud800", "\u0301"]),
    st.sampled_from(["or ", " OR ", "and ", "not ", "the ", "trout ", "-trout ", "Ⱥ", "漢", "🦉"]),
)
QUERIES = st.lists(st.tuples(PIECES, st.integers(1, 60)), min_size=1, max_size=8).map(
    lambda pieces: "".join(piece * times for piece, times in pieces)
)


@pytest.mark.parametrize("mode", ["hybrid", "semantic", "lexical"])
def test_a_rule_between_words_excludes_nothing(make_article, run_jobs, mode):
    article = make_article(title="hello", contents="to the world")
    run_jobs()

    for rule in RULES:
        for text in (f"hello\n{rule}\nworld", f"{rule} hello", f"hello {rule}"):
            results = search(Article, text, mode=mode)
            assert next(iter(results)) == article
            assert (results.note, results.ranking) == ("", mode)


def test_a_dash_excludes_the_word_that_follows_it_only(make_article, run_jobs):
    both = make_article(title="hello", contents="to the world")
    one = make_article(title="hello", contents="to the moon")
    run_jobs()

    def found(text):
        return set(search(Article, text, mode="lexical"))

    assert found("hello -world") == found(f"hello {'-' * 40} -world") == {one}
    assert found('hello -"the world"') == found('hello - - -"the world"') == {one}
    assert found('"hello" - world') == found('"hello" --world') == {both, one}
    assert found("hello - world") == found("hello --world") == {both, one}


def test_no_text_makes_a_search_fail(trout):
    for text, mode in product(ODD, get_args(Mode)):
        for query in (text, f"trout {text}", f'"trout" {text}'):
            assert not search(Article, query, mode=mode).degraded
    similar_to(trout)  # the transaction is usable


@hypothesis.settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(query=QUERIES, mode=st.sampled_from(get_args(Mode)))
def test_no_text_at_random_makes_a_search_fail(trout, query, mode):
    results = search(Article, query, mode=mode)

    assert results.ranking in (mode, "semantic", "none")
    assert not results.degraded


@pytest.mark.parametrize("text", [None, b"trout", 5, ["trout"]])
def test_what_is_no_text_is_refused(trout, text):
    with pytest.raises(SearchError, match="Give a string"):
        search(Article, text)


# The page


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**20, True, "10", 1.5, None])
def test_a_limit_out_of_range_is_refused(trout, limit):
    with pytest.raises(SearchError, match="Give a whole number from 1 to 1000"):
        search(Article, "trout", limit=limit)
    with pytest.raises(SearchError, match="Give a whole number from 1 to 1000"):
        similar_to(trout, limit=limit)


@pytest.mark.parametrize(
    ("limit", "offset"), [(10, -1), (10, 991), (1000, 1), (10, "0"), (1, None)]
)
def test_an_offset_out_of_range_is_refused(trout, limit, offset):
    with pytest.raises(SearchError, match="offset is"):
        search(Article, "trout", limit=limit, offset=offset)


def test_the_widest_page_is_answered(trout):
    assert list(search(Article, "trout", limit=1000)) == [trout]
    assert list(search(Article, "trout", limit=1, offset=999)) == []


@pytest.mark.parametrize("mode", ["", "Hybrid", "fuzzy", None])
def test_another_mode_is_refused(trout, mode):
    with pytest.raises(SearchError, match="Choose one of hybrid, semantic, lexical"):
        search(Article, "trout", mode=mode)


# Where


def test_a_sliced_queryset_is_refused(trout):
    with pytest.raises(SearchError, match="sliced"):
        search(Article.objects.all()[:5], "trout")


def test_a_combined_queryset_is_refused(trout):
    both = Article.objects.filter(pk=1).union(Article.objects.filter(pk=2))
    with pytest.raises(SearchError, match=r"union\(\).*Q objects"):
        search(both, "trout")
    # These are one query.
    either = Article.objects.filter(pk=trout.pk) | Article.objects.filter(pk=0)
    assert list(search(either, "trout")) == [trout]


def test_values_are_refused(trout):
    for rows in (Article.objects.values(), Article.objects.values_list("pk")):
        with pytest.raises(SearchError, match="values"):
            search(rows, "trout")


def test_distinct_on_fields_is_refused(trout):
    with pytest.raises(SearchError, match="distinct"):
        search(Article.objects.distinct("title"), "trout")
    assert list(search(Article.objects.distinct(), "trout")) == [trout]


def test_window_functions_are_refused_and_the_rows_they_choose_are_searched(
    trout, make_article, run_jobs
):
    other = make_article(title="Another trout", category=Category.objects.create())
    newest = make_article(title="A trout, the second edition", category=trout.category)
    Article.objects.create(title="A draft of a trout", category=other.category)
    run_jobs()
    place = Window(RowNumber(), partition_by="category", order_by=F("pk").desc())
    numbered = Article.objects.filter(published_time__isnull=False).annotate(place=place)
    first = numbered.filter(place=1)

    for rows in (numbered, first):
        with pytest.raises(SearchError, match=r'window functions.*filter\(pk__in=that.values\("pk'):
            search(rows, "trout")
        with pytest.raises(SearchError, match="window functions"):
            similar_to(trout, among=rows)

    chosen = Article.objects.filter(pk__in=first.values("pk"))
    assert set(search(chosen, "trout")) == {newest, other}
    assert list(similar_to(newest, among=chosen)) == [other]


def test_an_abstract_model_is_refused():
    with pytest.raises(SearchError, match="AbstractComment: it is abstract"):
        search(AbstractComment, "trout")


@pytest.mark.parametrize("where", [None, "Article", 5, object()])
def test_what_is_no_model_is_refused(where):
    refused = re.escape(f"Cannot search in {where!r}. Give a model or a queryset")
    with pytest.raises(SearchError, match=refused):
        search(where, "trout")


def test_a_model_that_is_not_embeddable_is_refused():
    with pytest.raises(ImproperlyConfigured, match="Category is not embeddable"):
        search(Category, "trout")
    with pytest.raises(ImproperlyConfigured, match="Category is not embeddable"):
        similar_to(Category(name="x"))


def test_a_model_that_is_decorated_twice_asks_for_a_name():
    with pytest.raises(SearchError, match="Choose with name=, one of: Product"):
        search(Product, "trout")
    with pytest.raises(ImproperlyConfigured, match="no @embeddable named 'Nope'"):
        search(Product, "trout", name="Nope")


def test_several_models_have_to_differ():
    with pytest.raises(SearchError, match="nothing to search in"):
        search([], "trout")
    with pytest.raises(SearchError, match="given twice"):
        search([Article, Article.objects.filter(pk=1)], "trout")
    with pytest.raises(SearchError, match="there are several models"):
        search([Article, Note], "trout", name="ArticleEmbedding")


def test_before_the_first_worker_there_is_nothing_to_find(make_article):
    Article.objects.all().delete()
    Space.objects.all().delete()
    make_article(title="trout")

    results = search(Article, "trout")

    assert (len(results), results.ranking, results.space) == (0, "none", None)
    assert "embed_worker" in results.note


def test_a_select_for_update_locks_no_more_than_the_results(trout):
    assert list(search(Article.objects.select_for_update(), "trout")) == [trout]


# Similar rows


def test_a_row_without_vectors_has_no_similar_ones(trout, make_article, run_jobs):
    draft = make_article(title="draft", published_time=None)
    run_jobs()
    for article in (draft, make_article(title="new"), Article(title="unsaved")):
        with pytest.raises(SearchError, match=r"has no vectors yet.*condition"):
            similar_to(article)


def test_a_row_that_is_loaded_when_it_is_looked_at_has_similar_ones(trout, make_article, run_jobs):
    other = make_article(title="another trout")
    run_jobs()

    assert list(similar_to(SimpleLazyObject(lambda: trout))) == [other]


def test_a_row_that_cannot_say_what_it_is_has_no_similar_ones(make_article, monkeypatch):
    article = make_article(title="new")
    monkeypatch.setattr(Article, "__str__", lambda _: None)

    with pytest.raises(SearchError, match=f"Article {article.pk} has no vectors yet"):
        similar_to(article)


def test_a_key_of_another_type_is_refused(trout, make_article, run_jobs):
    other = make_article(title="another trout")
    pages = [Page.objects.create(slug=slug, body="trout") for slug in ("p ", "5")]
    notes = [Note.objects.create(body="trout") for _ in range(2)]
    run_jobs()
    keys = {
        Article: ["abc", "", "1\0", float("nan"), float("inf"), [1], {}, object(), F("id")],
        Note: ["abc", "\0", 2**200, b"x", [1], F("id")],
        Page: ["p\0", "\ud800"],
        PageExtra: ["p\0"],
    }

    for model, refused in keys.items():
        for key in refused:
            with pytest.raises(SearchError, match=f"is no key of {model.__name__}: .* is a "):
                similar_to(model(pk=key))
    for unknown in (Article(pk=2**70), Article(pk=-1), Note(pk=5), Page(pk="?"), Article()):
        with pytest.raises(SearchError, match="has no vectors yet"):
            similar_to(unknown)

    assert list(similar_to(Article(pk=str(trout.pk)))) == [other]
    assert list(similar_to(Article.objects.only("pk").get(pk=trout.pk))) == [other]
    assert list(similar_to(Note(pk=notes[0].pk.hex))) == [notes[1]]
    assert list(similar_to(Page(pk="p "))) == [pages[1]]
    assert list(similar_to(Page(pk=5))) == [pages[0]]


@pytest.mark.parametrize("instance", [None, 5, Article])
def test_what_is_no_row_has_no_similar_ones(instance):
    with pytest.raises(SearchError, match=r"Cannot compare .* with rows\. Give a row"):
        similar_to(instance)


def test_a_row_is_compared_with_rows_of_its_own_spec_only(trout):
    with pytest.raises(SearchError, match=r"Cannot compare rows of .* are of different spaces"):
        similar_to(trout, among=Page.objects.all())


# A web process, in which no system check has run


@pytest.mark.parametrize("name", ["QUERY_SECONDS", "CANARY_SECONDS", "HNSW_EF_SEARCH"])
@pytest.mark.parametrize("value", ["300", -1, float("nan")])
def test_a_setting_that_no_search_can_use_is_named(make_article, run_jobs, settings, name, value):
    settings.PGEMBED_CANARY_SECONDS = 300
    make_article()
    run_jobs()
    setattr(settings, f"PGEMBED_{name}", value)

    with pytest.raises(ImproperlyConfigured, match=f"PGEMBED_{name} is {value!r}. Set it to a "):
        assert all([search(Article, "trout"), retrievers.candidates(10)])


OTHER = {"MODEL": "bag-of-words", "DIMENSIONS": 64}


@pytest.mark.parametrize(
    "declared",
    [
        *(None, ["default"], {"default": None}, {1: {}}),
        *({"default": {**OTHER, "BACKEND": backend}} for backend in (None, ".x", "x", 5)),
    ],
)
def test_a_space_needs_no_declaration_that_can_be_used(trout, settings, admin_client, declared):
    settings.PGEMBED_PROVIDERS = declared

    results = search(Article, "trout")

    assert (list(results), results.ranking) == ([trout], "hybrid")
    assert admin_client.get("/admin/pgembed/").status_code == 200


# The transaction around


def test_a_search_leaves_the_transaction_around_it_usable(trout):
    search(Article, "trout")
    trout.title = "Another trout"
    trout.save()

    assert Article.objects.get().title == "Another trout"
    assert connection.in_atomic_block
