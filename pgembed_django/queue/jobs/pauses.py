"""What a person has paused. Workers read it every few seconds, and claim only other jobs."""

from __future__ import annotations

from typing import NamedTuple

from pgembed_django import database
from pgembed_django.models.operations import Pause
from pgembed_django.queue.jobs.nudges import nudge

PAUSE = """
    INSERT INTO pgembed_pause (what, name, by)
    VALUES (%(what)s, %(name)s, %(by)s)
    ON CONFLICT (what, name) DO NOTHING
"""

RESUME = """
    DELETE FROM pgembed_pause
    WHERE what = %(what)s
      AND name = %(name)s
"""

PAUSED = """
    SELECT what, name, by
    FROM pgembed_pause
"""


class Paused(NamedTuple):
    """The paused specs, by key, and providers, by alias, each with the name of who paused it."""

    specs: dict[str, str]
    providers: dict[str, str]


def pause(what: str, name: str, *, by: str, using: str) -> bool:
    """Pause a spec or a provider. Returns False if it was paused already."""
    return database.execute(using, PAUSE, what=Pause.What(what), name=name, by=by) > 0


def resume(what: str, name: str, *, using: str) -> bool:
    """End the pause of a spec or a provider. Returns False if it was not paused."""
    is_resumed = database.execute(using, RESUME, what=Pause.What(what), name=name) > 0
    if is_resumed:
        nudge(using=using)  # a worker that is awake looks within seconds
    return is_resumed


def paused(*, using: str) -> Paused:
    """Return what is paused now."""
    found = Paused({}, {})
    for what, name, by in database.rows(using, PAUSED):
        (found.specs if what == Pause.What.SPEC else found.providers)[name] = by
    return found
