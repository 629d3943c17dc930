"""The models of the benchmarks: one with a condition, one without, one with text keys.

The setting CAPTURE says how changes of articles are captured, CAPTURE_OTHERS how those of the rest.
See ``benchmarks.captures``.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from pgembed_django import Chunker, embeddable


@embeddable(
    fields=["title", "contents"],
    when=Q(is_public=True),
    capture=getattr(settings, "CAPTURE", "trigger"),
)
class Article(models.Model):
    """A typical model: an integer key, two fields, a condition."""

    title = models.TextField()
    contents = models.TextField(default="")
    is_public = models.BooleanField(default=True)
    views = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.title


OTHERS = getattr(settings, "CAPTURE_OTHERS", "trigger")


@embeddable(fields=["body"], chunker=Chunker(size=40, overlap=0), capture=OTHERS)
class Note(models.Model):
    """A UUID key, no condition, and texts of several chunks."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    body = models.TextField()

    def __str__(self) -> str:
        return str(self.pk)


@embeddable(fields=["body"], priority=10, capture=OTHERS)
class Page(models.Model):
    """A text key, which is used again after its row was deleted."""

    slug = models.CharField(max_length=100, primary_key=True)
    body = models.TextField()

    def __str__(self) -> str:
        return self.slug
