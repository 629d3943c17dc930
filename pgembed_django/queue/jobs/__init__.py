"""The verbs of the job table, and its only Python writers. Times are the database's.

The same goes for attempts that ended in an error, and for pauses by hand.
"""

from pgembed_django.queue.jobs.claims import (
    Lane,
    Lease,
    claim,
    claim_on,
    next_due_seconds,
    priorities,
    priority_of,
    recall,
)
from pgembed_django.queue.jobs.enqueueing import CHANNEL, NUDGE, enqueue, free, nudge
from pgembed_django.queue.jobs.failing import fail, supersede_running
from pgembed_django.queue.jobs.leases import Claim, Held, absolve, heartbeat, hold, note_progress
from pgembed_django.queue.jobs.pruning import (
    fail_unknown,
    forget_dead_workers,
    prune,
    prune_attempts,
)
from pgembed_django.queue.jobs.settling import complete, reap, reap_one, release, retry
from pgembed_django.queue.jobs.suspicion import claim_doubtful, claim_suspect, suspicious_due
from pgembed_django.queue.jobs.triage import (
    Dismissed,
    Reaped,
    Retried,
    dismiss,
    enqueue_again,
    reap_held,
    retry_failed,
)
from pgembed_django.queue.jobs.whole_specs import (
    Paused,
    forget,
    pause,
    paused,
    rename,
    resume,
    share,
)

__all__ = [
    "CHANNEL",
    "NUDGE",
    "Claim",
    "Dismissed",
    "Held",
    "Lane",
    "Lease",
    "Paused",
    "Reaped",
    "Retried",
    "absolve",
    "claim",
    "claim_doubtful",
    "claim_on",
    "claim_suspect",
    "complete",
    "dismiss",
    "enqueue",
    "enqueue_again",
    "fail",
    "fail_unknown",
    "forget",
    "forget_dead_workers",
    "free",
    "heartbeat",
    "hold",
    "next_due_seconds",
    "note_progress",
    "nudge",
    "pause",
    "paused",
    "priorities",
    "priority_of",
    "prune",
    "prune_attempts",
    "reap",
    "reap_held",
    "reap_one",
    "recall",
    "release",
    "rename",
    "resume",
    "retry",
    "retry_failed",
    "share",
    "supersede_running",
    "suspicious_due",
]
