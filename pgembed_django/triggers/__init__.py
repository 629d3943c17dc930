"""The triggers of a spec, which the users' migrations install.

Each body is one call of a function that our own migrations create: a fault in a longer body could
only be fixed by a migration in every user's project.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgembed_django.triggers.compiled import CompiledTrigger
from pgembed_django.triggers.installed import FIRES, Installed, amiss, astray, names, tables_of
from pgembed_django.triggers.kinds import (
    Deleted,
    Inserted,
    InsertedTogether,
    Left,
    SpecTrigger,
    Truncated,
    Updated,
    Watch,
    trigger_name,
)

__all__ = [
    "FIRES",
    "CompiledTrigger",
    "Installed",
    "SpecTrigger",
    "Watch",
    "amiss",
    "astray",
    "names",
    "tables_of",
    "trigger_name",
    "triggers",
]


def triggers(watch: Watch) -> Iterator[SpecTrigger]:
    """Yield the triggers that keep a spec's vectors in step with its table."""
    inserted = InsertedTogether if watch.is_by_statement else Inserted
    for kind in (inserted, Updated, Left, Deleted, Truncated):
        yield kind(watch)
