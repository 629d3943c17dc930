"""Models whose texts span tables: relations of each kind, and a parent's columns.

In an app of their own: where no text spans tables, workers need not look for ripples.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from benchmarks.app.models import OTHERS
from pgembed_django import Chunker, embeddable


class Author(models.Model):
    name = models.TextField()

    def __str__(self) -> str:
        return self.name


class Tag(models.Model):
    word = models.TextField()

    def __str__(self) -> str:
        return self.word


@embeddable(
    fields=["title"],
    related=["author__name", "tags__word", "comments__body"],
    chunker=Chunker(size=40, overlap=0),
    capture=OTHERS,
)
class Story(models.Model):
    """A foreign key, a many-to-many and a reverse relation, and texts of several chunks."""

    title = models.TextField()
    author = models.ForeignKey(Author, models.SET_NULL, null=True)
    tags = models.ManyToManyField(Tag)

    def __str__(self) -> str:
        return self.title


class Comment(models.Model):
    story = models.ForeignKey(Story, models.CASCADE, related_name="comments")
    body = models.TextField()

    def __str__(self) -> str:
        return self.body


class Sheet(models.Model):
    title = models.TextField()
    is_live = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.title


@embeddable(fields=["title", "intro"], when=Q(is_live=True), capture=OTHERS)
class Essay(Sheet):
    """Half its text, and its condition, stand in the parent's table."""

    intro = models.TextField()
