"""Models whose columns django-modeltranslation multiplies by languages: see translation.py."""

from __future__ import annotations

from django.db import models
from django.utils import translation

from pgembed_django import embeddable


class Topic(models.Model):
    """Has a name in each language."""

    name = models.CharField(max_length=100)


class News(models.Model):
    """Has vectors for each language, declared below the registration of its fields."""

    title = models.CharField(max_length=100)
    body = models.TextField(blank=True)
    topic = models.ForeignKey(Topic, on_delete=models.SET_NULL, null=True)

    def in_german(self) -> str:
        with translation.override("de"):
            return f"{self.title}: {self.body}"


@embeddable(fields=["body"], related=["topic__name_en", "topic__name_de"])
class Letter(models.Model):
    """It has one language, and its topic has several."""

    body = models.TextField()
    topic = models.ForeignKey(Topic, on_delete=models.CASCADE)
