"""Change rows while the worker runs, and measure how soon a search finds the new text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, connections, transaction
from library.models import Entry, EntryEmbedding

from demo.exceptions import DemoFailed
from demo.processes import Process
from pgembed_django import search

LONGEST_SECONDS = 30
POLL_SECONDS = 0.001
RAW_UPDATE = "UPDATE library_entry SET docstring = %(docstring)s WHERE name = %(name)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A row, its new text, and a question that only the new text answers."""

    how: str
    name: str
    docstring: str
    question: str
    write: Callable[[Edit], None]


def through_orm(edit: Edit) -> None:
    with transaction.atomic():
        entry = Entry.objects.get(name=edit.name)
        entry.docstring = edit.docstring
        entry.save()


def through_sql(edit: Edit) -> None:
    with connection.cursor() as cursor:
        cursor.execute(RAW_UPDATE, {"docstring": edit.docstring, "name": edit.name})


EDITS = (
    Edit(
        how="the ORM",
        name="textwrap.dedent",
        docstring="Water the tomatoes early in the morning, and never in the midday sun.",
        question="when to water tomatoes",
        write=through_orm,
    ),
    Edit(
        how="raw SQL",
        name="shutil.copytree",
        docstring="Knead the dough for ten minutes, then let the bread rise overnight.",
        question="how long does bread dough rise",
        write=through_sql,
    ),
)
DELETED = "math.gcd"
ITS_QUESTION = "greatest common divisor"


def measure(edit: Edit, worker: Process) -> float:
    """Make the edit and return the milliseconds from its commit until a search finds it."""
    with second_connection() as alias:
        fresh = EntryEmbedding.objects.using(alias).filter(
            source__name=edit.name,
            passage__contains=edit.docstring,
            space__state="active",
            embedding__isnull=False,
        )
        edit.write(edit)
        committed = time.perf_counter()
        while not fresh.exists():
            worker.require_alive()
            if time.perf_counter() - committed > LONGEST_SECONDS:
                raise DemoFailed(
                    f"{edit.name} was not searchable {LONGEST_SECONDS} s after an edit through "
                    f"{edit.how}.{worker.last_lines()}"
                )
            time.sleep(POLL_SECONDS)
        return (time.perf_counter() - committed) * 1000


def found_first(question: str) -> str:
    """Return the name that a search puts first."""
    return next((entry.name for entry in search(Entry, question, limit=1)), "nothing")


def delete(name: str) -> None:
    Entry.objects.filter(name=name).delete()


@contextmanager
def second_connection() -> Iterator[str]:
    """Yield the alias of a second connection, which sees only what is committed."""
    alias = "second"
    connections[alias] = connections["default"].copy(alias)
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
