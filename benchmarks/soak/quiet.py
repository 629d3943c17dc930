"""Wait until the queue has drained by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from pgembed_django.models import Job, Ripple

STALL_SECONDS = 45.0
"""The queue is stalled if the number of open jobs and ripples has not fallen for this long."""


def drain(*, meanwhile: Callable[[], object]) -> float:
    """Wait until no job is open and no ripple left, or the queue is stalled. Return the seconds."""
    started = fell = time.monotonic()
    fewest = None
    while True:
        left = Job.objects.filter(status__in=["pending", "running"]).count()
        left += Ripple.objects.count()
        now = time.monotonic()
        if fewest is None or left < fewest:
            fewest, fell = left, now
        if left == 0 or now - fell > STALL_SECONDS:
            return now - started
        meanwhile()
        time.sleep(0.1)
