"""Tags are part of the text, whoever writes them."""

from __future__ import annotations

import pytest
from taggit.models import Tag

from tests.packages.with_taggit.models import Recipe

pytestmark = pytest.mark.django_db


def passages() -> list[str]:
    chunks = Recipe._meta.apps.get_model("with_taggit.RecipeEmbedding").objects
    return list(chunks.order_by("source_id").values_list("passage", flat=True))


def test_tags_that_are_added_renamed_and_removed(run_jobs):
    recipe = Recipe.objects.create(title="Trout")
    recipe.tags.add("fish", "quick")
    run_jobs()
    assert passages() == ["Trout\n\nfish\n\nquick"]

    Tag.objects.filter(name="fish").update(name="seafood")
    run_jobs()
    assert passages() == ["Trout\n\nseafood\n\nquick"]

    recipe.tags.remove("quick")
    run_jobs()
    assert passages() == ["Trout\n\nseafood"]
