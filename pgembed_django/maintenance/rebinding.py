"""A column has taken another's name: triggers watch what is called so now, not what was."""

from __future__ import annotations

import time
from typing import Any

from django.db import DatabaseError, connections

from pgembed_django import database, events, specs, triggers

TRY_SECONDS = 5.0
LOOK_SECONDS = 0.05
"""For how long, and how often, a table is tried that writers hold."""


def follow(*, using: str) -> None:
    """Install those triggers again that read other columns than they name.

    A migration that renames columns does not change the triggers' definitions, so it does not
    install them again. Failures are logged here, and at the start of each worker.
    """
    keys = {spec.key for spec in specs.on(using)}
    for key, found in triggers.astray(keys, using=using).items():
        if _are_renewed(found, using=using):
            events.tell(events.TRIGGERS_RENEWED, spec=key)
        else:
            events.tell(events.TRIGGERS_AMISS, spec=key, states="outdated", database=using)


def after_migrate(sender: object, *, using: str, plan: object = None, **_: Any) -> None:
    """Receive ``post_migrate``: this role may install triggers. A flush has no plan."""
    if plan is not None and connections[using].vendor == "postgresql":
        follow(using=using)


def _are_renewed(found: list[triggers.Installed], *, using: str) -> bool:
    # Writers wait behind whoever waits for their table: so shortly, but often.
    until = time.monotonic() + TRY_SECONDS
    while True:
        try:
            with database.giving_way(using):
                for one in found:
                    one.renew(using=using)
        except database.Busy:
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS)
        except DatabaseError:
            return False  # one of the columns is not there yet, or the table is another role's
        else:
            return True
