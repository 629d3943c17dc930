"""The database is away or unwell. What is held stays held; we look again, ever more slowly."""

from __future__ import annotations

from django.db import connections

from pgembed_django import events, faults


class Outage:
    """Whether there is one, and how long the wait before the next look is."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self.seconds = 0.0
        """The last wait. Zero: the database answered when it was last asked."""

    def __bool__(self) -> bool:
        return self.seconds > 0

    def note(self, error: Exception) -> None:
        """Note that the database is away. The wait gets longer each time."""
        self.seconds = faults.longer(self.seconds)
        if faults.is_of_the_server(error):
            reason = faults.said(error)
            events.tell(events.DATABASE_REFUSES, seconds=self.seconds, error=reason)
        else:
            events.tell(events.DATABASE_LOST, seconds=self.seconds, error=str(error))
        connections[self.using].close()

    def end(self) -> None:
        """Note that the database has answered, and say so where it had been away."""
        if self:
            self.seconds = 0.0
            events.tell(events.DATABASE_BACK)
