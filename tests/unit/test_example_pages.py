"""The pure parts of the example's search page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "example_project"))

from blog.articles import FOLDER, read, written
from demo import web
from demo.exceptions import DemoFailed
from library.links import SITE, documentation_url
from website import asked
from website.snippets import LENGTH, breakable, snippet
from website.why import ways

from pgembed_django.retrieval import Match

LONG = " ".join(f"word{number}" for number in range(500))


def text_of(html: str) -> str:
    return re.sub(r"</?mark>", "", html)


def test_the_words_asked_for_are_marked_in_other_forms_too():
    found = snippet("It measures how long measuring took.", "measure time")
    assert found == "It <mark>measures</mark> how long <mark>measuring</mark> took."


def test_words_that_say_nothing_are_not_marked():
    assert "<mark>" not in snippet("the end of the file", "where is the of")


@pytest.mark.parametrize("query", ["<b>", "lt", "amp b", "script", "&", "(", "\\", "a" * 5000, ""])
def test_a_snippet_never_lets_markup_through(query):
    found = snippet("<script>alert('&amp;')</script> a <b> (c)", query)
    assert set(re.findall(r"<[^>]*>", found)) <= {"<mark>", "</mark>"}


def test_a_long_passage_is_cut_between_words_where_the_words_are():
    found = snippet(LONG, "word400")
    assert "<mark>word400</mark>" in found
    assert found.startswith("… ")
    assert found.endswith(" …")
    assert set(text_of(found).strip("… ").split()) <= set(LONG.split())
    assert len(text_of(found)) <= LENGTH + 4


def test_a_long_passage_without_the_words_shows_its_beginning():
    assert snippet(LONG, "nothing").startswith("word0 word1")


def test_a_passage_without_spaces_is_cut_all_the_same():
    assert len(snippet("x" * 5000, "y")) <= LENGTH + 4


def test_headings_that_the_page_shows_already_are_left_out():
    found = snippet("Title\n\nAuthor\n\nText.", "", leave_out=("Title", "Author"))
    assert found == "Text."


def test_a_dotted_name_may_be_broken_after_its_dots():
    assert breakable("os.path.join") == "os.<wbr>path.<wbr>join"
    assert breakable("<b>.x") == "&lt;b&gt;.<wbr>x"


def test_a_passage_from_the_middle_of_its_text_says_so():
    whole = "Title\n\nOne. Two. Three.\n\nCategory"
    shown = ("Title", "Category")
    assert snippet("Title\n\nOne.", "", whole=whole, leave_out=shown) == "One. …"
    assert snippet("Two.", "", whole=whole, leave_out=shown) == "… Two. …"
    assert snippet("Three.\n\nCategory", "", whole=whole, leave_out=shown) == "… Three."


def test_the_question_is_read_from_the_address():
    question = asked.read({"q": " a  b\0 ", "module": "time", "in": "articles"}, {"time"})
    assert (question.text, question.module, question.shelf) == ("a b", "time", "articles")
    assert question.notes == ()


def test_an_unknown_module_is_told_and_all_are_searched():
    question = asked.read({"q": "x", "module": "nope"}, {"time"})
    assert question.module == ""
    assert "'nope'" in question.notes[0]


def test_a_very_long_question_is_cut_and_told():
    question = asked.read({"q": "x" * 100_000}, set())
    assert len(question.text) == asked.LONGEST_QUERY
    assert str(asked.LONGEST_QUERY) in question.notes[0]


def test_an_unknown_shelf_is_the_library():
    assert asked.read({"in": "attic"}, set()).shelf == "library"


def test_a_link_keeps_the_question():
    question = asked.read({"q": "a & b", "in": "articles"}, set())
    assert question.link() == "?q=a+%26+b&in=articles"
    assert question.link(q="c") == "?q=c&in=articles"


def test_the_options_are_read_from_the_address_and_kept_in_links():
    options = {"mode": "semantic", "language": "german", "min_similarity": "0", "reranker": "best"}
    question = asked.read({"q": "x", **options}, set(), ["best"])

    assert (question.mode, question.language, question.reranker) == ("semantic", "german", "best")
    assert question.min_similarity == 0.0
    assert question.notes == ()
    for url in (question.link(), *(url for _, url, _ in question.tabs)):
        given = dict(parse_qsl(url.removeprefix("?")))
        assert {**options, "min_similarity": "0.0", "q": "x"}.items() <= given.items()


def test_what_a_form_sends_of_options_that_were_left_alone_is_their_default():
    question = asked.read({"mode": "", "language": "", "min_similarity": " "}, set())

    assert question == asked.Asked()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "best"),
        ("language", "klingon"),
        ("language", "english'); --"),
        ("reranker", "1"),
        ("min_similarity", "1.01"),
        ("min_similarity", "-2"),
        ("min_similarity", "nan"),
        ("min_similarity", "inf"),
        ("min_similarity", "0,5"),
        ("min_similarity", "much"),
    ],
)
def test_an_option_that_cannot_be_used_is_told_and_left_out(name, value):
    question = asked.read({"q": "x", name: value}, set())

    [note] = question.notes
    assert value in note
    assert note.startswith(("There is no ", "The least similarity is "))
    assert question.options == {}


def test_a_search_by_words_requires_no_similarity_and_says_so():
    question = asked.read({"q": "x", "mode": "lexical", "min_similarity": "0.5"}, set())

    assert question.min_similarity is None
    assert question.mode == "lexical"
    assert "compares no vectors" in question.notes[0]


def test_the_ways_tell_rank_score_and_place_words_first():
    whole = "A stone. " * 176 + "A trout & more."
    matched_by = (Match("semantic", 1, 0.777, 0, 8), Match("lexical", 22, 12.44, 1584, 1599))

    words, meaning = ways(matched_by, "trout", whole=whole, shown=(0, 8))

    assert (words.name, words.rank, words.score) == ("words", "22nd", "12.4")
    assert (words.measure, words.place) == ("BM25 score", "1,584 to 1,599")
    assert words.excerpt == "… A <mark>trout</mark> &amp; more."
    assert (meaning.name, meaning.rank, meaning.score) == ("meaning", "1st", "0.78")
    assert meaning.excerpt == ""


@pytest.mark.parametrize(
    ("name", "module", "page"),
    [
        ("time", "time", "library/time.html#module-time"),
        ("time.perf_counter", "time", "library/time.html#time.perf_counter"),
        ("os.path.join", "os", "library/os.path.html#os.path.join"),
        ("os.walk", "os", "library/os.html#os.walk"),
        ("str.join", "builtins", "library/stdtypes.html#str.join"),
        ("print", "builtins", "library/functions.html#print"),
        ("ValueError", "builtins", "library/exceptions.html#ValueError"),
        ("asyncio.gather", "asyncio", "search.html?q=asyncio.gather"),
        (
            "xml.etree.ElementTree.parse",
            "xml",
            "library/xml.etree.elementtree.html#xml.etree.ElementTree.parse",
        ),
    ],
)
def test_a_name_is_linked_to_where_it_is_explained(name, module, page):
    assert documentation_url(name, module) == f"{SITE}/{page}"


def test_each_article_can_be_read_and_is_of_a_readable_length():
    articles = list(written())
    assert len(articles) == len(list(FOLDER.glob("*.md"))) == 12
    assert all(150 <= len(article.contents.split()) <= 400 for article in articles)
    assert len({article.title for article in articles}) == 12


def test_some_articles_are_published_and_some_are_drafts():
    times = [article.published_time for article in written()]
    assert None in times
    assert any(time and time.tzinfo for time in times)


def test_an_article_without_a_time_is_a_draft():
    article = read("title: T: a\nauthor: A\ncategory: c\n\nOne.\n\nTwo.\n")
    assert (article.title, article.contents, article.published_time) == (
        "T: a",
        "One.\n\nTwo.",
        None,
    )


def test_a_port_that_does_not_exist_is_refused_with_its_number():
    with pytest.raises(DemoFailed, match=r"^Port 99999 cannot be used: .*\d\. Choose another"):
        web.free_port(99999)
