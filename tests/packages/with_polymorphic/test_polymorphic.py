"""A search in a parent finds its children, each by the text that its own class makes."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgembed_django import search, similar_to
from pgembed_django.testing import assert_fresh
from tests.packages.with_polymorphic.models import Book, Comic, Film, Item, Person, Review

pytestmark = pytest.mark.django_db


@pytest.fixture
def items(run_jobs):
    """An item of each class, embedded."""
    film = Film.objects.create(title="Jaws", director="Sp")
    film.cast.add(Person.objects.create(name="Roy"))
    made = [
        Item.objects.create(title="Atlas"),
        Book.objects.create(title="Emma", author="Jane"),
        Comic.objects.create(title="Maus", author="Art", illustrator="Artie"),
        film,
    ]
    run_jobs()
    return made


def test_rows_of_a_parent_have_the_texts_of_their_own_classes(items, texts):
    item, book, comic, film = items

    assert texts(Item) == {
        item.pk: "Atlas",
        book.pk: "Emma by Jane",
        comic.pk: "Maus by Art",
        film.pk: "Jaws directed by Sp with Roy",
    }
    assert texts(Book) == {book.pk: "Emma\n\nJane", comic.pk: "Maus\n\nArt"}
    assert texts(Comic) == {comic.pk: "Maus\n\nArt\n\nArtie"}


def test_what_changes_in_the_table_of_a_child_reaches_its_parent(items, run_jobs, texts):
    item, book, comic, film = items

    Book.objects.filter(pk=comic.pk).update(author="Spiegelman")
    Film.objects.update(director="Spielberg")
    Person.objects.update(name="Roy Scheider")
    book.author = "Austen"
    book.save()
    run_jobs()

    assert texts(Item) == {
        item.pk: "Atlas",
        book.pk: "Emma by Austen",
        comic.pk: "Maus by Spiegelman",
        film.pk: "Jaws directed by Spielberg with Roy Scheider",
    }
    assert texts(Book)[comic.pk] == "Maus\n\nSpiegelman"
    assert texts(Comic)[comic.pk] == "Maus\n\nSpiegelman\n\nArtie"


def test_what_changes_in_the_table_of_a_parent_reaches_its_children(items, run_jobs, texts):
    _, _, comic, _ = items

    Item.objects.filter(pk=comic.pk).update(title="Maus II")
    run_jobs()

    assert texts(Item)[comic.pk] == "Maus II by Art"
    assert texts(Book)[comic.pk] == "Maus II\n\nArt"
    assert texts(Comic)[comic.pk] == "Maus II\n\nArt\n\nArtie"


def test_a_search_finds_rows_of_each_class(items):
    _, book, comic, film = items

    assert list(search(Item, "Jaws", mode="lexical")) == [film]
    assert {type(one) for one in search(Item, "art")} == {Item, Book, Comic, Film}
    assert set(search(Item.objects.instance_of(Book), "directed by")) == {book, comic}
    assert list(search(Film, "directed by", mode="lexical")) == [film]
    assert set(search(Book, "Jane")) == {book, comic}
    assert list(search(Comic, "Artie", mode="lexical")) == [comic]
    assert list(search(Comic, "by", name="BookEmbedding")) == [comic]
    assert set(similar_to(book, among=Book.objects.all())) == {comic}
    for hit in search(Item.objects.non_polymorphic(), "Jaws", mode="lexical").hits:
        assert type(hit.instance) is Item
        assert hit.instance.pk == film.pk


def test_rows_that_are_deleted_leave_no_vectors(items, texts):
    item, book, comic, film = items

    film.delete()
    assert set(texts(Item)) == {item.pk, book.pk, comic.pk}
    comic.delete()
    assert not texts(Comic)
    assert set(texts(Book)) == {book.pk}
    Item.objects.all().delete()
    assert not texts(Item)
    assert not texts(Book)


def test_a_child_that_goes_without_its_parent(items, run_jobs, texts):
    _, book, _, _ = items

    key = book.pk
    book.delete(keep_parents=True)
    assert key not in texts(Book)
    run_jobs()
    assert texts(Item)[key] == "Emma"


def test_a_row_that_becomes_one_of_a_child(items, run_jobs, texts):
    item, *_ = items

    book = Book.objects.create_from_super(item, author="Mercator")
    run_jobs()

    assert texts(Item)[item.pk] == "Atlas by Mercator"
    assert texts(Book)[item.pk] == "Atlas\n\nMercator"
    assert_fresh(book)


def test_a_text_over_a_foreign_key_to_a_polymorphic_row(items, run_jobs, texts):
    review = Review.objects.create(item=items[3], body="Scary")
    run_jobs()
    assert texts(Review) == {review.pk: "Scary\n\nJaws"}

    Film.objects.update(title="Jaws 2")
    run_jobs()
    assert texts(Review) == {review.pk: "Scary\n\nJaws 2"}


def test_queries_go_with_classes_and_not_with_rows(run_jobs, texts):
    roy = Person.objects.create(name="Roy")
    for number in range(20):
        Film.objects.create(title=f"Jaws {number}", director="Sp").cast.add(roy)
        Book.objects.create(title=f"Emma {number}", author="Jane")

    with CaptureQueriesContext(connection) as queries:
        run_jobs()

    assert len(texts(Item)) == 40
    assert sum('FROM "with_polymorphic_film"' in one["sql"] for one in queries) < 15
    assert sum('FROM "with_polymorphic_person"' in one["sql"] for one in queries) < 5
