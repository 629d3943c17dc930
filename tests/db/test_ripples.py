"""Texts that span tables: what changes in other tables reaches the units by ripples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.models import F, QuerySet
from django.test.utils import CaptureQueriesContext

from pgembed_django import search, similar_to, sources, spaces
from pgembed_django.declaration import specs
from pgembed_django.models import Job, Ripple
from pgembed_django.ops import status
from pgembed_django.spaces import coverage
from pgembed_django.spaces.ripples import PAGE_UNITS, Expander
from pgembed_django.testing import assert_fresh, without_triggers
from tests.app.models import (
    Author,
    City,
    Essay,
    EssayPlain,
    Label,
    Leaf,
    Remark,
    Story,
    StoryEmbedding,
    Tag,
)
from tests.db.conftest import backend_pid, lock_refusals

Make = Callable[..., Story]


def spec(key: str = "app.StoryEmbedding") -> specs.Spec:
    found = specs.get(key)
    assert found is not None
    return found


@pytest.fixture
def make_story(db: None) -> Make:
    """A story with one row of each relation."""

    def make(title: str = "Trout", **values: Any) -> Story:
        author = Author.objects.create(name="Ann", city=City.objects.create(name="Oslo"))
        story = Story.objects.create(**{"title": title, "author": author, **values})
        story.tags.add(*[Tag.objects.create(word=word) for word in ("fish", "river")])
        user = User.objects.create(username=f"user {User.objects.count()}")
        Remark.objects.create(story=story, by=user, body="good")
        Label.objects.create(target=story, word="new")
        return story

    return make


def stored_text(story: Story) -> str:
    [text] = StoryEmbedding.objects.filter(source=story).values_list("passage", flat=True)
    return str(text)


def pending() -> list[str]:
    found = Job.objects.filter(status="pending", spec="app.StoryEmbedding")
    return sorted(found.values_list("source_pk", flat=True))


def ripples() -> QuerySet[Ripple]:
    return Ripple.objects.filter(spec="app.StoryEmbedding")


def expand(key: str = "app.StoryEmbedding", *, until_rid: bool = True) -> None:
    """Expand the ripples, or one page of them, as a worker does."""
    expander = Expander([spec(key)], using="default")
    while (one := expander.next_spec()) and expander.expand(one) and until_rid:
        pass


@pytest.mark.django_db
def test_a_text_has_its_related_values_in_the_stated_order(make_story, run_jobs):
    story = make_story()
    Remark.objects.create(story=story, body="better")
    first = Tag.objects.earliest("pk")
    story.tags.remove(first)
    story.tags.add(first)  # its through row comes last, its key is the lower one

    run_jobs()

    user = User.objects.get()
    parts = ["Trout", "Ann", "Oslo", "fish", "river", "good", "better", user.username, "new"]
    assert stored_text(story).split("\n\n") == parts


@pytest.mark.django_db
def test_related_rich_text_is_embedded_without_its_markup(make_story, run_jobs, monkeypatch):
    body = Remark._meta.get_field("body")
    monkeypatch.setattr(body, "get_searchable_content", lambda _: ["one", "two"], raising=False)
    story = make_story()

    run_jobs()

    assert "river\n\none\n\ntwo\n\nuser 0" in stored_text(story)


@pytest.mark.django_db
def test_a_generic_key_of_the_wrong_type_harms_no_other_row(make_story, run_jobs):
    story = make_story()
    kind = ContentType.objects.get_for_model(Story)
    Label.objects.create(content_type=kind, object_id="abc", word="astray")
    Label.objects.create(target=story, word="newer")

    run_jobs()

    assert stored_text(story).endswith("\n\nnew\n\nnewer")


@pytest.mark.django_db
def test_values_of_related_rows_count_in_what_is_read_at_once(make_story):
    long, short = make_story(), make_story()
    for _ in range(2):
        Remark.objects.create(story=long, body="x" * 10_000)
    reading = sources.Reading(spec(), using="default")
    units = [str(short.pk), str(long.pk)]

    assert reading.fitting(units, room=20_000) == units[:1]
    assert reading.fitting(units, room=21_000) == units


@pytest.mark.django_db
def test_the_recipe_has_the_lookups():
    assert "related author__name, author__city__name" in spec().recipe
    assert "method full_text; related owner__name" in spec("app.EssayEmbedding").recipe


CHANGES: dict[str, Callable[[Story, Story], Any]] = {
    "a rename": lambda one, _: Author.objects.filter(story=one).update(name="Bo"),
    "a rename two hops away": lambda one, _: City.objects.filter(author__story=one).update(
        name="X"
    ),
    "a move of the middle row": lambda one, two: Author.objects.filter(story=one).update(
        city=City.objects.create(name="Rome")
    ),
    "a removal of the middle row": lambda one, _: one.author.delete(),
    "a removal behind the middle row": lambda one, _: one.author.city.delete(),
    "another author": lambda one, _: Story.objects.filter(pk=one.pk).update(
        author=Author.objects.create(name="Cy")
    ),
    "a renamed tag": lambda one, _: one.tags.filter(word="fish").update(word="whale"),
    "an added tag": lambda one, _: one.tags.add(Tag.objects.create(word="lake")),
    "a removed tag": lambda one, _: one.tags.remove(one.tags.first()),
    "other tags": lambda one, _: one.tags.set([Tag.objects.create(word="lake")]),
    "no tags": lambda one, _: one.tags.clear(),
    "a deleted tag": lambda one, _: one.tags.first().delete(),
    "a tag that gets the story": lambda one, _: Tag.objects.create(word="lake").stories.add(one),
    "a moved through row": lambda one, two: (
        two.tags.clear(),
        Story.tags.through.objects.filter(story=one).update(story=two),
    ),
    "a new remark": lambda one, _: Remark.objects.create(story=one, body="new"),
    "an edited remark": lambda one, _: one.remarks.update(body="bad"),
    "a moved remark": lambda one, two: one.remarks.update(story=two),
    "a remark without a story": lambda one, _: one.remarks.update(story=None),
    "a deleted remark": lambda one, _: one.remarks.all().delete(),
    "a raw delete": lambda one, _: one.remarks.all()._raw_delete("default"),
    "a renamed user": lambda one, _: User.objects.filter(pk=one.remarks.get().by_id).update(
        username="somebody"
    ),
    "a deleted user": lambda one, _: one.remarks.get().by.delete(),
    "a new label": lambda one, _: Label.objects.create(target=one, word="hot"),
    "an edited label": lambda one, _: one.labels.update(word="old"),
    "a moved label": lambda one, two: one.labels.update(object_id=two.pk),
    "a label of another kind": lambda one, _: one.labels.update(
        content_type=ContentType.objects.get_for_model(User)
    ),
    "a deleted label": lambda one, _: one.labels.all().delete(),
    "truncated remarks": lambda one, _: truncate("app_remark"),
    "truncated tags": lambda one, _: truncate("app_story_tags"),
    "truncated labels": lambda one, _: truncate("app_label"),
}


def truncate(table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"TRUNCATE {table}")


def texts() -> dict[str, bytes]:
    rows = sources.read(spec(), spec().rows(using="default")).texts
    return {key: spec().text_digest(text) for key, text in rows.items()}


@pytest.mark.django_db
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_elsewhere_is_embedded(make_story, run_jobs, change):
    one, two, other = make_story("one"), make_story("two"), make_story("other")
    run_jobs()
    before = texts()

    change(one, two)

    changed = {key for key, digest in texts().items() if before[key] != digest}
    is_of_all = "truncate" in change.__code__.co_names
    assert changed == set(before) if is_of_all else changed <= {str(one.pk), str(two.pk)}
    assert changed
    run_jobs()
    for story in (one, two, other):
        assert_fresh(story)
    assert not ripples().exists()


@pytest.mark.django_db
def test_a_writer_of_another_table_only_inserts_ripples(make_story, run_jobs):
    story = make_story()
    run_jobs()

    Author.objects.update(name="Bo")

    assert pending() == []
    [ripple] = ripples()
    assert (ripple.path, ripple.key) == ("author__pk", str(story.author_id))


@pytest.mark.django_db
def test_what_no_text_is_made_of_leaves_no_ripple(make_story, run_jobs):
    make_story()
    run_jobs()

    Author.objects.update(seen=1)
    City.objects.update(country="NO")
    Author.objects.create(name="without a story")
    Remark.objects.create(body="without a story")
    Remark.objects.update(body=F("body"))

    assert not ripples().exists()


@pytest.mark.django_db
def test_equal_ripples_collapse(make_story, run_jobs):
    story = make_story()
    run_jobs()
    for number in range(100):
        Author.objects.update(name=f"Ann {number}")

    expand(until_rid=False)

    assert not ripples().exists()
    assert pending() == [str(story.pk)]


@pytest.mark.django_db
def test_many_units_are_expanded_in_pages(make_story, run_jobs):
    author = make_story().author
    with without_triggers():
        Story.objects.bulk_create(
            Story(title=f"Story {number}", author=author) for number in range(2 * PAGE_UNITS)
        )
    Job.objects.all().delete()
    ripples().delete()
    author.name = "Bo"
    author.save()

    expand(until_rid=False)

    assert len(pending()) == PAGE_UNITS
    [ripple] = ripples()
    in_order = Story.objects.order_by("pk").values_list("pk", flat=True)
    assert ripple.cursor == str(in_order[PAGE_UNITS - 1])
    told = StringIO()
    call_command("embed_status", specs=["app.StoryEmbedding"], stdout=told)
    assert "related changes to expand: 1 (1,000 jobs so far); oldest change" in told.getvalue()
    author.name = "Cy"
    author.save()  # in the middle of it
    expand()
    assert len(pending()) == 2 * PAGE_UNITS + 1
    assert not ripples().exists()


@pytest.mark.django_db
def test_jobs_of_related_changes_come_behind_those_of_writes(make_story, run_jobs):
    make_story()
    run_jobs()
    Author.objects.update(name="Bo")
    expand()

    [job] = Job.objects.filter(status="pending")

    assert (job.kind, job.priority, job.is_awaited) == ("ripple", -500, True)


@pytest.mark.django_db
def test_a_failing_unit_starts_afresh(make_story, run_jobs):
    story = make_story()
    Job.objects.update(attempts=3, run_at="2100-01-01T00:00:00Z")
    ripples().delete()
    Author.objects.update(name="Bo")

    expand()

    job = Job.objects.get(source_pk=str(story.pk), spec="app.StoryEmbedding")
    assert job.attempts == 0
    assert job.run_at.year < 2100


@pytest.mark.django_db
def test_a_page_of_units_takes_a_query_per_relation(make_story):
    make_story()

    def queries() -> int:
        keys = [str(pk) for pk in Story.objects.values_list("pk", flat=True)]
        with CaptureQueriesContext(connection) as captured:
            sources.load(spec(), keys, using="default")
        return len(captured)

    one = queries()
    for _ in range(5):
        make_story()

    assert queries() == one


@pytest.mark.django_db
def test_the_status_tells_of_ripples(make_story, run_jobs):
    make_story()
    run_jobs()
    Author.objects.update(name="Bo")

    [found] = status.overview(using="default", specs=[spec()]).specs

    assert (found.ripples.waiting, found.ripples.units) == (status.Count(1), status.Count(0))
    assert found.oldest_change_seconds == found.ripples.oldest_seconds
    assert "1 change of related rows is waiting, the oldest for" in found.verdict.reason


# Parents


@pytest.fixture
def make_essay(db: None) -> Callable[..., Essay]:
    def make(**values: Any) -> Essay:
        return Essay.objects.create(**{"title": "Trout", "intro": "of rivers", **values})

    return make


@pytest.mark.django_db
def test_a_parents_column_is_part_of_the_text(make_essay, run_jobs):
    essay = make_essay()
    run_jobs()
    assert EssayPlain.objects.get().passage == "Trout\n\nof rivers"

    Leaf.objects.update(title="Salmon")
    run_jobs()

    assert EssayPlain.objects.get().passage == "Salmon\n\nof rivers"
    assert_fresh(essay)


@pytest.mark.django_db
def test_a_text_method_finds_its_relation_prefetched(make_essay, run_jobs):
    essay = make_essay(owner=Author.objects.create(name="Ann"))
    run_jobs()

    Author.objects.update(name="Bo")
    run_jobs()

    assert_fresh(essay)
    of = spec("app.EssayEmbedding")
    text = sources.load(of, [str(essay.pk)], using="default").texts[str(essay.pk)]
    assert text == "Trout by Bo: of rivers"


@pytest.mark.django_db
def test_a_stale_row_is_hidden_from_the_expansion_on(make_essay, run_jobs):
    essay = make_essay()
    run_jobs()

    def found() -> list[Essay]:
        return list(search(Essay, "rivers", name="EssayEmbedding"))

    Leaf.objects.update(title="Salmon")

    assert found() == [essay]
    expand("app.EssayEmbedding")
    assert found() == []
    run_jobs()
    assert found() == [essay]


@pytest.mark.django_db
def test_what_left_by_its_parents_column_is_not_found_and_then_removed(make_essay, run_jobs):
    essays = [make_essay(title=f"Trout {number}") for number in range(5)]
    run_jobs()

    Leaf.objects.filter(pk__in=[one.pk for one in essays[:3]]).update(live=False)

    for mode in ("lexical", "semantic", "hybrid"):
        found = search(Essay, "trout", name="EssayPlain", limit=2, mode=mode)
        assert {hit.pk for hit in found} == {one.pk for one in essays[3:]}
    similar = similar_to(essays[3], name="EssayPlain", limit=2)
    assert [hit.pk for hit in similar] == [essays[4].pk]
    assert EssayPlain.objects.count() == 5
    run_jobs()
    assert EssayPlain.objects.count() == 2

    Leaf.objects.update(live=True)
    run_jobs()
    assert EssayPlain.objects.count() == 5


@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["lexical", "semantic", "hybrid"])
def test_the_nearest_that_left_take_no_place_of_the_results(make_essay, run_jobs, mode):
    farther = [make_essay(title="Trout among others", intro=word) for word in ("lakes", "seas")]
    left = [make_essay(title="Trout", intro="") for _ in range(5)]
    left.append(make_essay(title="Trout among others", intro="lakes"))  # as the first
    run_jobs()
    Leaf.objects.filter(pk__in=[one.pk for one in left]).update(live=False)

    found = search(Essay, "trout", name="EssayPlain", limit=2, mode=mode)

    assert {hit.pk for hit in found} == {one.pk for one in farther}
    similar = similar_to(farther[0], name="EssayPlain", limit=1)
    assert [hit.pk for hit in similar] == [farther[1].pk]
    assert EssayPlain.objects.count() == 8
    [told] = status.overview(using="default", specs=[spec("app.EssayPlain")]).specs
    assert (told.active.coverage.rows, told.active.coverage.covered) == (2, 2)


@pytest.mark.django_db
def test_what_left_is_not_even_ranked(make_essay, run_jobs):
    live = make_essay(title="Trout", intro="")
    left = make_essay(title="Trout among many other words", intro="of another kind")
    run_jobs()
    Leaf.objects.filter(pk=left.pk).update(live=False)

    found = search(Essay, "trout", name="EssayPlain", limit=1)

    assert [hit.pk for hit in found] == [live.pk]
    assert found.next_offset is None


@pytest.mark.django_db
def test_a_column_of_its_own_in_a_condition_that_spans_tables_is_watched(make_essay, run_jobs):
    essay = make_essay()
    run_jobs()

    Essay.objects.update(is_secret=True)
    run_jobs()

    assert not spec("app.EssayEmbedding").embedding_model._base_manager.exists()
    essay.delete()
    assert not EssayPlain.objects.exists()  # at once


@pytest.mark.django_db
def test_the_coverage_applies_a_condition_that_spans_tables(make_essay, run_jobs):
    make_essay(), make_essay(live=False)
    run_jobs()
    of = spec("app.EssayPlain")

    space = spaces.active(of, using="default")

    assert coverage.last_gap(of, space, using="default") is None
    [found] = status.overview(using="default", specs=[of]).specs
    assert (found.active.coverage.rows, found.active.coverage.covered) == (1, 1)


# Writers never wait, and nothing is lost


@pytest.fixture
def two_writers(
    transactional_db: None, connect: Callable[..., psycopg.Connection]
) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
    """Two open transactions. A statement that waits for the other one fails."""
    both = connect(), connect()
    for one in both:
        one.execute("SET lock_timeout = '2s'")
    return both


TAG = "INSERT INTO app_story_tags (story_id, tag_id) VALUES (%s, %s)"
TITLE = "UPDATE app_leaf SET title = %s WHERE id = %s"
INTRO = "UPDATE app_essay SET intro = %s WHERE sheet_ptr_id = %s"


def finish(two_writers: Any, run_jobs: Callable[[], int], *rows: Any) -> None:
    for one in two_writers:
        one.commit()
    run_jobs()
    for row in rows:
        assert_fresh(row)
    assert not ripples().exists()


@pytest.mark.django_db(transaction=True)
def test_a_row_that_takes_anothers_place_in_one_transaction(make_story, connect, run_jobs):
    story = make_story()
    run_jobs()

    writer = connect()
    writer.execute("DELETE FROM app_author WHERE id = %s", [story.author_id])
    writer.execute(
        "INSERT INTO app_author (id, name, seen) VALUES (%s, 'Bo', 0)", [story.author_id]
    )
    finish([writer], run_jobs, story)

    assert "Bo" in stored_text(story)


def test_tags_in_opposite_order(make_story, two_writers, run_jobs):
    one, two = make_story(), make_story()
    run_jobs()
    first, second = (Tag.objects.create(word=word).pk for word in ("a", "b"))
    [left, right] = two_writers

    left.execute(TAG, [one.pk, first])
    right.execute(TAG, [two.pk, second])
    left.execute(TAG, [two.pk, first])
    right.execute(TAG, [one.pk, second])

    finish(two_writers, run_jobs, one, two)


def test_a_parent_then_its_child_beside_a_child_then_its_parent(
    transactional_db, two_writers, run_jobs
):
    one, two = (Essay.objects.create(title=f"Essay {number}") for number in range(2))
    run_jobs()
    [left, right] = two_writers

    left.execute(TITLE, ["a", one.pk])
    right.execute(INTRO, ["b", one.pk])
    left.execute(INTRO, ["c", two.pk])
    right.execute(TITLE, ["d", two.pk])

    finish(two_writers, run_jobs, one, two)


def test_a_cascade_and_a_set_null_beside_other_writers(make_story, two_writers, run_jobs):
    one, two = make_story(), make_story()
    run_jobs()
    [left, right] = two_writers

    left.execute("UPDATE app_story SET author_id = NULL WHERE id = %s", [one.pk])
    right.execute("UPDATE app_tag SET word = upper(word)")
    left.execute("DELETE FROM app_author WHERE id = %s", [one.author_id])
    right.execute("UPDATE app_city SET name = upper(name)")
    right.execute("DELETE FROM app_remark WHERE story_id = %s", [one.pk])
    left.execute("DELETE FROM app_story_tags WHERE story_id = %s", [two.pk])

    finish(two_writers, run_jobs, one, two)


def test_a_truncated_related_table_beside_other_writers(make_story, two_writers, run_jobs):
    story = make_story()
    run_jobs()
    [left, right] = two_writers

    left.execute("UPDATE app_story SET title = 'other' WHERE id = %s", [story.pk])
    right.execute("TRUNCATE app_remark")
    left.execute("UPDATE app_tag SET word = upper(word)")

    finish(two_writers, run_jobs, story)


def test_a_writer_with_an_old_snapshot(make_story, two_writers, run_jobs):
    story = make_story()
    run_jobs()
    [left, right] = two_writers
    left.rollback()
    left.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    left.execute("SELECT FROM app_story")  # its snapshot

    right.execute("UPDATE app_author SET name = 'Bo'")
    right.commit()
    run_jobs()
    left.execute("UPDATE app_tag SET word = upper(word)")
    left.execute("UPDATE app_story SET title = 'other' WHERE id = %s", [story.pk])

    finish(two_writers, run_jobs, story)


def test_a_rename_while_a_row_is_being_moved_there(make_story, two_writers, run_jobs):
    one, two = make_story(), make_story()
    run_jobs()
    [mover, renamer] = two_writers

    mover.execute("UPDATE app_story SET author_id = %s WHERE id = %s", [two.author_id, one.pk])
    renamer.execute("UPDATE app_author SET name = 'Bo' WHERE id = %s", [two.author_id])
    renamer.commit()
    run_jobs()  # does not see the move

    finish(two_writers, run_jobs, one, two)


def test_a_rename_while_the_middle_row_is_being_moved_there(make_story, two_writers, run_jobs):
    one, two = make_story(), make_story()
    run_jobs()
    [mover, renamer] = two_writers
    city = two.author.city_id

    mover.execute("UPDATE app_author SET city_id = %s WHERE id = %s", [city, one.author_id])
    renamer.execute("UPDATE app_city SET name = 'Rome' WHERE id = %s", [city])
    renamer.commit()
    run_jobs()

    finish(two_writers, run_jobs, one, two)


def test_a_unit_that_a_writer_has_locked_goes_back_to_a_ripple(make_story, two_writers, run_jobs):
    one, two = make_story(), make_story()
    run_jobs()
    Author.objects.update(name="Bo")
    ripples().update(created_at="2020-01-01T00:00:00Z")
    [writer, _] = two_writers
    writer.execute("UPDATE app_story SET title = 'other' WHERE id = %s", [one.pk])

    expand(until_rid=False)

    assert pending() == [str(two.pk)]
    [ripple] = ripples()
    assert (ripple.path, ripple.key) == ("pk", str(one.pk))
    assert ripple.created_at.year == 2020
    writer.rollback()  # and with it its job
    finish(two_writers, run_jobs, one, two)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("impatient")
def test_no_deadlock_between_a_bulk_writer_and_an_expansion(make_story, writer, run_jobs):
    first, second, third = make_story(), make_story(), make_story()
    run_jobs()
    Author.objects.update(name="Bo")
    touch = "UPDATE app_story SET title = md5(title) WHERE id = %s"
    # The expansion adds the first job, and waits for the second; then the writer wants the first.
    writer.connection.execute(touch, [second.pk])
    writer.start(touch, first.pk, once_waits=backend_pid())

    with lock_refusals() as refused:
        expand(until_rid=False)

    assert refused
    writer.end()
    writer.connection.commit()
    expand()
    assert pending() == sorted(str(one.pk) for one in (first, second, third))


@pytest.mark.django_db(transaction=True)
def test_two_workers_expand_different_ripples(make_story, connect, run_jobs):
    one, two = make_story(), make_story()
    run_jobs()
    Author.objects.filter(pk=one.author_id).update(name="Bo")
    other = connect()
    other.execute("SELECT FROM pgembed_ripple FOR UPDATE")  # another worker expands it
    Author.objects.filter(pk=two.author_id).update(name="Cy")

    expand()

    assert pending() == [str(two.pk)]
    assert ripples().count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_canceled", [False, True])
def test_what_cannot_be_expanded_holds_up_no_other_spec(
    make_story, make_essay, connect, run_jobs, is_canceled
):
    make_story()
    essay = make_essay()
    run_jobs()
    Author.objects.update(name="Bo")
    Leaf.objects.update(title="Salmon")
    connect().execute("LOCK TABLE app_story")
    clock = iter(range(100))
    both = spec(), spec("app.EssayPlain")
    expander = Expander(both, using="default", clock=lambda: float(next(clock)))
    if is_canceled:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '10ms'")

    for _ in range(3):
        with suppress(OperationalError):
            if one := expander.next_spec():
                expander.expand(one)
    with connection.cursor() as cursor:
        cursor.execute("RESET statement_timeout")

    assert Job.objects.filter(status="pending").get().source_pk == str(essay.pk)
    assert expander.next_spec() == spec()  # and is tried again


@pytest.mark.django_db(transaction=True)
def test_a_drain_expands_ripples(make_story):
    story = make_story()
    call_command("embed_worker", drain=True, verbosity=0)
    Author.objects.update(name="Bo")

    call_command("embed_worker", drain=True, verbosity=0)

    assert_fresh(story)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_killed_in_an_expansion_loses_nothing(make_story, connect, run_jobs):
    story = make_story()
    run_jobs()
    Author.objects.update(name="Bo")
    killed = connect()
    killed.execute("DELETE FROM pgembed_ripple")
    killed.close()

    run_jobs()

    assert_fresh(story)
