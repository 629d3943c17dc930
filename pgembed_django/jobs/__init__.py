"""The verbs of the job table, and its only Python writers. Times are the database's."""

from pgembed_django.jobs.claims import (
    Claim,
    Held,
    claim,
    claim_alone,
    heartbeat,
    hold,
    next_due_seconds,
    suspect_due,
)
from pgembed_django.jobs.doubtful import claim_doubtful
from pgembed_django.jobs.endings import complete, fail, reap, release, retry
from pgembed_django.jobs.entries import (
    LANES,
    Retried,
    dismiss,
    enqueue,
    fail_unknown,
    forget_dead_workers,
    prune,
    retry_failed,
)

__all__ = [
    "LANES",
    "Claim",
    "Held",
    "Retried",
    "claim",
    "claim_alone",
    "claim_doubtful",
    "complete",
    "dismiss",
    "enqueue",
    "fail",
    "fail_unknown",
    "forget_dead_workers",
    "heartbeat",
    "hold",
    "next_due_seconds",
    "prune",
    "reap",
    "release",
    "retry",
    "retry_failed",
    "suspect_due",
]
