"""Embed units anew at a person's request, though their text is the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pgembed_django import database, jobs, store
from pgembed_django.models import Job
from pgembed_django.specs import Spec

AT_ONCE = 50
"""Units in one transaction, whose jobs a writer may have to wait for."""

MAX_BUSY = 20
"""How many waits for open writers ``reembed`` makes before it leaves the rest."""


class Reembedded(NamedTuple):
    """How many units have a job now, and which ones have none, as writers had locked them."""

    enqueued: int
    busy: Sequence[str]


def reembed(
    spec: Spec,
    source_pks: Iterable[str],
    *,
    using: str,
    kind: str = Job.Kind.MANUAL_RETRY,
    wait: str = database.SHORTLY,
) -> Reembedded:
    """Enqueue units so that they are embedded anew. Searches find their old vectors until then.

    ``wait``: how long to wait at most, each time that an open writer has locked some of them.
    If there are many such units, some of the others are left to the next call, too.
    """
    wanted = list(dict.fromkeys(source_pks))
    pieces = deque(wanted[n : n + AT_ONCE] for n in range(0, len(wanted), AT_ONCE))
    enqueued, waits = 0, 0
    busy: list[str] = []
    # First all pieces, then the halves of the busy ones.
    while pieces:
        piece = pieces.popleft()
        if waits < MAX_BUSY and _reembed(spec, piece, using=using, kind=kind, wait=wait):
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


def _reembed(spec: Spec, source_pks: Sequence[str], *, using: str, kind: str, wait: str) -> bool:
    """Enqueue all of these units, or return False if an open writer has locked one."""
    try:
        with database.giving_way(using, wait=wait):
            # The pending jobs first, as a delete does, so that no worker starts one meanwhile.
            jobs.enqueue_again(spec, source_pks, kind=kind, using=using)
            store.outdate(spec, source_pks, using=using)
    except database.Busy:
        return False
    return True
