"""The five triggers of a spec. Each class says when it fires, and which function it calls.

Users' migrations install them. Each body is one call of a function that our own migrations create:
a fault in a longer body could only be fixed by a migration in every user's project.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pgtrigger
from django.db.models import Model, Q

from pgembed_django.core import postgres
from pgembed_django.triggers import conditions, sql
from pgembed_django.triggers.compiled import CompiledTrigger as CompiledTrigger
from pgembed_django.triggers.compiled import literal

NAME_LENGTH = pgtrigger.core.MAX_NAME_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """All that the triggers of one spec are made from."""

    key: str
    name: str
    fields: tuple[str, ...]
    when: Q | None
    priority: int
    embedding_table: str
    is_by_statement: bool = False
    """Whether one trigger per INSERT statement enqueues its rows together."""
    is_by_message: bool = False
    """Whether the triggers only write messages into the write-ahead log."""


class SpecTrigger(pgtrigger.Trigger):
    """One of a spec's triggers.

    Methods get ``model`` as it is in the migration, with its names of that time.
    """

    when = pgtrigger.After
    verb: ClassVar[str]

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        super().__init__(name=trigger_name(self.verb, watch.name))

    # Any, as pgtrigger's annotations say Model where it passes the class.
    def compile(self, model: Any) -> CompiledTrigger:
        """Return the trigger that the migration contains."""
        compiled = super().compile(model)
        return CompiledTrigger(name=compiled.name, sql=compiled.sql)

    def render_condition(self, model: Any) -> str:
        """Return the trigger's WHEN clause. Empty: it always fires."""
        clauses = [clause for clause in self.clauses(model) if clause != "TRUE"]
        return "WHEN ({})".format("\nAND ".join(clauses)) if clauses else ""

    def get_func(self, model: Any) -> str:
        """Return the trigger's body."""
        return f"PERFORM {self.call(model)};\nRETURN NULL;"

    def render_func(self, model: Any) -> str:
        """Return the trigger's body, with a digest of the columns that its condition reads.

        Postgres refuses to alter or drop a column that a trigger reads: the migration has to drop
        the trigger first. The digest changes with the columns. So makemigrations sees a changed
        trigger, drops it before the column changes, and installs the new one afterwards.
        """
        body: str = super().render_func(model)
        read = conditions.declared(self.render_condition(model), model=model)
        digest = hashlib.sha256(read.encode()).hexdigest()[:12]
        return f"-- Columns: {digest}\n{body}" if read else body

    def clauses(self, model: type[Model]) -> list[str]:
        """Return the SQL conditions that must all be true for the trigger to fire."""
        raise NotImplementedError

    def call(self, model: type[Model]) -> str:
        """Return the SQL call of our function."""
        raise NotImplementedError

    def _matches(self, model: type[Model], row: conditions.Row) -> str:
        return conditions.compiled(self.watch.when, model=model, row=row)

    def _enqueue(self, model: type[Model]) -> str:
        pk = _pk(model, "NEW")
        if self.watch.is_by_message:
            return self._emit("enqueue", f"ARRAY[{pk}]")
        unit = literal(self.watch.key), pk
        return called("pgembed_enqueue_v1", *unit, literal(self.watch.priority))

    def _forget(self, model: type[Model]) -> str:
        pk = _pk(model, "OLD")
        if self.watch.is_by_message:
            return self._emit("forget", f"ARRAY[{pk}]")
        unit = literal(self.watch.key), pk
        return called("pgembed_forget_v1", *unit, literal(self.watch.priority), self._table())

    def _emit(self, verb: str, keys: str) -> str:
        spec, lane = literal(self.watch.key), literal(self.watch.priority)
        return called("pgembed_emit_v1", literal(verb), spec, lane, self._table(), keys)

    def _table(self) -> str:
        return literal(postgres.quoted_name(self.watch.embedding_table))


class Inserted(SpecTrigger):
    """Fires when a row is inserted."""

    verb = "insert"
    operation = pgtrigger.Insert

    def clauses(self, model: type[Model]) -> list[str]:
        return [self._matches(model, "new")]

    def call(self, model: type[Model]) -> str:
        return self._enqueue(model)


class InsertedTogether(Inserted):
    """Fires once for each INSERT statement, and enqueues many rows with one call.

    ``Inserted``, a row trigger, runs an INSERT into the job table for each row. This trigger has
    the same name, so that a migration replaces one by the other.
    """

    level = pgtrigger.Statement
    referencing = pgtrigger.Referencing(new="inserted")  # type: ignore[no-untyped-call]
    # Rows per call: an array of all keys might exceed the size limit of a value.
    PAGE: ClassVar[int] = 10_000

    def render_condition(self, model: Any) -> str:
        """Return an empty string, as a statement trigger has no row to test."""
        return ""

    def get_func(self, model: Any) -> str:
        """Return the trigger's body: one call for each page of the rows that match."""
        pk = _pk(model, '"inserted"')
        keys = "pg_catalog.array_agg(written.pk)"
        if self.watch.is_by_message:
            call = self._emit("enqueue", keys)
        else:
            unit = literal(self.watch.key), keys
            call = called("pgembed_enqueue_all_v1", *unit, literal(self.watch.priority))
        return (
            f"PERFORM {call}\n"
            f"FROM (SELECT {pk}, row_number() OVER () / {self.PAGE}\n"
            f"FROM inserted WHERE {self._matches(model, 'inserted')}) AS written(pk, page)\n"
            "GROUP BY written.page;\nRETURN NULL;"
        )


class Updated(SpecTrigger):
    """Fires when a watched field changes, the row begins to match, or its key changes."""

    verb = "update"
    operation = pgtrigger.Update

    def clauses(self, model: type[Model]) -> list[str]:
        fields = [model._meta.get_field(name) for name in self.watch.fields]
        changes = [conditions.changed(field) for field in dict.fromkeys((*fields, model._meta.pk))]
        return [
            self._matches(model, "new"),
            any_of([*changes, _not(self._matches(model, "old"))]),
        ]

    def call(self, model: type[Model]) -> str:
        return self._enqueue(model)


class Left(SpecTrigger):
    """Fires when a row no longer matches, or its key changes. Deletes its vectors at once."""

    verb = "leave"
    operation = pgtrigger.Update

    def clauses(self, model: type[Model]) -> list[str]:
        return [
            self._matches(model, "old"),
            any_of([conditions.changed(model._meta.pk), _not(self._matches(model, "new"))]),
        ]

    def call(self, model: type[Model]) -> str:
        return self._forget(model)


class Deleted(SpecTrigger):
    """Fires when a row is deleted."""

    verb = "delete"
    operation = pgtrigger.Delete

    def clauses(self, model: type[Model]) -> list[str]:
        return [self._matches(model, "old")]

    def call(self, model: type[Model]) -> str:
        return self._forget(model)


class Truncated(SpecTrigger):
    """Fires when the table is truncated."""

    verb = "truncate"
    level = pgtrigger.Statement
    operation = pgtrigger.Truncate

    def clauses(self, model: type[Model]) -> list[str]:
        return []

    def call(self, model: type[Model]) -> str:
        if self.watch.is_by_message:
            return self._emit("forget_all", "'{}'::text[]")
        return called("pgembed_forget_all_v1", literal(self.watch.key), self._table())


def triggers(watch: Watch) -> Iterator[SpecTrigger]:
    """Yield the triggers that keep a spec's vectors in step with its table."""
    inserted = InsertedTogether if watch.is_by_statement else Inserted
    for kind in (inserted, Updated, Left, Deleted, Truncated):
        yield kind(watch)


def trigger_name(verb: str, spec_name: str) -> str:
    """Return a name that pgtrigger accepts, unique on the spec's table."""
    name = f"pgembed_{verb}_{spec_name}"
    if len(name) <= NAME_LENGTH and re.fullmatch(r"[A-Za-z0-9_]+", name):
        return name
    digest = hashlib.sha256(spec_name.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_]", "", name)[: NAME_LENGTH - 9]
    return f"{readable}_{digest}"


def called(function: str, *arguments: str) -> str:
    """Return a call of one of our functions."""
    return f"{sql.qualified(function)}({', '.join(arguments)})"


def _pk(model: type[Model], row: str) -> str:
    return f"{row}.{postgres.quoted_name(str(model._meta.pk.column))}::text"


def _not(clause: str) -> str:
    return {"TRUE": "FALSE", "FALSE": "TRUE"}.get(clause, f"NOT ({clause})")


def any_of(clauses: list[str]) -> str:
    """Return a condition that is true if one of several is."""
    clauses = [clause for clause in clauses if clause != "FALSE"]
    return f"({' OR '.join(clauses)})"
