"""Texts of rows whose history django-simple-history keeps."""

from __future__ import annotations

from django.db import models
from simple_history.models import HistoricalRecords

from pgembed_django import embeddable


class Author(models.Model):
    name = models.TextField()
    history = HistoricalRecords()

    def __str__(self) -> str:
        return self.name


class Keyword(models.Model):
    word = models.TextField()

    def __str__(self) -> str:
        return self.word


@embeddable(fields=["title"], related=["author__name", "keywords__word"])
class Article(models.Model):
    title = models.TextField()
    author = models.ForeignKey(Author, on_delete=models.CASCADE)
    keywords = models.ManyToManyField(Keyword)
    history = HistoricalRecords(m2m_fields=[keywords])

    def __str__(self) -> str:
        return self.title


@embeddable(fields=["title"], related=["log__history_change_reason"])
class Page(models.Model):
    """Why it was changed is part of its text."""

    title = models.TextField()
    history = HistoricalRecords(related_name="log")

    def __str__(self) -> str:
        return self.title
