"""Texts with tags of django-taggit."""

from __future__ import annotations

import uuid

from django.db import models
from taggit.managers import TaggableManager
from taggit.models import GenericUUIDTaggedItemBase, ItemBase, TagBase, TaggedItemBase

from pgembed_django import embeddable


@embeddable(fields=["title"], related=["tags__name"])
class Recipe(models.Model):
    """Its tags are in the tables of the package, by generic relations."""

    title = models.TextField()

    tags = TaggableManager()


@embeddable(fields=["title"], related=["tags__name"], text="caption")
class Photo(models.Model):
    """Shares the tables of tags, and keys, with recipes."""

    title = models.TextField()

    tags = TaggableManager()

    def caption(self) -> str:
        tags = sorted(tag.name for tag in self.tags.all())
        return f"{self.title} ({', '.join(tags)})"


class TaggedAlbum(GenericUUIDTaggedItemBase, TaggedItemBase):
    """Ties tags of the package to rows whose keys are UUIDs."""


@embeddable(fields=["title"], related=["tags__name"])
class Album(models.Model):
    """Its key is a UUID, so its through model is its own."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    title = models.TextField()

    tags = TaggableManager(through=TaggedAlbum)


class Genre(TagBase):
    """A tag of books alone."""


class TaggedBook(ItemBase):
    """Ties genres to books by foreign keys."""

    content_object = models.ForeignKey("Book", on_delete=models.CASCADE)
    tag = models.ForeignKey(Genre, on_delete=models.CASCADE, related_name="tagged_books")


@embeddable(fields=["title"], related=["genres__name"])
class Book(models.Model):
    """Has tags and a through model of its own."""

    title = models.TextField()

    genres = TaggableManager(through=TaggedBook)


class Shop(models.Model):
    """A parent whose tags its children share."""

    title = models.TextField()

    tags = TaggableManager()


@embeddable(fields=["title", "cuisine"], related=["tags__name"])
class Restaurant(Shop):
    """Its tags belong to its parent."""

    cuisine = models.TextField()
