"""The triggers of one spec: what the users' migrations install.

Each body is one call to a function that our own migration ships: a fat one could
only be mended by a migration in every user's project.
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
    """Yield every trigger that keeps a spec's vectors true to its table."""
    inserted = InsertedTogether if watch.is_by_statement else Inserted
    for kind in (inserted, Updated, Left, Deleted, Truncated):
        yield kind(watch)
