"""Delete what is left of a retired space: its indexes, then its vectors in small batches."""

from __future__ import annotations

from collections.abc import Callable

from pgembed_django import events, spaces
from pgembed_django.maintenance import stored
from pgembed_django.models import Space
from pgembed_django.spaces import indexes
from pgembed_django.specs import Spec

CHUNKS = 2000


def prune(
    spec: Spec, space: Space, *, using: str, is_stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Delete the indexes and vectors of a retired space. Return whether all are deleted.

    They are not if another worker is building an index, somebody has reopened the space, or this
    worker is stopping.
    """
    if not indexes.drop(spec, space, using=using):
        return False
    # A row is covered by its first chunk. So if the space is reopened in the middle of this, the
    # rows that have lost chunks are gaps. A unit that has counted on them since before cannot
    # store the first chunk alone: see ``spaces.reopen``.
    for first_only in (True, False):
        last: int | None = 0
        while last is not None:
            if is_stopping():
                return False
            last = stored.prune(
                spec, space.pk, after=last, limit=CHUNKS, first_only=first_only, using=using
            )
    while stored.prune_staged(space.pk, limit=CHUNKS, using=using):
        if is_stopping():
            return False
    is_pruned = spaces.mark_pruned(space, using=using)
    if is_pruned:
        events.tell(events.SPACE_PRUNED, spec=spec.key, space=str(space))
    return is_pruned
