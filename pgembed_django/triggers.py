"""The row triggers of one spec: what the users' migrations install.

Each body is one call to a function that our own migration ships: a fat one could
only be mended by a migration in every user's project.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pgtrigger
from django.db.models import Field, Model, Q
from pgtrigger import compiler
from psycopg import sql as psycopg_sql

from pgembed_django import conditions, sql

NAME_LENGTH = pgtrigger.core.MAX_NAME_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the triggers of one spec have to know."""

    key: str
    name: str
    fields: tuple[str, ...]
    when: Q | None
    priority: int
    embedding_table: str


def triggers(watch: Watch) -> Iterator[SpecTrigger]:
    """Yield every trigger that keeps a spec's vectors true to its table."""
    for kind in (Inserted, Updated, Left, Deleted, Truncated):
        yield kind(watch)


class CompiledTrigger(compiler.Trigger):
    """A trigger as it stands in a migration.

    pgtrigger drops it from the table by the table's old name, so one would survive
    RenameModel, and call with a spec and a table that are gone. This one is found by
    its function, whatever its table is called by now. Undoing such a migration, pgtrigger
    comes with the old name too early: that can only be told.
    """

    MISSING: ClassVar[str] = """
        DO $$
        BEGIN
            IF to_regclass({table}) IS NULL THEN
                RAISE EXCEPTION 'pgembed: there is no table % to put a trigger on', {table}
                USING HINT = 'To undo a RenameModel, first move the RemoveTrigger operations '
                    'of its migration above it, with the old model_name.';
            END IF;
        END
        $$;
    """
    DROP: ClassVar[str] = """
        DO $$
        DECLARE
            source regclass;
        BEGIN
            FOR source IN
                SELECT tgrelid
                FROM pg_catalog.pg_trigger
                WHERE tgname = '{pgid}'
                  AND tgfoid = to_regprocedure('{pgid}()')
            LOOP
                EXECUTE format('DROP TRIGGER {pgid} ON %s', source);
            END LOOP;
        END
        $$;

        DROP FUNCTION IF EXISTS {pgid}();
    """
    # With a schema per tenant a row may be written with another tenant's search_path, or
    # with none: its job belongs beside it all the same.
    PIN: ClassVar[str] = "ALTER FUNCTION {pgid}() SET search_path FROM CURRENT;"

    # pgtrigger finds out that nothing is ignored by an error that it catches, and each row
    # pays for that. Where the setting is empty there is nothing to ask.
    ASKED: ClassVar[re.Pattern[str]] = re.compile(
        r"IF \((\S*_pgtrigger_should_ignore\(TG_NAME\)) IS TRUE\)"
    )
    ASKED_WHERE_SET: ClassVar[str] = (
        r"IF (COALESCE(current_setting('pgtrigger.ignore', true), '') <> '' AND \1 IS TRUE)"
    )

    @property
    def install_sql(self) -> str:
        """Create the function and the trigger."""
        table = _literal(conditions.quoted_name(self.sql.table))
        pin = "" if sql.is_in_one_schema() else self.PIN.format(pgid=self.sql.pgid)
        install = self.ASKED.sub(self.ASKED_WHERE_SET, super().install_sql)
        return self.MISSING.replace("{table}", table) + install + pin

    @property
    def uninstall_sql(self) -> str:
        """Drop the trigger and its function."""
        return self.DROP.format(pgid=self.sql.pgid)


class SpecTrigger(pgtrigger.Trigger):
    """One of a spec's triggers. ``model`` is the migration's, with names as they are there."""

    when = pgtrigger.After
    verb: ClassVar[str]

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        super().__init__(name=trigger_name(self.verb, watch.name))

    # pgtrigger's annotations say Model where it passes the class: hence Any.
    def compile(self, model: Any) -> CompiledTrigger:
        """Return what the migration holds."""
        compiled = super().compile(model)
        return CompiledTrigger(name=compiled.name, sql=compiled.sql)

    def render_condition(self, model: Any) -> str:
        """Return the trigger's WHEN, or nothing: it always fires."""
        clauses = [clause for clause in self.clauses(model) if clause != "TRUE"]
        return "WHEN ({})".format("\nAND ".join(clauses)) if clauses else ""

    def get_func(self, model: Any) -> str:
        """Return the trigger's body."""
        return f"PERFORM {self.call(model)};\nRETURN NULL;"

    def clauses(self, model: type[Model]) -> list[str]:
        """Return what must all be true for the trigger to fire."""
        raise NotImplementedError

    def call(self, model: type[Model]) -> str:
        """Return the call of our function."""
        raise NotImplementedError

    def _matches(self, model: type[Model], row: conditions.Row) -> str:
        return conditions.compiled(self.watch.when, model=model, row=row)

    def _enqueue(self, model: type[Model]) -> str:
        unit = _literal(self.watch.key), _pk(model, "NEW")
        return _called("pgembed_enqueue_v1", *unit, _literal(self.watch.priority))

    def _forget(self, model: type[Model]) -> str:
        unit = _literal(self.watch.key), _pk(model, "OLD")
        return _called("pgembed_forget_v1", *unit, _literal(self.watch.priority), self._table())

    def _table(self) -> str:
        return _literal(conditions.quoted_name(self.watch.embedding_table))


class Inserted(SpecTrigger):
    """A row came."""

    verb = "insert"
    operation = pgtrigger.Insert

    def clauses(self, model: type[Model]) -> list[str]:
        return [self._matches(model, "new")]

    def call(self, model: type[Model]) -> str:
        return self._enqueue(model)


class Updated(SpecTrigger):
    """What is watched of a row changed, or it began to match, or it has another key."""

    verb = "update"
    operation = pgtrigger.Update

    def clauses(self, model: type[Model]) -> list[str]:
        fields = [model._meta.get_field(name) for name in self.watch.fields]
        changes = [
            conditions.changed(field) for field in dict.fromkeys((*fields, _pk_field(model)))
        ]
        return [
            self._matches(model, "new"),
            _any([*changes, _not(self._matches(model, "old"))]),
        ]

    def call(self, model: type[Model]) -> str:
        return self._enqueue(model)


class Left(SpecTrigger):
    """A row no longer matches, or has another key: what is stored of it goes at once."""

    verb = "leave"
    operation = pgtrigger.Update

    def clauses(self, model: type[Model]) -> list[str]:
        return [
            self._matches(model, "old"),
            _any([conditions.changed(_pk_field(model)), _not(self._matches(model, "new"))]),
        ]

    def call(self, model: type[Model]) -> str:
        return self._forget(model)


class Deleted(SpecTrigger):
    """A row went."""

    verb = "delete"
    operation = pgtrigger.Delete

    def clauses(self, model: type[Model]) -> list[str]:
        return [self._matches(model, "old")]

    def call(self, model: type[Model]) -> str:
        return self._forget(model)


class Truncated(SpecTrigger):
    """All rows went."""

    verb = "truncate"
    level = pgtrigger.Statement
    operation = pgtrigger.Truncate

    def clauses(self, model: type[Model]) -> list[str]:
        return []

    def call(self, model: type[Model]) -> str:
        return _called("pgembed_forget_all_v1", _literal(self.watch.key), self._table())


def trigger_name(verb: str, spec_name: str) -> str:
    """Return a name that pgtrigger takes, unique on the spec's table."""
    name = f"pgembed_{verb}_{spec_name}"
    if len(name) <= NAME_LENGTH and re.fullmatch(r"[A-Za-z0-9_]+", name):
        return name
    digest = hashlib.sha256(spec_name.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9_]", "", name)[: NAME_LENGTH - 9]
    return f"{readable}_{digest}"


def _called(function: str, *arguments: str) -> str:
    return f"{sql.qualified(function)}({', '.join(arguments)})"


def _literal(value: str | int) -> str:
    return psycopg_sql.quote(value).strip()


def _pk_field(model: type[Model]) -> Field[Any, Any]:
    return model._meta.pk


def _pk(model: type[Model], row: str) -> str:
    return f"{row}.{conditions.quoted_name(str(_pk_field(model).column))}::text"


def _not(clause: str) -> str:
    return {"TRUE": "FALSE", "FALSE": "TRUE"}.get(clause, f"NOT ({clause})")


def _any(clauses: list[str]) -> str:
    clauses = [clause for clause in clauses if clause != "FALSE"]
    return f"({' OR '.join(clauses)})"
