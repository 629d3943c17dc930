"""A site with Wagtail: what editors do with pages is embedded, and no draft is ever found."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone, translation
from taggit.models import Tag
from wagtail.images.models import Image
from wagtail.images.tests.utils import get_test_image_file
from wagtail.models import Locale, Page, PageViewRestriction
from wagtail.test.utils.form_data import inline_formset, nested_form_data, rich_text, streamfield

from pgembed_django import search, similar_to, sources
from pgembed_django.models import Job, Ripple
from tests.conftest import wait_until
from tests.packages.with_wagtail.models import (
    BlogPage,
    BlogPageEmbedding,
    Dish,
    DishEmbedding,
    EventPage,
    EventPageEmbedding,
    Question,
    Speaker,
    Stop,
)

pytestmark = pytest.mark.django_db

Make = Callable[..., BlogPage]


@pytest.fixture
def home() -> Page:
    return Page.objects.get(slug="home")


@pytest.fixture
def make_page(home: Page) -> Make:
    def make(title: str = "Trout", *, parent: Page | None = None, **values: Any) -> BlogPage:
        return (parent or home).add_child(instance=BlogPage(title=title, **values))

    return make


@pytest.fixture
def german(home: Page) -> Locale:
    locale = Locale.objects.create(language_code="de")
    home.copy_for_translation(locale).save_revision().publish()
    return locale


def texts(model: Any = BlogPageEmbedding) -> list[str]:
    return list(model.objects.order_by("source_id").values_list("passage", flat=True))


def found(query: str, where: Any = BlogPage) -> list[Page]:
    return sorted(search(where, query, mode="lexical"), key=lambda page: page.pk)


def is_quiet() -> bool:
    return not Ripple.objects.exists() and not Job.objects.filter(status="pending").exists()


# What is embedded


def test_a_page_is_embedded_without_markup(make_page, run_jobs):
    page = make_page(
        intro="<p>Fish &amp; <b>rivers</b></p>",
        body=[
            ("heading", "Where"),
            ("paragraph", "<p>Upstream.</p><p>In <i>spring</i>.</p>"),
            ("image", Image.objects.create(title="A fish", file=get_test_image_file())),
        ],
    )
    page.tags.add("cold")
    page.questions = [Question(answer="<p>With <b>lemon</b></p>")]
    page.save()

    run_jobs()

    text = "Trout\n\nFish & rivers\n\nWhere\n\nUpstream. In spring.\n\ncold\n\nWith lemon"
    assert texts() == [text]


@pytest.fixture
def make_event(home: Page) -> Callable[[str], EventPage]:
    def make(title: str) -> EventPage:
        event = EventPage(title=title, stops=[Stop(name="Bergen"), Stop(name="Oslo")])
        event.tags.add("north")
        event.speakers = [Speaker.objects.get_or_create(name="Ann")[0]]
        return home.add_child(instance=event)

    return make


def test_a_text_method_reads_children_snippets_and_tags(make_event, run_jobs):
    event = make_event("Tour")
    run_jobs()
    assert texts(EventPageEmbedding) == ["Tour: Bergen, Oslo, Ann, north"]

    Stop.objects.filter(name="Oslo").update(name="Røros")
    Speaker.objects.update(name="Bo")
    Tag.objects.update(name="east")
    run_jobs()
    assert texts(EventPageEmbedding) == ["Tour: Bergen, Røros, Bo, east"]

    event.stops = []
    event.speakers = []
    event.tags.clear()
    event.save()
    run_jobs()
    assert texts(EventPageEmbedding) == ["Tour:"]


def test_no_query_is_made_for_each_page(home, make_event, run_jobs, monkeypatch):
    # A busy machine would read the pages in more pieces.
    monkeypatch.setattr(sources, "MADE_SECONDS", math.inf)
    image = Image.objects.create(title="A fish", file=get_test_image_file())
    for number in range(40):
        body = [("paragraph", "fish"), ("image", image)]
        page = BlogPage(title=f"Trout {number}", body=body, questions=[Question(answer="Lemon")])
        page.tags.add("cold")
        home.add_child(instance=page)
        make_event(f"Tour {number}")

    with CaptureQueriesContext(connection) as queries:
        run_jobs()
        Tag.objects.filter(name="cold").update(name="warm")
        run_jobs()

    assert len(texts()) == len(texts(EventPageEmbedding)) == 40
    # Each text has a savepoint, as this is in a transaction. That of a worker is in none.
    tables = 'FROM "with_wagtail_', 'FROM "wagtail', 'FROM "taggit'
    reads = [one["sql"] for one in queries if any(table in one["sql"] for table in tables)]
    assert len(reads) < 40


# Drafts


def test_a_draft_is_neither_embedded_nor_found(make_page, run_jobs):
    page, other = make_page(intro="river"), make_page("secret", live=False)
    run_jobs()

    page.intro = "lake"
    page.title = "Perch"
    page.tags.add("secret")
    page.save_revision()

    assert is_quiet()
    assert texts() == ["Trout\n\nriver"]
    assert found("perch") == found("lake") == found("secret") == []
    other.get_latest_revision_as_object().save_revision().publish()
    page.get_latest_revision().publish()
    run_jobs()
    assert texts() == ["Perch\n\nlake\n\nsecret", "secret"]
    assert found("lake") == [page]


def test_an_unpublished_page_is_not_found_from_that_moment(make_page, run_jobs):
    pages = [make_page(f"Trout {number}", intro="river") for number in range(4)]
    run_jobs()

    pages[0].unpublish()

    assert len(texts()) == 4  # until a worker comes
    for mode in ("lexical", "semantic", "hybrid"):
        assert set(search(BlogPage, "river", mode=mode, limit=3)) == set(pages[1:])
    assert set(similar_to(pages[1], limit=2)) == set(pages[2:])
    run_jobs()
    assert len(texts()) == 3


def test_pages_come_and_go_by_schedule(make_page, run_jobs):
    leaving, coming = make_page("Trout", intro="river"), make_page("Perch", live=False)
    a_moment_ago = timezone.now() - timedelta(minutes=1)
    Page.objects.filter(pk=leaving.pk).update(expire_at=a_moment_ago)
    coming.intro = "river"
    coming.save_revision(approved_go_live_at=a_moment_ago)
    run_jobs()
    assert found("river") == [leaving]

    call_command("publish_scheduled")

    assert found("river") == []
    run_jobs()
    assert found("river") == [coming]
    assert texts() == ["Perch\n\nriver"]


# The tree


def test_a_move_embeds_nothing(home, make_page, run_jobs):
    section, other = make_page("Fish", slug="fish"), make_page("Rivers", slug="rivers")
    page = make_page("Trout", parent=section)
    make_page("Spring", parent=page)
    run_jobs()

    section.move(Page.objects.get(pk=other.pk), pos="last-child")
    Page.objects.get(pk=other.pk).save()

    assert is_quiet()
    [moved] = found("trout")
    assert moved.url_path == "/home/rivers/fish/trout/"


def test_copies_and_aliases_are_pages_of_their_own(home, make_page, run_jobs):
    section = make_page("Fish", slug="fish")
    page = make_page("Trout", parent=section)
    page.tags.add("cold")
    page.questions = [Question(answer="Lemon")]
    page.save()

    copy = section.copy(recursive=True, update_attrs={"slug": "copy"}, keep_live=True)
    page.copy(update_attrs={"slug": "draft"}, keep_live=False)
    alias = page.create_alias(update_slug="alias")
    run_jobs()

    [copied] = copy.get_children().specific()
    assert found("lemon") == [page, copied, alias]
    page.title = "Salmon"
    page.save_revision().publish()
    run_jobs()
    assert found("salmon") == [page, alias]
    assert found("salmon", BlogPage.objects.filter(alias_of=None)) == [page]


def test_a_subtree_takes_its_vectors_along(make_page, run_jobs):
    section = make_page("Fish")
    rivers = make_page("Rivers", parent=section)
    make_page("Trout", parent=rivers)
    run_jobs()
    assert len(texts()) == 3
    Page.objects.filter(pk=rivers.pk).update(title="Lakes")

    Page.objects.get(pk=section.pk).delete()

    assert texts() == []
    run_jobs()
    assert is_quiet()


def test_each_translation_is_found_in_its_locale(home, make_page, run_jobs, german):
    page = make_page(intro="fish")
    draft = page.copy_for_translation(german)
    run_jobs()
    assert found("fish") == [page]

    draft.title = "Forelle"
    draft.save_revision().publish()
    run_jobs()

    assert found("fish") == [page, draft]
    assert found("fish", BlogPage.objects.filter(locale=german)) == [draft]


# Search


def test_search_returns_pages_of_their_own_type(make_event, make_page, run_jobs):
    blog, event = make_page("Trout in Oslo"), make_event("Tour")
    run_jobs()

    results = search([BlogPage, EventPage], "oslo")

    assert sorted(map(repr, results)) == sorted(map(repr, [blog, event]))
    with pytest.raises(ImproperlyConfigured, match="Page is not embeddable"):
        search(Page, "oslo")


def test_the_view_shows_what_visitors_may_see(client, home, make_page, run_jobs, german):
    page, hidden = make_page(intro="fish & river"), make_page("Hidden", intro="river")
    translated = page.copy_for_translation(german)
    translated.title = "Forelle"
    translated.save_revision().publish()
    PageViewRestriction.objects.create(page=hidden, restriction_type="login")
    make_page("Draft", intro="river").unpublish()
    run_jobs()

    html = client.get(reverse("search"), {"q": "river"}).content.decode()

    assert '<a href="/en/trout/">Trout</a> Trout fish &amp; <mark>river</mark>' in html
    assert html.count("<a href") == 1
    with translation.override("de"):
        html = client.get(reverse("search"), {"q": "river"}).content.decode()
    assert '<a href="/de/trout/">Forelle</a>' in html
    assert html.count("<a href") == 1


def test_the_view_makes_as_many_queries_for_more_pages(client, make_page, run_jobs):
    def count() -> int:
        run_jobs()
        with CaptureQueriesContext(connection) as queries:
            html = client.get(reverse("search"), {"q": "river"}).content.decode()
        assert html.count("<a href") == BlogPage.objects.count()
        return len(queries)

    make_page("Trout", intro="river")
    count()
    one = count()
    for number in range(19):
        make_page(f"Trout {number}", intro="river")

    assert count() == one


# Wagtail's admin


def submitted(page: BlogPage, **values: Any) -> dict[str, Any]:
    return nested_form_data(
        {
            "title": page.title,
            "slug": page.slug,
            "intro": rich_text("<p>river</p>"),
            "body": streamfield([("heading", "Where"), ("paragraph", rich_text("<p>North</p>"))]),
            "tags": "cold",
            "questions": inline_formset([{"answer": rich_text("<p>Lemon</p>")}]),
            "comments": inline_formset([]),
            **values,
        }
    )


def test_what_an_editor_publishes_is_embedded(admin_client, make_page, run_jobs):
    page = make_page()
    run_jobs()
    edit = reverse("wagtailadmin_pages:edit", args=[page.pk])

    admin_client.post(edit, submitted(page))
    assert is_quiet()
    assert texts() == ["Trout"]

    admin_client.post(edit, submitted(page, **{"action-publish": "x"}))
    run_jobs()
    assert texts() == ["Trout\n\nriver\n\nWhere\n\nNorth\n\ncold\n\nLemon"]

    admin_client.post(reverse("wagtailadmin_pages:unpublish", args=[page.pk]))
    assert found("river") == []
    run_jobs()
    assert texts() == []


def test_snippets_with_drafts_and_tags(admin_client, run_jobs):
    dish = Dish(name="Soup")
    dish.tags.add("hot")
    dish.save()
    run_jobs()
    assert texts(DishEmbedding) == ["Soup\n\nhot"]

    dish.name = "Stew"
    dish.tags.add("spicy")
    dish.save_revision()
    assert is_quiet()

    dish.latest_revision.publish()
    run_jobs()
    assert texts(DishEmbedding) == ["Stew\n\nhot\n\nspicy"]

    Dish.objects.get().unpublish()
    assert texts(DishEmbedding) == []  # live is a column of its own: in the writer's transaction


# A worker


@pytest.mark.django_db(transaction=True)
def test_a_worker_embeds_what_is_published(home, make_page, start_worker):
    """It commits: the worker is a process of its own."""
    start_worker()
    page = make_page(live=False)
    page.intro = "river"

    page.save_revision().publish()

    wait_until(lambda: texts() == ["Trout\n\nriver"])
    BlogPage.objects.get().unpublish()
    wait_until(lambda: texts() == [])
