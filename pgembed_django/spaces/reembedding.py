"""Embed units again at a person's request, although their texts have not changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pgembed_django import store
from pgembed_django.core import database
from pgembed_django.core.adapting import halves, isolate
from pgembed_django.declaration.specs import Spec
from pgembed_django.models import Job
from pgembed_django.queue import jobs

AT_ONCE = 50
"""How many units to enqueue in one transaction: writers may have to wait for their jobs."""

MAX_BUSY = 20
"""How many times ``reembed`` waits for open writers before it leaves the rest."""


class Reembedded(NamedTuple):
    """How many units were enqueued, and the source_pks of those that writers had locked."""

    enqueued: int
    busy: Sequence[str]


def reembed(
    spec: Spec, source_pks: Iterable[str], *, using: str, wait: str = database.SHORTLY
) -> Reembedded:
    """Enqueue units to be embedded again. Until then, searches find their old vectors.

    ``wait``: how long to wait at most, each time that an open writer has locked some of them.
    If that happens often, some units that are not locked are also returned as ``busy``.
    """
    wanted = list(dict.fromkeys(source_pks))
    waits = 0
    busy: list[str] = []

    def attempt(some: Sequence[str]) -> list[Sequence[str]]:
        nonlocal waits
        if waits < MAX_BUSY and _reembed(spec, some, using=using, wait=wait):
            return []
        waits += 1
        if waits < MAX_BUSY and (apart := halves(some)):
            return apart
        busy.extend(some)
        return []

    # First all pieces, then the halves of the busy ones.
    isolate(attempt, *(wanted[n : n + AT_ONCE] for n in range(0, len(wanted), AT_ONCE)))
    enqueued = len(wanted) - len(busy)
    if enqueued:
        jobs.nudge(using=using)
    return Reembedded(enqueued, busy)


def _reembed(spec: Spec, source_pks: Sequence[str], *, using: str, wait: str) -> bool:
    """Enqueue all of these units, or return False if an open writer has locked one."""
    try:
        with database.giving_way(using, wait=wait):
            # Enqueue first, in the order of a delete: it locks the pending jobs, so that no worker
            # starts one meanwhile.
            # As a gap: nobody has written the rows, so stale="hide" must not hide them meanwhile.
            kind, priority = Job.Kind.BACKFILL, spec.priority
            jobs.enqueue_again(spec.key, source_pks, kind=kind, priority=priority, using=using)
            # Cancel running jobs: their plans reuse vectors that are invalidated below.
            jobs.supersede_running(spec.key, source_pks, using=using)
            store.outdate(spec, source_pks, using=using)
    except database.Busy:
        return False
    return True
