"""Find memories by meaning, never those of another tenant."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db.models import QuerySet

from memory.models import Memory
from pgembed_django import search, similar_to
from pgembed_django.exceptions import PgembedError

MOST = 3
LEAST_SIMILARITY = 0.25
"""The least cosine similarity of a memory and the message for which it is recalled."""

NEARLY_THE_SAME = 0.9
"""The cosine similarity from which a newer memory supersedes an older one."""


def current(tenant: str) -> QuerySet[Memory]:
    return Memory.objects.filter(tenant=tenant, superseded_by=None)


def recall(tenant: str, message: str) -> list[Memory]:
    """Return the tenant's memories that match a message best, or none if it cannot be searched."""
    try:
        return list(search(current(tenant), message, limit=MOST, min_similarity=LEAST_SIMILARITY))
    except (PgembedError, ImproperlyConfigured):
        return []


def former_wordings(memory: Memory) -> list[Memory]:
    """Return the tenant's older memories that say nearly the same.

    Raises:
        SearchError: the memory has no vectors yet.
    """
    # Only older ones: no two memories ever supersede each other.
    older = current(memory.tenant).filter(pk__lt=memory.pk)
    return list(similar_to(memory, among=older, limit=20, min_similarity=NEARLY_THE_SAME))
