"""The names of ancestors are part of the text, wherever their subtree goes."""

from __future__ import annotations

import pytest

from pgembed_django import enqueue, search
from pgembed_django.testing import assert_fresh
from tests.packages.with_mptt.models import Place, Topic

pytestmark = pytest.mark.django_db


def again(node):
    """Return it with its place in the tree, which every other write may change."""
    return type(node).objects.get(pk=node.pk)


@pytest.fixture
def places(asked, run_jobs):
    """Two trees, three levels of one of them, by name and all embedded."""
    made = {name: Place.objects.create(name=name) for name in ("Europe", "Asia")}
    for name, parent in (("Norway", "Europe"), ("Oslo", "Norway"), ("Japan", "Asia")):
        made[name] = Place.objects.create(name=name, parent=again(made[parent]))
    run_jobs()
    asked.clear()
    return made


def test_the_text_has_the_names_of_ancestors(places, run_jobs, texts):
    assert texts(Place)[places["Oslo"].pk] == "Oslo\n\nNorway\n\nEurope"

    europe = again(places["Europe"])
    europe.name = "The old world"
    europe.save()
    run_jobs()

    assert texts(Place)[places["Oslo"].pk] == "Oslo\n\nNorway\n\nThe old world"
    assert texts(Place)[places["Norway"].pk] == "Norway\n\nThe old world"
    assert set(search(Place, "old world", mode="lexical")) == {
        places[name] for name in ("Europe", "Norway", "Oslo")
    }


def test_a_search_in_a_subtree(places):
    europe = again(places["Europe"])

    assert set(search(europe.get_descendants(include_self=True), "Asia")) == {
        places[name] for name in ("Europe", "Norway", "Oslo")
    }
    leaves = Place.objects.get_queryset_descendants(Place.objects.filter(name="Norway"))
    assert list(search(leaves, "Asia")) == [places["Oslo"]]


@pytest.mark.parametrize("how", ["move_to", "save", "manager"])
def test_a_subtree_that_moves(places, run_jobs, texts, how):
    norway, asia = again(places["Norway"]), again(places["Asia"])
    if how == "move_to":
        norway.move_to(asia, "first-child")
        norway.save()
    elif how == "save":
        norway.parent = asia
        norway.save()
    else:
        Place.objects.move_node(norway, asia)
    run_jobs()

    assert texts(Place)[places["Norway"].pk] == "Norway\n\nAsia"
    assert texts(Place)[places["Oslo"].pk] == "Oslo\n\nNorway\n\nAsia"


def test_a_subtree_that_becomes_a_tree(places, run_jobs, texts):
    again(places["Norway"]).move_to(None)
    Place.objects.rebuild()
    run_jobs()

    assert texts(Place)[places["Oslo"].pk] == "Oslo\n\nNorway"


def test_numbers_of_the_tree_are_not_watched(places, is_quiet):
    Place.objects.filter(pk=places["Oslo"].pk).update(lft=0, rght=0, level=7)
    Place.objects.rebuild()
    again(places["Asia"]).move_to(again(places["Europe"]), "left")

    assert is_quiet()


def test_a_new_place_is_embedded_alone(places, run_jobs, asked):
    Place.objects.create(name="Bergen", parent=again(places["Norway"]))
    run_jobs()

    assert [text for _, text in asked] == ["Bergen\n\nNorway\n\nEurope"]


def test_delayed_updates(places, run_jobs, texts):
    with Place.objects.delay_mptt_updates():
        places["Bergen"] = Place.objects.create(name="Bergen", parent=again(places["Norway"]))
        oslo = again(places["Oslo"])
        oslo.parent = again(places["Japan"])
        oslo.save()
    run_jobs()

    assert texts(Place)[places["Bergen"].pk] == "Bergen\n\nNorway\n\nEurope"
    assert texts(Place)[places["Oslo"].pk] == "Oslo\n\nJapan\n\nAsia"


def test_a_deleted_subtree_leaves_no_vectors(places, texts):
    again(places["Europe"]).delete()

    assert set(texts(Place)) == {places["Asia"].pk, places["Japan"].pk}


def test_all_ancestors_by_a_text_method(asked, run_jobs, texts, django_capture_on_commit_callbacks):
    topics = []
    for name in ("Art", "Music", "Jazz", "Swing"):
        topics.append(Topic.objects.create(name=name, parent=topics[-1] if topics else None))
    other = Topic.objects.create(name="Dance")
    run_jobs()
    assert texts(Topic)[topics[-1].pk] == "Art > Music > Jazz > Swing"

    again(topics[1]).move_to(again(other))
    run_jobs()
    assert texts(Topic)[topics[-1].pk] == "Dance > Music > Jazz > Swing"

    asked.clear()
    Topic.objects.create(name="Blues", parent=again(topics[1]))
    run_jobs()  # the numbers of most others have changed
    assert [text for _, text in asked] == ["Dance > Music > Blues"]

    Topic.objects.filter(pk=other.pk).update(name="Ballet")
    with django_capture_on_commit_callbacks(execute=True):
        enqueue(again(other).get_descendants())
    run_jobs()
    assert texts(Topic)[topics[-1].pk] == "Ballet > Music > Jazz > Swing"
    for topic in Topic.objects.all():
        assert_fresh(topic)
