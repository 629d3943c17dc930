"""Trees of django-treebeard whose texts have the names of ancestors."""

from __future__ import annotations

from django.db import models
from treebeard.al_tree import AL_Node
from treebeard.mp_tree import MP_Node
from treebeard.ns_tree import NS_Node

from pgembed_django import embeddable


@embeddable(fields=["name"], related=["parent__name", "parent__parent__name"])
class Place(AL_Node):
    """It has its parent's key, so its text may have the names of ancestors."""

    name = models.CharField(max_length=100)
    parent = models.ForeignKey(
        "self", on_delete=models.CASCADE, null=True, db_index=True, related_name="children_set"
    )
    sib_order = models.PositiveIntegerField()


class Trail(models.Model):
    """A text that has the names of all ancestors."""

    name = models.CharField(max_length=100)

    class Meta:
        abstract = True

    def trail(self) -> str:
        return " > ".join(node.name for node in [*type(self).objects.get_ancestors(self), self])


@embeddable(fields=["name", "path"], text="trail")
class Topic(Trail, MP_Node):
    """Its path is watched, the names of its ancestors are not."""

    node_order_by = ["name"]


@embeddable(fields=["name", "tree_id", "lft"], text="trail")
class Dish(Trail, NS_Node):
    """Its place in the tree is watched, the names of its ancestors are not."""

    node_order_by = ["name"]
