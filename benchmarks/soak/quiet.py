"""Wait until the queue has drained by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import captures
from benchmarks.soak import decoded
from pgembed_django.declaration import specs
from pgembed_django.models import Job, ReplicationSlot, Ripple
from pgembed_django.spaces import reconcile

STALL_SECONDS = 45.0
"""The queue is stalled if the number of open jobs and ripples has not fallen for this long."""


def drain(*, meanwhile: Callable[[], object]) -> float:
    """Wait until no job is open and no ripple left, or the queue is stalled. Return the seconds."""
    started = fell = time.monotonic()
    decoded.finish_left(seconds=0)
    fewest = None
    end = captures.end() if ReplicationSlot.objects.exists() else 0
    while True:
        left = Job.objects.filter(status__in=["pending", "running"]).count()
        left += Ripple.objects.count() + _unread(end)
        now = time.monotonic()
        if fewest is None or left < fewest:
            fewest, fell = left, now
        if left == 0 or now - fell > STALL_SECONDS:
            return now - started
        meanwhile()
        time.sleep(0.1)


def _unread(end: int) -> int:
    """Return one for each slot and spec that is yet to be read, or compared, up to the end."""
    read = [spec for spec in specs.all() if spec.is_read_from_log]
    slots = ReplicationSlot.objects.all()
    gaps = sum(None in [slot.specs.get(spec.key) for spec in read] for slot in slots)
    behind = sum(slot.position is None or slot.position < end for slot in slots)
    return gaps + behind + len(reconcile.under_way(read, using="default"))
