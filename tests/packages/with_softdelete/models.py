"""Texts of rows that django-soft-delete marks as deleted."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django_softdelete.models import SoftDeleteModel

from pgembed_django import embeddable


class Author(SoftDeleteModel):
    name = models.TextField()


@embeddable(
    fields=["title"],
    related=["author__name", "comments__body", "comments__deleted_at"],
    text="full_text",
    when=Q(deleted_at__isnull=True),
)
class Article(SoftDeleteModel):
    """Its vectors go with it. Comments are part of the text until they are deleted."""

    title = models.TextField()
    author = models.ForeignKey(Author, on_delete=models.CASCADE)

    def full_text(self) -> str:
        comments = sorted(self.comments.all(), key=lambda comment: comment.pk)
        return "\n".join([self.title, self.author.name, *(one.body for one in comments)])


class Comment(SoftDeleteModel):
    article = models.ForeignKey(Article, on_delete=models.CASCADE, related_name="comments")
    body = models.TextField()


@embeddable(fields=["body"])
class Note(SoftDeleteModel):
    """Its vectors stay while it is deleted."""

    body = models.TextField()
