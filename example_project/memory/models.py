"""A conversation, and what is remembered of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pgembed_django import embeddable


class Exchange(models.Model):
    """A message and its answer. The same request is never stored twice."""

    tenant = models.TextField()
    request_id = models.UUIDField()
    message = models.TextField()
    answer = models.TextField()
    recalled = models.ManyToManyField("Memory", related_name="recalled_for", blank=True)
    result_id = models.TextField()
    """Of the task that extracts memories."""
    created_at = models.DateTimeField(auto_now_add=True)
    extracted_at = models.DateTimeField(null=True, blank=True)
    extracted_by = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "request_id"], name="memory_one_per_request")
        ]

    def __str__(self) -> str:
        return self.message


# A superseded memory leaves the condition: its vectors go in the transaction that supersedes it.
@embeddable(fields=["text"], when=Q(superseded_by__isnull=True))
class Memory(models.Model):
    """A fact about a tenant. It is current until a newer one supersedes it."""

    tenant = models.TextField(db_index=True)
    text = models.TextField()
    exchange = models.ForeignKey(Exchange, models.CASCADE, related_name="memories")
    # Forgetting a memory forgets its former wordings too.
    superseded_by = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="superseded"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "memories"

    def __str__(self) -> str:
        return self.text
