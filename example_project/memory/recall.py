"""Find memories by meaning, never those of another tenant."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db.models import QuerySet

from memory.models import Memory
from pgembed_django import search, similar_to
from pgembed_django.exceptions import PgembedError

MOST = 3
LEAST_SIMILARITY = 0.25
"""To recall a memory that shares no word with the message."""

NEARLY_THE_SAME = 0.9
"""The cosine similarity from which a newer memory supersedes an older one."""


def current(tenant: str) -> QuerySet[Memory]:
    return Memory.objects.filter(tenant=tenant, superseded_by=None)


def recall(tenant: str, message: str) -> list[Memory]:
    """Return the tenant's memories that match a message best, or none if it cannot be searched."""
    try:
        hits = search(current(tenant), message, limit=MOST).hits
    except (PgembedError, ImproperlyConfigured):
        return []
    return [
        hit.instance for hit in hits if hit.similarity is None or hit.similarity >= LEAST_SIMILARITY
    ]


def former_wordings(memory: Memory) -> list[Memory]:
    """Return the tenant's older memories that say nearly the same.

    Raises:
        SearchError: the memory has no vectors yet.
    """
    # Only older ones: no two memories ever supersede each other.
    older = current(memory.tenant).filter(pk__lt=memory.pk)
    found = similar_to(memory, among=older, limit=20)
    return [hit.instance for hit in found.hits if (hit.similarity or 0) >= NEARLY_THE_SAME]
