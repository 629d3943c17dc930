"""Moments in time. With ``USE_TZ`` off they are local times, without an offset."""

from __future__ import annotations

from datetime import datetime


def seconds_between(start: datetime, end: datetime) -> float:
    """Return the seconds from one moment to another. Negative: ``end`` is the earlier one.

    Not the difference of local times: a change to or from summer time may lie in between.
    """
    return end.timestamp() - start.timestamp()
