"""The standard library's documentation, found by meaning."""

from __future__ import annotations

import re

from django.db import models

from library.links import documentation_url
from pgembed_django import Chunker, embeddable

WORD_BOUNDARIES = re.compile(r"[._]+|(?<=[a-z])(?=[A-Z])")


# Chunks are short, because a docstring's first paragraph says what a thing is for, and would be
# lost in the vector of a whole page. Signatures are shown, but not embedded.
@embeddable(
    fields=["name", "docstring"],
    text="embedding_text",
    chunker=Chunker(size=100, overlap=10),
)
class Entry(models.Model):
    """A module, class, function or method, with its docstring."""

    name = models.TextField(unique=True)
    kind = models.TextField()
    module = models.TextField(db_index=True)
    signature = models.TextField(blank=True)
    docstring = models.TextField()
    is_public = models.BooleanField()

    class Meta:
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return documentation_url(self.name, self.module)

    def embedding_text(self) -> str:
        """Return the name, the name split into words, and the docstring."""
        return f"{self.heading}\n\n{self.docstring}"

    @property
    def heading(self) -> str:
        """``concurrent.futures.ThreadPoolExecutor: concurrent futures Thread Pool Executor``."""
        return f"{self.name}: {WORD_BOUNDARIES.sub(' ', self.name).strip()}"
