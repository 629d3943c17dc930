"""The verbs of the job table, and its only Python writers. Times are the database's.

The same goes for attempts that ended in an error, and for pauses by hand.
"""

from pgembed_django.queue.jobs.claims import (
    Lane,
    Lease,
    claim,
    claim_suspect,
    is_suspect_due,
    next_due_seconds,
    recall,
)
from pgembed_django.queue.jobs.enqueueing import (
    CHANNEL,
    NUDGE,
    enqueue,
    enqueue_again,
    enqueue_related,
    free,
    nudge,
)
from pgembed_django.queue.jobs.leases import Claim, Held, absolve, heartbeat, hold, note_progress
from pgembed_django.queue.jobs.pruning import (
    fail_unknown,
    forget_dead_workers,
    prune,
)
from pgembed_django.queue.jobs.settling import (
    complete,
    fail,
    reap,
    reap_one,
    release,
    retry,
    supersede_running,
)
from pgembed_django.queue.jobs.triage import (
    Paused,
    dismiss,
    forget,
    pause,
    paused,
    reap_held,
    rename,
    resume,
    retry_failed,
    share,
)

__all__ = [
    "CHANNEL",
    "NUDGE",
    "Claim",
    "Held",
    "Lane",
    "Lease",
    "Paused",
    "absolve",
    "claim",
    "claim_suspect",
    "complete",
    "dismiss",
    "enqueue",
    "enqueue_again",
    "enqueue_related",
    "fail",
    "fail_unknown",
    "forget",
    "forget_dead_workers",
    "free",
    "heartbeat",
    "hold",
    "is_suspect_due",
    "next_due_seconds",
    "note_progress",
    "nudge",
    "pause",
    "paused",
    "prune",
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
]
