"""Trees of django-mptt whose texts have the names of ancestors."""

from __future__ import annotations

from django.db import models
from mptt.models import MPTTModel, TreeForeignKey

from pgembed_django import embeddable


@embeddable(fields=["name"], related=["parent__name", "parent__parent__name"])
class Place(MPTTModel):
    """Its text has two of its ancestors."""

    name = models.CharField(max_length=100)
    parent = TreeForeignKey(
        "self", on_delete=models.CASCADE, null=True, blank=True, related_name="children"
    )

    class MPTTMeta:
        order_insertion_by = ["name"]


@embeddable(fields=["name", "tree_id", "lft"], text="trail")
class Topic(MPTTModel):
    """Its text has all ancestors. Its place in the tree is watched, their names are not."""

    name = models.CharField(max_length=100)
    parent = TreeForeignKey(
        "self", on_delete=models.CASCADE, null=True, blank=True, related_name="children"
    )

    def trail(self) -> str:
        ancestors = self.get_ancestors(include_self=True)
        return " > ".join(topic.name for topic in ancestors)
