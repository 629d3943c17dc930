"""What a search finds, in which order, and what it says of itself."""

from __future__ import annotations

import re
import uuid

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.models import Count, F, Prefetch, Value
from django.test.utils import CaptureQueriesContext

from pgembed_django import Results, SearchManager, SearchQuerySet, search, similar_to
from pgembed_django.declaration.specs import Spec
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.models import Space
from pgembed_django.queue.work import Work
from pgembed_django.retrieval import query_vectors
from pgembed_django.retrieval import results as results_of
from pgembed_django.testing import without_triggers
from tests.app.models import (
    Archived,
    Article,
    ArticleEmbedding,
    Category,
    Note,
    Page,
    PageComment,
    PageExtra,
    PinnedPageComment,
    Product,
    Team,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_known_queries")]


def titles(results: Results[Article]) -> list[str]:
    return [article.title for article in results]


# The three modes


def test_lexical_finds_words_in_any_of_their_forms(make_article, run_jobs):
    make_article(title="Swimming", contents="A trout swims in the river.")
    make_article(title="Stones", contents="Granite is hard.")
    run_jobs()

    results = search(Article, "trout that swam or were swimming", mode="lexical")

    assert titles(results) == ["Swimming"]
    assert results.ranking == "lexical"
    assert not results.degraded


def test_lexical_ranks_more_of_the_words_higher(make_article, run_jobs):
    make_article(title="One", contents="A trout. The bank was closed on a bright morning.")
    make_article(title="Both", contents="A trout by the river. It was closed on a morning.")
    make_article(title="None", contents="Granite is hard.")
    run_jobs()

    assert titles(search(Article, "river trout", mode="lexical")) == ["Both", "One"]


def test_lexical_takes_operators_at_their_word(make_article, run_jobs):
    make_article(title="Phrase", contents="the slow rise of bread")
    make_article(title="Words", contents="bread can rise and be slow")
    run_jobs()

    assert titles(search(Article, '"slow rise"', mode="lexical")) == ["Phrase"]
    assert titles(search(Article, "bread -rise", mode="lexical")) == []
    assert set(titles(search(Article, "bread rise", mode="lexical"))) == {"Phrase", "Words"}


def test_semantic_finds_rows_without_a_word_for_full_text(make_article, run_jobs):
    # To the tests' provider "the" is a word like any other; full text passes over it.
    make_article(title="the the the", contents="")
    make_article(title="Stones", contents="Granite is hard.")
    run_jobs()

    results = search(Article, "the", mode="semantic", limit=1)

    assert titles(results) == ["the the the"]
    assert results.ranking == "semantic"
    assert results[0].score == results[0].similarity


def test_hybrid_puts_first_what_both_arms_find(make_article, run_jobs):
    best = make_article(title="Trout", contents="river trout")
    make_article(title="Trouts", contents="granite and sand and stone and rock, no troutlets")
    run_jobs()

    results = search(Article, "river trout")

    assert results[0] == best
    assert results.ranking == "hybrid"
    assert results[0].score == 1.0


def test_what_only_one_arm_finds_scores_half(make_article, run_jobs):
    make_article(title="Granite")
    run_jobs()

    assert [hit.score for hit in search(Article, "trout").hits] == [0.5]
    assert [hit.similarity for hit in search(Article, "trout", mode="semantic").hits] == [
        search(Article, "trout", mode="semantic")[0].score
    ]


def test_each_row_is_found_once_with_its_best_passage(run_jobs):
    page = Page.objects.create(slug="p", body="")
    comment = PageComment.objects.create(
        page=page, text="Granite is hard. A trout swims. Sand is very soft."
    )
    run_jobs()

    for mode in ("hybrid", "semantic", "lexical"):
        [found] = search(PageComment, "trout swims", mode=mode)
        assert found == comment
        assert "trout" in found.passage
        [hit] = search(PageComment, "trout swims", mode=mode).hits
        assert comment.text[hit.start : hit.end] == hit.passage


def test_a_row_that_is_not_embedded_yet_is_found_by_its_words(make_article, make_worker, provider):
    make_article(title="Old", contents="granite")
    worker: Work = make_worker()
    while worker.step():
        pass
    provider.is_down = True
    make_article(title="New", contents="a trout in the river")
    while worker.step():
        pass
    provider.is_down = False

    assert not ArticleEmbedding.objects.filter(
        source__title="New", embedding__isnull=False
    ).exists()
    results = search(Article, "trout river", limit=1)
    assert titles(results) == ["New"]
    assert results.ranking == "hybrid"
    assert (results[0].score, results[0].similarity) == (1.0, None)


# The queryset has its say before the ranking


def test_a_filter_leaves_room_for_the_rows_that_pass(make_article, run_jobs):
    for number in range(60):
        make_article(title="trout", contents=f"trout {number}", author="many")
    for number in range(3):
        make_article(title="trout", contents=f"sand {number}", author="few")
    run_jobs()

    for mode in ("hybrid", "semantic", "lexical"):
        results = search(Article.objects.filter(author="few"), "trout", mode=mode, limit=3)
        assert {article.author for article in results} == {"few"}
        assert len(results) == 3


def test_annotations_joins_and_related_rows_are_kept(make_article, run_jobs):
    category = Category.objects.create(name="water")
    make_article(title="trout", category=category)
    make_article(title="trout of none")
    run_jobs()
    queryset = (
        Article.objects.filter(category__name="water")
        .annotate(shout=F("title"), siblings=Count("category__article"))
        .select_related("category")
        .order_by("-title")
    )

    [found] = search(queryset, "trout")

    assert (found.shout, found.siblings) == ("trout", 1)
    assert "category" in found._state.fields_cache


def test_a_join_that_repeats_rows_repeats_no_result(run_jobs):
    page = Page.objects.create(slug="p", body="trout")
    for text in ("a", "b", "c"):
        PageComment.objects.create(page=page, text=text)
    run_jobs()

    assert list(search(Page.objects.filter(pagecomment__text__in="abc"), "trout")) == [page]


def test_a_filter_that_nothing_passes_finds_nothing(make_article, run_jobs):
    make_article(title="trout")
    run_jobs()

    assert list(search(Article.objects.none(), "trout")) == []
    assert list(search(Article.objects.filter(pk__in=[]), "trout")) == []
    assert list(search(Article.objects.filter(author="nobody"), "trout")) == []


def test_a_manager_is_searched_like_its_queryset(make_article, run_jobs):
    article = make_article(title="trout")
    run_jobs()

    assert list(search(Article.objects, "trout")) == [article]


def test_what_the_condition_leaves_out_is_never_found(make_article, run_jobs):
    article = make_article(title="trout")
    run_jobs()
    with pytest.MonkeyPatch.context() as patch, _triggers_asleep():
        patch.setattr(article, "published_time", None)
        article.save()

    assert list(search(Article, "trout")) == []


def test_vectors_of_rows_that_are_gone_take_no_place(make_article, run_jobs):
    gone = make_article(title="river trout", contents="river trout")
    kept = make_article(title="granite")
    run_jobs()
    with _triggers_asleep():
        gone.delete()

    assert list(search(Article, "river trout", mode="semantic", limit=1)) == [kept]


def _triggers_asleep():
    import pgtrigger

    return pgtrigger.ignore()


@pytest.mark.parametrize("mode", ["hybrid", "semantic", "lexical"])
def test_keys_of_every_kind_are_found(run_jobs, mode):
    page = Page.objects.create(slug='it\'s a / "key"', body="trout")
    rows = [
        Note.objects.create(id=uuid.uuid4(), body="trout"),
        page,
        PageExtra.objects.create(page=page, summary="trout"),
        PinnedPageComment.objects.create(page=page, text="trout"),
        Team.objects.create(name="trout"),
        Archived.objects.create(body="trout", is_public=True),
    ]
    run_jobs()

    for row in rows:
        assert list(search(type(row), "trout", mode=mode)) == [row], type(row)


def test_a_text_that_is_not_stored_is_cut_from_the_row_and_marked(run_jobs):
    Product.objects.create(title="A trout", price=3)
    run_jobs()

    [hit] = search(Product, "trout", name="ProductTitle").hits

    assert hit.passage == "A trout"
    assert hit.highlight == "A <mark>trout</mark>"


@pytest.mark.parametrize("fails_at", ["stored", "replaced"])
def test_a_text_method_that_raises_takes_no_other_row_along(run_jobs, monkeypatch, fails_at):
    for title in ("A good trout", "A bad trout"):
        Product.objects.create(title=title, price=3)
    run_jobs()

    def text_of(spec: Spec, row: Product) -> str:
        if "bad" in row.title:
            raise AttributeError("its category is gone")
        return row.title

    monkeypatch.setattr(Spec, "text_of", text_of)
    if fails_at == "replaced":
        monkeypatch.setattr(results_of, "_stored", lambda *_, **__: {})
    results = search(Product, "trout", name="ProductTitle")

    assert {row.title: row.passage for row in results} == {
        "A good trout": "A good trout",
        "A bad trout": "",
    }


def test_nothing_that_an_instance_has_is_written_over(make_article, run_jobs):
    make_article(title="trout")
    run_jobs()
    prefetched = Prefetch("articlecomment_set", to_attr="passage")

    [found] = search(Article.objects.prefetch_related(prefetched), "trout")
    assert found.passage == []
    [found] = search(Article.objects.alias(score=Value(-1)), "trout")
    assert found.score > 0


# Stale rows


def test_stale_rows_are_served_unless_the_spec_hides_them(make_article, run_jobs):
    article = make_article(title="trout")
    page = Page.objects.create(slug="p", body="")
    extra = PageExtra.objects.create(page=page, summary="trout")
    run_jobs()
    Article.objects.update(title="granite")
    PageExtra.objects.update(summary="granite")

    for mode in ("hybrid", "semantic", "lexical"):
        assert list(search(Article, "trout", mode=mode)) == [article]
        assert list(search(PageExtra, "trout", mode=mode)) == []

    run_jobs()
    assert list(search(PageExtra, "granite")) == [extra]


def test_a_new_row_is_found_by_its_words_where_stale_ones_are_hidden(make_worker, provider):
    worker: Work = make_worker()
    page = Page.objects.create(slug="p", body="")
    provider.is_down = True
    extra = PageExtra.objects.create(page=page, summary="trout")
    while worker.step():
        pass
    provider.is_down = False

    assert list(search(PageExtra, "trout")) == [extra]
    PageExtra.objects.update(summary="granite")
    assert list(search(PageExtra, "trout")) == []  # its stored text is no longer its own


# What is shown


def test_a_highlight_is_safe_and_marks_the_words(make_article, run_jobs):
    make_article(title="<script>alert(1)</script> trout", contents="<b>Swimming</b> & more")
    run_jobs()

    [hit] = search(Article, "trout swims").hits

    assert "<script>" not in hit.highlight
    assert "&lt;script&gt;" in hit.highlight
    assert "<mark>trout</mark>" in hit.highlight
    assert "&lt;b&gt;<mark>Swimming</mark>&lt;/b&gt; &amp; more" in hit.highlight
    assert [hit.passage[start:end] for start, end in hit.marks] == ["trout", "Swimming"]


HOSTILE = [
    "<script>alert('trout')</script>",
    "<img src=x onerror=alert(1)> trout",
    "&lt;b&gt; &amp;lt; trout &#60;script&#62;",
    "\ue000<b>forged</b>\ue001 trout \ue001\ue000 \ue002script>",
    "\x02forged\x03 trout",
    "</mark><mark>forged</mark> trout",
    "StartSel=<b>, StopSel=</b>, HighlightAll=true trout",
    "x<y and trout>z \"quoted\" 'trout'",
]


@pytest.mark.parametrize("marks", [results_of.UNICODE_MARKS, results_of.OTHER_MARKS])
@pytest.mark.parametrize("passage", HOSTILE)
def test_no_passage_gets_through_as_html_or_forges_a_mark(
    make_article, run_jobs, monkeypatch, passage, marks
):
    monkeypatch.setattr(results_of, "_marks", lambda _: marks)
    make_article(title=passage, contents="")
    run_jobs()

    for query in ("trout", 'StartSel=<b> "trout"', "granite"):
        for hit in search(Article, query, mode="semantic").hits:
            marked = re.findall("<mark>(.*?)</mark>", hit.highlight)
            bare = re.sub("</?mark>", "", hit.highlight)
            assert not set("<>\"'") & set(bare)
            assert not set("".join(marks)) & set(bare)
            assert set(marked) <= {"trout", "StartSel", "b"}
            assert not marked or query != "granite"


def test_nothing_that_looks_like_a_tag_is_lost_from_a_highlight(make_article, run_jobs):
    make_article(title="A List<String> of trout, if x<y and y>z", contents="")
    run_jobs()

    [hit] = search(Article, "trout").hits

    assert hit.highlight == ("A List&lt;String&gt; of <mark>trout</mark>, if x&lt;y and y&gt;z")


def test_a_long_passage_is_highlighted_where_its_words_are(make_article, run_jobs):
    around = "stone " * 80
    make_article(title="Stones", contents=f"{around}a trout\n swims {around}")
    run_jobs()

    [hit] = search(Article, "swimming trout", mode="lexical").hits

    assert "a <mark>trout</mark> <mark>swims</mark> stone" in hit.highlight
    assert hit.highlight.startswith("… ")
    assert hit.highlight.endswith(" …")
    assert len(hit.highlight) < len(hit.passage) / 2
    assert [hit.passage[start:end] for start, end in hit.marks] == ["trout", "swims"]


@pytest.mark.parametrize("query", ["granite", "the", "-granite"])
def test_a_hit_without_the_words_shows_the_beginning_of_its_passage(make_article, run_jobs, query):
    make_article(title="River trout", contents="stone " * 80)
    run_jobs()

    [hit] = search(Article, query, mode="semantic").hits

    assert hit.highlight.startswith("River trout stone")
    assert hit.highlight.endswith("stone …")
    assert hit.marks == ()


def test_only_the_page_that_is_shown_is_highlighted(make_article, run_jobs):
    for number in range(5):
        make_article(title=f"trout {number}", contents="")
    run_jobs()

    with CaptureQueriesContext(connection) as captured:
        assert len(search(Article, "trout", limit=2)) == 2

    [statement] = [query["sql"] for query in captured if "ts_headline" in query["sql"]]
    assert len(re.search(r"ANY\('?\{?\[?(.*?)\]?\}?'?\)", statement)[1].split(",")) == 2


def test_an_attribute_that_the_row_has_already_is_left_alone(make_article, run_jobs):
    make_article(title="trout")
    run_jobs()

    results = search(Article.objects.annotate(score=Value(7)), "trout")

    assert results[0].score == 7
    assert results.hits[0].score == 1.0


def test_results_are_a_sequence(make_article, run_jobs):
    articles = [make_article(title=f"trout {number}") for number in range(3)]
    run_jobs()

    results = search(Article, "trout")

    assert len(results) == 3
    assert set(results) == set(articles)
    assert results[0] in results
    assert list(results[1:]) == [results[1], results[2]]
    assert search(Article, "zzz", mode="lexical").hits == ()


# Pages


@pytest.mark.parametrize("mode", ["hybrid", "semantic", "lexical"])
def test_pages_follow_each_other_without_gap_or_repeat(make_article, run_jobs, mode):
    for number in range(130):
        make_article(title="trout " * (number % 7), contents=f"trout {number}")
    run_jobs()

    whole = [article.pk for article in search(Article, "trout", mode=mode, limit=1000)]
    paged: list[int] = []
    offset = 0
    while offset is not None:
        page = search(Article, "trout", mode=mode, limit=13, offset=offset)
        paged += [article.pk for article in page]
        offset = page.next_offset

    assert len(set(whole)) == 130
    assert paged == whole


@pytest.mark.parametrize("mode", ["semantic", "lexical", "hybrid"])
@pytest.mark.parametrize("place", [3, 15])
def test_pages_do_not_overlap_where_a_row_is_gone_but_its_vectors_are_not(
    make_article, run_jobs, mode, place
):
    for number in range(40):
        make_article(title="trout", contents="river " * (number % 7) + "bank " * (number % 5))
    run_jobs()
    whole = list(search(Article, "trout river", mode=mode, limit=40))
    with without_triggers():
        Article.objects.filter(pk=whole[place].pk).delete()

    found, offset = [], 0
    while offset is not None:
        page = search(Article, "trout river", mode=mode, limit=10, offset=offset)
        found += [article.pk for article in page]
        offset = page.next_offset

    assert sorted(found) == sorted(one.pk for one in whole if one.pk != whole[place].pk)


@pytest.mark.parametrize("text", ["- trout", "--trout", "-(trout)", "trout or - salmon", "trout -"])
def test_a_dash_that_excludes_nothing_leaves_the_words(make_article, run_jobs, text):
    article = make_article(title="A trout", contents="river")
    run_jobs()

    assert list(search(Article, text, mode="lexical")) == [article]


def test_a_percent_sign_in_the_queryset_is_no_parameter(make_article, run_jobs):
    article = make_article(title="trout")
    run_jobs()
    rows = Article.objects.extra(where=["app_article.id %%%s >= 0"], params=[2])

    with connection.execute_wrapper(lambda execute, *given: execute(*given)):
        assert list(search(rows, "trout")) == [article]


def test_the_last_page_has_no_next_one(make_article, run_jobs):
    for _ in range(3):
        make_article(title="trout")
    run_jobs()

    assert search(Article, "trout", limit=2).next_offset == 2
    assert search(Article, "trout", limit=3).next_offset is None
    assert search(Article, "trout", limit=5, offset=3).next_offset is None
    assert list(search(Article, "trout", offset=500)) == []


# Several models


@pytest.mark.parametrize("mode", ["hybrid", "semantic"])
def test_several_models_are_merged_by_how_well_rows_do_in_their_own(make_article, run_jobs, mode):
    article = make_article(title="river trout", contents="")
    make_article(title="river trout stream", contents="")
    note = Note.objects.create(body="river trout and so much more that is not about it at all")
    run_jobs()

    results = search([Article, Note.objects.filter(seen=0)], "river trout", limit=2, mode=mode)

    # The note is far less near than the second article, but first in its own table.
    assert list(results) == [article, note]
    assert results.ranking == mode
    assert results.space is None
    assert {space.spec for space in results.spaces} == {"app.ArticleEmbedding", "app.NoteEmbedding"}
    assert [hit.score for hit in results.hits] == [1.0, 1.0]


def test_several_models_are_paged_together(make_article, run_jobs):
    for number in range(7):
        make_article(title=f"trout {number}")
        Note.objects.create(body=f"trout {number}")
    run_jobs()

    whole = list(search([Article, Note], "trout", limit=100))
    first = search([Article, Note], "trout", limit=9)
    second = search([Article, Note], "trout", limit=9, offset=first.next_offset)

    assert [*first, *second] == whole
    assert len(whole) == 14


# The query's vector


def test_a_query_is_embedded_once_for_all_specs_of_a_space(make_article, run_jobs, provider):
    make_article(title="trout")
    Note.objects.create(body="trout")
    run_jobs()
    provider.embedded.clear()

    for _ in range(3):
        search([Article, Note], "river")

    assert provider.embedded == ["river"]


def test_a_search_names_one_space_only(make_article, run_jobs, django_assert_num_queries):
    article = make_article(title="trout")
    run_jobs()
    active = Space.objects.get(spec="app.ArticleEmbedding")
    other = Space.objects.create(
        spec="app.ArticleEmbedding",
        fingerprint="another",
        provider="default",
        backend=active.backend,
        model="another",
        dimensions=3,
        state="building",
    )
    ArticleEmbedding.objects.create(
        source=article,
        space=other,
        position=0,
        start_offset=0,
        end_offset=1,
        passage="granite",
        chunk_digest=b"",
        text_digest=b"",
        embedding=[1, 0, 0],
    )

    results = search(Article, "granite")

    assert results.space == active
    assert [hit.passage for hit in results.hits] == [f"trout\n\n{article.contents}"]


# Similar rows


def test_similar_rows_are_found_without_the_row_itself(make_article, run_jobs):
    article = make_article(title="river trout", contents="")
    near = make_article(title="river trout again", contents="")
    make_article(title="granite", contents="")
    run_jobs()

    results = similar_to(article, limit=1)

    assert list(results) == [near]
    assert results.ranking == "semantic"
    assert results[0].score > 0.5
    assert results[0].highlight == "river trout again"
    assert results.next_offset == 1


def test_similar_rows_are_found_while_the_provider_is_down(make_article, run_jobs, provider):
    article = make_article(title="river trout")
    near = make_article(title="river trout again")
    run_jobs()
    provider.is_down = True

    assert list(similar_to(article)) == [near]


def test_similar_rows_are_found_among_those_that_pass_a_filter(make_article, run_jobs):
    article = make_article(title="trout")
    make_article(title="trout", author="no")
    allowed = make_article(title="granite", author="yes")
    run_jobs()

    assert list(similar_to(article, among=Article.objects.filter(author="yes"))) == [allowed]


# Other doors


def test_a_queryset_can_be_searched_as_it_stands(make_article, run_jobs):
    article = make_article(title="river trout", author="me")
    other = make_article(title="trout", author="you")
    run_jobs()
    queryset = SearchQuerySet(Article)

    assert list(queryset.filter(author="me").search("trout", limit=1)) == [article]
    assert list(queryset.filter(author="you").similar_to(article)) == [other]


class OwnQuerySet(SearchQuerySet["Article"]):
    def mine(self):
        return self.filter(author="me")


def test_the_manager_of_a_querysets_subclass_has_its_methods(make_article, run_jobs):
    article = make_article(title="river trout", author="me")
    make_article(title="trout", author="you")
    run_jobs()
    manager = OwnQuerySet.as_manager()
    manager.model = Article

    assert isinstance(manager, SearchManager)
    assert manager.deconstruct()[:3] == (True, None, f"{__name__}.OwnQuerySet")
    assert len(manager.search("trout")) == 2
    assert list(manager.mine().search("trout")) == [article]


def test_a_manager_may_name_its_model(make_article, run_jobs):
    article = make_article(title="river trout", author="me")
    make_article(title="trout", author="you")
    run_jobs()
    manager = SearchManager["Article"]()
    manager.model = Article

    assert len(manager.search("trout")) == 2
    assert list(manager.filter(author="me").search("trout")) == [article]


def test_the_error_of_a_provider_is_never_the_visitors(make_article, run_jobs, provider):
    make_article(title="trout")
    run_jobs()
    provider.is_down = True

    results = search(Article, "trout", mode="semantic")

    assert titles(results) == ["trout"]
    assert (results.ranking, results.degraded) == ("lexical", True)
    assert "server" not in results.note  # what is wrong with it stands in the log
    with pytest.raises(ProviderUnavailable):
        query_vectors.vectors.ask(Space.objects.first(), "granite").vector()


def test_a_result_that_is_not_there_is_an_index_error_that_says_so():
    results = search(Article, "nothing like it")

    with pytest.raises(IndexError, match=r"^No result has the index 0: the search found none\. No"):
        _ = results[0]
    assert list(results[:1]) == []


@pytest.mark.parametrize("name", ["englsh", "English2", "a.b.c.d", "no.such", "two words", "\0"])
@pytest.mark.parametrize("find", [lambda one: search(Article, "trout"), similar_to])
def test_an_unknown_configuration_is_told_and_the_transaction_goes_on(
    make_article, run_jobs, settings, find, name
):
    article = make_article(title="trout")
    make_article(title="trout farm")
    run_jobs()
    settings.PGEMBED_TEXT_SEARCH_CONFIG = name

    with pytest.raises(ImproperlyConfigured, match="PGEMBED_TEXT_SEARCH_CONFIG is") as raised:
        find(article)

    assert repr(name) in str(raised.value)
    assert "It has: arabic, " in str(raised.value)
    assert Article.objects.count() == 2  # in the caller's transaction


def test_an_unknown_configuration_is_told_with_one_like_it(make_article, run_jobs, settings):
    settings.PGEMBED_TEXT_SEARCH_CONFIG = "englsh"

    with pytest.raises(ImproperlyConfigured, match="Did you mean 'english'"):
        search(Article, "trout")


def test_a_configuration_is_named_in_any_way_that_postgres_reads(make_article, run_jobs, settings):
    article = make_article(title="trout")
    run_jobs()

    for name in ("English", "pg_catalog.english", '"english"'):
        settings.PGEMBED_TEXT_SEARCH_CONFIG = name
        assert [hit.pk for hit in search(Article, "trout")] == [article.pk]
