"""What a worker sees to before it claims: names that have changed, spaces, triggers."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import DatabaseError

from pgembed_django import events, faults, spaces, triggers
from pgembed_django.maintenance import renaming
from pgembed_django.specs import Spec


def prepare(specs: Mapping[str, Spec], *, using: str) -> Mapping[Spec, Exception]:
    """Open the spaces. Returns the specs whose tables are not as declared, and why."""
    renaming.follow(using=using)
    broken: dict[Spec, Exception] = {}
    for spec in specs.values():
        try:
            spaces.ensure(spec, using=using)
        except DatabaseError as error:
            if not faults.is_of_schema(error):
                raise
            broken[spec] = error
    for key, states in triggers.amiss(specs, using=using).items():
        events.tell(events.TRIGGERS_AMISS, spec=key, states=", ".join(states))
    return broken
