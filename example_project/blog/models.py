"""A blog whose articles are found by meaning."""

from django.db import models
from django.db.models import Q

from pgembed_django import embeddable


@embeddable(
    fields=["title", "author", "contents", "category"],
    when=Q(published_time__isnull=False),
)
class Article(models.Model):
    title = models.TextField()
    author = models.TextField()
    contents = models.TextField()
    category = models.TextField()
    published_time = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.title
