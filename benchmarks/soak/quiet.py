"""Wait until the queue has drained by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from pgembed_django.models import Job

STALL_SECONDS = 45.0
"""The queue is stalled if the number of open jobs has not fallen for this long."""


def drain(*, meanwhile: Callable[[], object]) -> float:
    """Wait until no job is pending or running, or the queue is stalled. Return the seconds."""
    started = fell = time.monotonic()
    fewest = None
    while True:
        left = Job.objects.filter(status__in=["pending", "running"]).count()
        now = time.monotonic()
        if fewest is None or left < fewest:
            fewest, fell = left, now
        if left == 0 or now - fell > STALL_SECONDS:
            return now - started
        meanwhile()
        time.sleep(0.1)
