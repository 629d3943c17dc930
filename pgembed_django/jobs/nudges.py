"""Wake the workers that sleep. The triggers do it by themselves, over the same channel."""

from __future__ import annotations

from pgembed_django import database

CHANNEL = "pgembed"

NUDGE = "SELECT pg_notify(%(channel)s, '')"


def nudge(*, using: str) -> None:
    """Let workers look for jobs now, not at their next poll: a person waits."""
    database.rows(using, NUDGE, channel=CHANNEL)
