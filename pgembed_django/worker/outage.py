"""Outages of the database. The worker keeps its jobs, and retries with backoff."""

from __future__ import annotations

from django.db import connections

from pgembed_django import events, faults


class Outage:
    """Knows whether the database is away, and how long to wait before the next try."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self.seconds = 0.0
        """The last wait. Zero: the database answered when it was last asked."""

    def __bool__(self) -> bool:
        return self.seconds > 0

    def note(self, error: Exception) -> None:
        """Note that the database is away. Makes the wait longer each time."""
        self.seconds = faults.longer(self.seconds)
        if faults.is_of_the_server(error):
            reason = faults.said(error)
            events.tell(events.DATABASE_REFUSES, seconds=self.seconds, error=reason)
        else:
            events.tell(events.DATABASE_LOST, seconds=self.seconds, error=str(error))
        connections[self.using].close()

    def end(self) -> None:
        """Note that the database has answered. Logged if it was away."""
        if self:
            self.seconds = 0.0
            events.tell(events.DATABASE_BACK)
