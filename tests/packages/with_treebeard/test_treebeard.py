"""The names of ancestors are part of the text, wherever their subtree goes."""

from __future__ import annotations

import pytest

from pgembed_django import enqueue, search
from tests.packages.with_treebeard.models import Dish, Place, Topic

pytestmark = pytest.mark.django_db


def grow(model):
    """Make two trees, one of them with three levels. Return their nodes by name."""
    made = {name: model.objects.add_root({"name": name}) for name in ("a", "b")}
    for name, parent in (("a1", "a"), ("a2", "a"), ("a11", "a1"), ("b1", "b")):
        made[name] = model.objects.add_child(node(model, parent), {"name": name})
    return made


def node(model, name):
    """Return a node with its place in the tree, which every other write may change."""
    return model.objects.get(name=name)


@pytest.fixture(params=[Topic, Dish])
def model(request, asked, run_jobs):
    """A model with two embedded trees."""
    grow(request.param)
    run_jobs()
    asked.clear()
    return request.param


@pytest.fixture
def trails(texts):
    """The stored texts of nodes by name."""

    def of(model):
        of_rows = texts(model)
        return {one.name: of_rows.get(one.pk) for one in model.objects.all()}

    return of


def made_anew(model):
    """The texts that nodes have now, by name."""
    return {one.name: one.trail() for one in model.objects.all()}


def test_a_text_of_all_ancestors(model, trails):
    assert trails(model) == {
        "a": "a",
        "a1": "a > a1",
        "a11": "a > a1 > a11",
        "a2": "a > a2",
        "b": "b",
        "b1": "b > b1",
    }


def test_a_search_in_a_subtree(model):
    below = model.objects.get_descendants(node(model, "a"))

    assert {one.name for one in search(below, "b")} == {"a1", "a11", "a2"}


@pytest.mark.parametrize("to", ["sorted-child", "sorted-sibling"])
def test_a_subtree_that_moves_is_embedded_alone(model, run_jobs, trails, asked, to):
    model.objects.move(node(model, "a1"), node(model, "b"), to)
    run_jobs()

    assert trails(model) == made_anew(model)
    assert len(asked) == 2


def test_a_new_node_is_embedded_alone(model, run_jobs, trails, asked):
    model.objects.add_child(node(model, "a"), {"name": "a0"})
    model.objects.add_sibling(node(model, "a"), "sorted-sibling", {"name": "0"})
    run_jobs()  # others are now elsewhere

    assert trails(model) == made_anew(model)
    assert sorted(text for _, text in asked) == ["0", "a > a0"]


def test_an_ancestor_that_is_renamed(model, run_jobs, trails, django_capture_on_commit_callbacks):
    model.objects.filter(name="a").update(name="c")
    with django_capture_on_commit_callbacks(execute=True):
        enqueue(model.objects.get_descendants(node(model, "c")))
    run_jobs()

    assert trails(model)["a11"] == "c > a1 > a11"
    assert trails(model) == made_anew(model)


def test_a_deleted_subtree_leaves_no_vectors(model, texts):
    node(model, "a").delete()
    assert len(texts(model)) == 2

    model.objects.all().delete()
    assert not texts(model)


def test_paths_that_are_mended(run_jobs, trails, asked):
    grow(Topic)
    run_jobs()
    asked.clear()

    Topic.objects.filter(name="a2").update(path="00010009")
    Topic.objects.fix_tree(fix_paths=True)
    run_jobs()

    assert trails(Topic) == made_anew(Topic)
    assert not asked


def test_nodes_that_are_loaded_in_bulk(run_jobs, trails):
    Topic.objects.load_bulk([{"data": {"name": "a"}, "children": [{"data": {"name": "a1"}}]}])
    run_jobs()

    assert trails(Topic) == {"a": "a", "a1": "a > a1"}


def test_names_of_ancestors_over_foreign_keys(run_jobs, trails, asked):
    grow(Place)
    run_jobs()
    assert trails(Place)["a11"] == "a11\n\na1\n\na"

    Place.objects.filter(name="a").update(name="c")
    run_jobs()
    assert trails(Place)["a11"] == "a11\n\na1\n\nc"
    assert trails(Place)["a2"] == "a2\n\nc"

    asked.clear()
    Place.objects.move(node(Place, "a1"), node(Place, "b"), "first-child")
    run_jobs()
    assert trails(Place)["a11"] == "a11\n\na1\n\nb"
    assert sorted(text for _, text in asked) == ["a1\n\nb", "a11\n\na1\n\nb"]
    assert {place.name for place in search(Place, "b", mode="lexical")} == {"a1", "a11", "b", "b1"}

    node(Place, "b").delete()
    assert set(trails(Place)) == {"c", "a2"}
    assert None not in trails(Place).values()
