"""Wake sleeping workers. The triggers do the same in SQL, over the same channel."""

from __future__ import annotations

from pgembed_django import database

CHANNEL = "pgembed"

# As in the triggers: a transaction that notifies while the cluster's queue is full cannot commit.
NUDGE = """
    SELECT pg_notify(%(channel)s, '')
    WHERE pg_notification_queue_usage() < 0.5
"""


def nudge(*, using: str) -> None:
    """Let workers look for jobs now rather than at their next poll."""
    database.rows(using, NUDGE, channel=CHANNEL)
