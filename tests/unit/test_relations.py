"""How the lookups of ``related`` lead to tables, and from their rows back to units."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Q

from pgembed_django.declaration import relations, specs
from tests.app import models as app


def links(model: Any, *related: str) -> dict[tuple[str, str, str], tuple[set[str], bool]]:
    found = relations.resolve(model, fields=(), related=related, when=None)
    return {
        (link.model._meta.db_table, link.path, link.key.name): (
            {column.name for column in link.columns},
            link.may_vanish,
        )
        for link in found.links
    }


def refusal(model: Any, lookup: str) -> str:
    with pytest.raises(ImproperlyConfigured) as caught:
        relations.resolve(model, fields=(), related=[lookup], when=None)
    return str(caught.value)


def test_over_a_foreign_key_a_row_is_named_by_its_own_key():
    assert links(app.Story, "author__name", "author__city__name") == {
        ("app_author", "author__pk", "id"): ({"id", "name", "city"}, False),
        ("app_city", "author__city__pk", "id"): ({"id", "name"}, False),
    }


def test_a_through_row_is_named_by_what_it_belongs_to():
    assert links(app.Story, "tags__word") == {
        ("app_story_tags", "pk", "story"): ({"tag"}, True),
        ("app_tag", "tags__pk", "id"): ({"id", "word"}, False),
    }
    assert links(app.Tag, "stories__title") == {
        ("app_story_tags", "pk", "tag"): ({"story"}, True),
        ("app_story", "stories__pk", "id"): ({"id", "title"}, False),
    }


def test_over_reverse_relations_too():
    assert links(app.Story, "remarks__body", "remarks__by__username") == {
        ("app_remark", "pk", "story"): ({"body", "by"}, True),
        ("auth_user", "remarks__by__pk", "id"): ({"id", "username"}, False),
    }
    assert links(app.Author, "story__remarks__body") == {
        ("app_story", "pk", "author"): ({"id"}, True),
        ("app_remark", "story__pk", "story"): ({"body"}, True),
    }


def test_a_column_that_other_rows_point_to_is_watched():
    """No constraint keeps the key of a row with labels from changing, which leaves them behind."""
    assert links(app.Author, "story__labels__word") == {
        ("app_story", "pk", "author"): ({"id"}, True),
        ("app_label", "story__pk", "object_id"): ({"content_type", "word"}, True),
    }


def test_over_a_generic_relation_too():
    assert links(app.Story, "labels__word") == {
        ("app_label", "pk", "object_id"): ({"content_type", "word"}, True),
    }


def test_over_columns_of_parents_too():
    assert links(app.Essay, "owner__name") == {
        ("app_sheet", "sheet_ptr__pk", "leaf_ptr"): ({"leaf_ptr"}, False),
        ("app_leaf", "sheet_ptr__leaf_ptr__pk", "id"): ({"id", "owner"}, False),
        ("app_author", "sheet_ptr__leaf_ptr__owner__pk", "id"): ({"id", "name"}, False),
    }


def test_its_own_triggers_watch_its_own_foreign_keys():
    def own(model: Any, **given: Any) -> tuple[str, ...]:
        return relations.own_columns(model, **{"fields": (), "related": (), "when": None} | given)

    assert own(app.Story, fields=["title"], related=["author__name", "tags__word"]) == (
        "title",
        "author",
    )
    assert own(app.Essay, fields=["title", "intro"]) == ("intro",)
    assert own(app.Essay, when=Q(is_secret=False)) == ()
    assert own(app.Essay, when=Q(is_secret=False) | Q(live=True)) == ("is_secret",)


def test_what_cannot_be_watched_is_refused_with_a_remedy():
    assert "Story has no field named 'autor'. Did you mean 'author'?" in refusal(
        app.Story, "autor__name"
    )
    assert "'title' leads to no other table" in refusal(app.Story, "title__length")
    assert "'target' leads to no other table" in refusal(app.Label, "target__pk")
    assert "it ends in a relation. Name a column, for instance 'author__city__name'" in refusal(
        app.Story, "author__city"
    )
    binary = "space__canary"
    assert "'canary' is binary. Name a method that reads it" in refusal(
        app.ArticleEmbedding, binary
    )


def test_a_method_finds_it_prefetched_by_the_names_on_instances():
    found = relations.resolve(
        app.Author, fields=(), related=["story__remarks__body", "city__name"], when=None
    )

    assert found.prefetched == ["story_set__remarks", "city"]


def test_a_lookup_is_read_in_the_order_of_the_keys_of_its_rows():
    found = {one.lookup: one.order for one in specs.get("app.StoryEmbedding").relations.values}

    assert found["author__city__name"] == ()
    assert found["tags__word"] == ("tags__pk",)
    assert found["remarks__by__username"] == ("remarks__pk",)
