"""Reinstall triggers after renames that gave a column the former name of another one."""

from __future__ import annotations

import time
from typing import Any

from django.db import DatabaseError, connections

from pgembed_django import database, events, specs
from pgembed_django.triggers import installed

TRY_SECONDS = 5.0
LOOK_SECONDS = 0.05
"""For how long and at which intervals to try to lock a table that writers have locked."""


def follow(*, using: str) -> None:
    """Reinstall the triggers that read other columns than those they name.

    A migration that renames columns does not change the triggers' definitions, so it does not
    install them again. Failures are logged here, and at the start of each worker.
    """
    keys = {spec.key for spec in specs.on(using)}
    for key, found in installed.rebound(keys, using=using).items():
        if _are_renewed(found, using=using):
            events.tell(events.TRIGGERS_RENEWED, spec=key)
        else:
            events.tell(events.TRIGGERS_AMISS, spec=key, states="outdated", database=using)


def after_migrate(sender: object, *, using: str, plan: object = None, **_: Any) -> None:
    """Receive ``post_migrate``: this role may install triggers. A flush has no plan."""
    if plan is not None and connections[using].vendor == "postgresql":
        follow(using=using)


def _are_renewed(found: list[installed.Installed], *, using: str) -> bool:
    # Writers queue up behind a waiting table lock, so there are many short tries.
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
            return False  # a column is not there yet, or another role owns the table
        else:
            return True
