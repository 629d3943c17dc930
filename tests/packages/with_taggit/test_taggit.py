"""Tags are part of the text, whoever writes them."""

from __future__ import annotations

import pytest
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from taggit.models import Tag, TaggedItem

from pgembed_django import search
from pgembed_django.testing import assert_fresh
from tests.packages.with_taggit.models import Album, Book, Genre, Photo, Recipe, Restaurant

pytestmark = pytest.mark.django_db

TRIGGERED = """
    SELECT DISTINCT tgrelid::regclass::text
    FROM pg_trigger
    JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE strpos(prosrc, 'with_taggit.') > 0
"""


def triggered_tables():
    """Return the tables with triggers for declarations of this app."""
    with connection.cursor() as cursor:
        cursor.execute(TRIGGERED)
        return {table for [table] in cursor.fetchall()}


def test_tags_that_are_added_renamed_and_removed(run_jobs, texts):
    recipe = Recipe.objects.create(title="Trout")
    recipe.tags.add("fish", "quick")
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout\n\nfish\n\nquick"}

    Tag.objects.filter(name="fish").update(name="seafood")
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout\n\nseafood\n\nquick"}

    recipe.tags.remove("quick")
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout\n\nseafood"}
    assert list(search(Recipe, "seafood", mode="lexical")) == [recipe]

    recipe.tags.set(["river", "seafood"])
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout\n\nseafood\n\nriver"}

    recipe.tags.clear()
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout"}
    assert not search(Recipe, "seafood", mode="lexical")


def test_a_deleted_tag(run_jobs, texts):
    recipe = Recipe.objects.create(title="Trout")
    recipe.tags.add("fish", "quick")
    run_jobs()

    Tag.objects.get(name="fish").delete()
    run_jobs()

    assert texts(Recipe) == {recipe.pk: "Trout\n\nquick"}


def test_tags_that_are_merged_in_the_admin(admin_client, run_jobs, texts):
    one, two = (Recipe.objects.create(title=title) for title in ("Trout", "Perch"))
    one.tags.add("fish")
    two.tags.add("fish", "seafood")
    run_jobs()

    session = admin_client.session
    session["selected_tag_ids"] = str(Tag.objects.get(name="fish").pk)
    session.save()
    url = "/admin/taggit/tag/merge-tags/"
    assert admin_client.post(url, {"new_tag_name": "seafood"}).status_code == 302
    run_jobs()

    assert texts(Recipe) == {one.pk: "Trout\n\nseafood", two.pk: "Perch\n\nseafood"}


def test_tags_that_are_merged_by_the_command(run_jobs, texts, settings):
    recipe = Recipe.objects.create(title="Trout")
    recipe.tags.add("fish", "Fish")
    run_jobs()

    settings.TAGGIT_CASE_INSENSITIVE = True
    call_command("deduplicate_tags")
    run_jobs()

    assert texts(Recipe) == {recipe.pk: "Trout\n\nfish"}


def test_models_that_share_keys_have_tags_of_their_own(run_jobs, texts):
    recipe = Recipe.objects.create(title="Trout")
    photo = Photo.objects.create(pk=recipe.pk, title="Sunset")
    recipe.tags.add("fish")
    photo.tags.add("sky", "evening")
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout\n\nfish"}
    assert texts(Photo) == {photo.pk: "Sunset (evening, sky)"}

    photo.tags.add("fish")
    Tag.objects.filter(name="fish").update(name="seafood")
    run_jobs()
    assert texts(Recipe) == {recipe.pk: "Trout\n\nseafood"}
    assert texts(Photo) == {photo.pk: "Sunset (evening, seafood, sky)"}


def test_a_tagged_item_that_goes_to_another_model(run_jobs, texts):
    recipe = Recipe.objects.create(title="Trout")
    photo = Photo.objects.create(pk=recipe.pk, title="Sunset")
    recipe.tags.add("river")
    run_jobs()

    TaggedItem.objects.update(content_type=ContentType.objects.get_for_model(Photo))
    run_jobs()

    assert texts(Recipe) == {recipe.pk: "Trout"}
    assert texts(Photo) == {photo.pk: "Sunset (river)"}


def test_a_text_method_finds_the_tags_prefetched(run_jobs, texts):
    for number in range(20):
        Photo.objects.create(title=f"Photo {number}").tags.add("sky", f"tag {number}")

    with CaptureQueriesContext(connection) as queries:
        run_jobs()

    assert len(texts(Photo)) == 20
    # One for each page of rows.
    assert sum('FROM "taggit_tag"' in query["sql"] for query in queries) < 5


def test_a_through_model_for_keys_that_are_uuids(run_jobs, texts):
    album = Album.objects.create(title="Blue")
    album.tags.add("jazz")
    run_jobs()
    assert texts(Album) == {album.pk: "Blue\n\njazz"}

    Tag.objects.filter(name="jazz").update(name="folk")
    run_jobs()
    assert texts(Album) == {album.pk: "Blue\n\nfolk"}

    album.tags.remove("folk")
    run_jobs()
    assert_fresh(album)


def test_tags_and_a_through_model_of_ones_own(run_jobs, texts):
    one, two = (Book.objects.create(title=title) for title in ("Emma", "Dune"))
    one.genres.add("romance", "classic")
    two.genres.add("classic")
    run_jobs()
    assert texts(Book) == {one.pk: "Emma\n\nromance\n\nclassic", two.pk: "Dune\n\nclassic"}

    Genre.objects.filter(name="classic").update(name="canon")
    run_jobs()
    assert texts(Book) == {one.pk: "Emma\n\nromance\n\ncanon", two.pk: "Dune\n\ncanon"}

    Genre.objects.get(name="canon").delete()
    one.genres.through.objects.filter(content_object=one).update(content_object=two)
    run_jobs()
    assert texts(Book) == {one.pk: "Emma", two.pk: "Dune\n\nromance"}


def test_tags_of_a_parent(run_jobs, texts):
    restaurant = Restaurant.objects.create(title="Ivy", cuisine="Thai")
    restaurant.tags.add("hot")
    run_jobs()
    assert texts(Restaurant) == {restaurant.pk: "Ivy\n\nThai\n\nhot"}

    restaurant.shop_ptr.tags.add("cheap")  # of another content type
    Tag.objects.filter(name="hot").update(name="spicy")
    run_jobs()
    assert texts(Restaurant) == {restaurant.pk: "Ivy\n\nThai\n\nspicy\n\ncheap"}


def test_a_search_among_tagged_rows_finds_each_once(run_jobs):
    one, two, _ = (Recipe.objects.create(title=f"Trout {name}") for name in "abc")
    one.tags.add("fish", "quick")
    two.tags.add("quick")
    run_jobs()

    found = search(Recipe.objects.filter(tags__name__in=["fish", "quick"]), "trout", limit=2)

    assert set(found) == {one, two}
    assert found.next_offset is None


def test_migrations_take_the_triggers_along_from_the_tables_of_the_package():
    before = triggered_tables()
    assert {"taggit_tag", "taggit_taggeditem", "with_taggit_recipe"} <= before

    call_command("migrate", "with_taggit", "zero", verbosity=0)
    assert not triggered_tables()

    call_command("migrate", "with_taggit", verbosity=0)
    assert triggered_tables() == before
