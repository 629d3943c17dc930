"""What a worker sees to before it claims: names that have changed, spaces, triggers."""

from __future__ import annotations

from collections.abc import Mapping

from pgembed_django import events, spaces, triggers
from pgembed_django.maintenance import renaming
from pgembed_django.specs import Spec

TRIES = 50
"""How often a renaming is followed that is put off, each after a tenth of a second at the most."""


def prepare(specs: Mapping[str, Spec], *, using: str) -> None:
    """Follow renamings, open the spaces, and tell of triggers that do not fire."""
    # Not sooner: a space that is opened for the new name would take the former one's place.
    any(renaming.follow(using=using) for _ in range(TRIES))
    for spec in specs.values():
        spaces.ensure(spec, using=using)
    for key, states in triggers.amiss(specs, using=using).items():
        events.tell(events.TRIGGERS_AMISS, spec=key, states=", ".join(states))
