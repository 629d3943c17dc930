"""The columns of every generated ``<Model>Embedding`` table.

The users' own migrations create them, so they are fixed from the first release on. They have no
help texts, because rewording one would mean a migration in every project.
"""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models.functions import Now
from pgvector.django import VectorField

from pgembed_django.models.fixtures import NotFromFixtures
from pgembed_django.models.space import Space


class AbstractEmbedding(NotFromFixtures):
    """One chunk of one source row's text in one space. The decorator adds ``source``."""

    id = models.BigAutoField(primary_key=True)
    space = models.ForeignKey(
        Space, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False
    )
    position = models.IntegerField()
    start_offset = models.IntegerField()
    end_offset = models.IntegerField()
    # NULL unless store_text=True.
    passage = models.TextField(null=True)  # noqa: DJ001
    # SHA-256, of the passage and of the whole text with its recipe.
    chunk_digest = models.BinaryField()
    text_digest = models.BinaryField()
    # No fixed width: a model with other dimensions then needs a setting, not a migration.
    embedding = VectorField(null=True)
    # NULL with store_text="nothing", and so is the configuration that it was made with.
    fulltext = SearchVectorField(null=True)
    language = models.TextField(null=True)  # noqa: DJ001
    was_cut = models.BooleanField(db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        abstract = True

    objects: ClassVar[models.Manager[AbstractEmbedding]]

    def __str__(self) -> str:
        return f"chunk {self.position} of {self.pk}"
