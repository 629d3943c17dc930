"""Models with each way to declare a ``SearchManager``."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from pgembed_django import SearchManager, SearchQuerySet, embeddable


class Author(models.Model):
    name = models.TextField()


@embeddable(fields=["title"])
class Named(models.Model):
    title = models.TextField()
    author = models.ForeignKey(Author, models.CASCADE, related_name="named")

    objects: ClassVar[SearchManager[Named]] = SearchManager()


@embeddable(fields=["title"])
class Subscripted(models.Model):
    title = models.TextField()

    objects = SearchManager["Subscripted"]()


class NoteManager(SearchManager["Note"]):
    def recent(self) -> SearchQuerySet[Note]:
        return self.order_by("-pk")


@embeddable(fields=["title"])
class Note(models.Model):
    title = models.TextField()
    author = models.ForeignKey(Author, models.CASCADE, related_name="notes")

    objects = NoteManager()


@embeddable(fields=["title"])
class Plain(models.Model):
    title = models.TextField()
    author = models.ForeignKey(Author, models.CASCADE, related_name="plain")

    objects = SearchManager()


class LetterQuerySet(SearchQuerySet["Letter"]):
    def sent(self) -> LetterQuerySet:
        return self.exclude(title="draft")


@embeddable(fields=["title"])
class Letter(models.Model):
    title = models.TextField()

    objects = LetterQuerySet.as_manager()
    rows = SearchManager.from_queryset(LetterQuerySet)()
