"""Wake the workers that sleep. The triggers do it by themselves, over the same channel."""

from __future__ import annotations

from pgembed_django import database

CHANNEL = "pgembed"

# Whoever notifies while the cluster's queue is full cannot commit: as in the triggers.
NUDGE = """
    SELECT pg_notify(%(channel)s, '')
    WHERE pg_notification_queue_usage() < 0.5
"""


def nudge(*, using: str) -> None:
    """Let workers look for jobs now, not at their next poll: a person waits."""
    database.rows(using, NUDGE, channel=CHANNEL)
