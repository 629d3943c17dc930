"""Embed units again at a person's request, although their texts have not changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pgembed_django import database, store
from pgembed_django.models import Job
from pgembed_django.queue import jobs
from pgembed_django.specs import Spec

AT_ONCE = 50
"""How many units to enqueue in one transaction: writers may have to wait for their jobs."""

MAX_BUSY = 20
"""How many times ``reembed`` waits for open writers before it leaves the rest."""


class Reembedded(NamedTuple):
    """How many units were enqueued, and the source_pks of those that writers had locked."""

    enqueued: int
    busy: Sequence[str]


def reembed(
    spec: Spec,
    source_pks: Iterable[str],
    *,
    using: str,
    wait: str = database.SHORTLY,
) -> Reembedded:
    """Enqueue units to be embedded again. Until then, searches find their old vectors.

    ``wait``: how long to wait at most, each time that an open writer has locked some of them.
    If that happens often, some units that are not locked are also returned as ``busy``.
    """
    wanted = list(dict.fromkeys(source_pks))
    pieces = deque(wanted[n : n + AT_ONCE] for n in range(0, len(wanted), AT_ONCE))
    enqueued, waits = 0, 0
    busy: list[str] = []
    # First all pieces, then the halves of the busy ones.
    while pieces:
        piece = pieces.popleft()
        if waits < MAX_BUSY and _reembed(spec, piece, using=using, wait=wait):
            enqueued += len(piece)
            continue
        waits += 1
        middle = len(piece) // 2
        if middle and waits < MAX_BUSY:
            pieces += [piece[:middle], piece[middle:]]
        else:
            busy += piece
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
            jobs.enqueue_again(
                spec.key,
                source_pks,
                kind=Job.Kind.BACKFILL,
                priority=spec.priority,
                using=using,
            )
            # Who is at work on a unit counts on the vectors that are there.
            jobs.supersede_running(spec.key, source_pks, using=using)
            store.outdate(spec, source_pks, using=using)
    except database.Busy:
        return False
    return True
