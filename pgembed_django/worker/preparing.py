"""What a worker does before its first claim: check sequences, renamings, spaces, triggers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pgembed_django import events, spaces, triggers
from pgembed_django.maintenance import numbering, recognizing, renaming
from pgembed_django.specs import Spec

FOLLOW_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""How long, and how often, to try a renaming that another process or a lock puts off."""


def prepare(specs: Mapping[str, Spec], *, using: str) -> None:
    """Advance sequences, follow renamings, open spaces, and log triggers that are amiss."""
    numbering.catch_up(using=using)
    # Before spaces are opened: one for the new name would take the place of the former one's.
    until = time.monotonic() + FOLLOW_SECONDS
    while not renaming.follow(using=using) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    for spec in specs.values():
        spaces.ensure(spec, using=using)
        recognizing.recognize(spec, using=using, only_exchanged=True)
    for key, states in triggers.amiss(specs, using=using).items():
        events.tell(events.TRIGGERS_AMISS, spec=key, states=", ".join(states), database=using)
