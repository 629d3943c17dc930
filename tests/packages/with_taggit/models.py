"""Texts with tags of django-taggit."""

from __future__ import annotations

from django.db import models
from taggit.managers import TaggableManager

from pgembed_django import embeddable


@embeddable(fields=["title"], related=["tags__name"])
class Recipe(models.Model):
    """Its tags are in the tables of the package, by generic relations."""

    title = models.TextField()

    tags = TaggableManager()
