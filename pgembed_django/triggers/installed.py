"""Check that the triggers are in the database as declared and enabled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pgtrigger import registry
from psycopg import sql

from pgembed_django.core import database, postgres
from pgembed_django.triggers import SpecTrigger, conditions
from pgembed_django.triggers.compiled import CompiledTrigger

# A trigger's comment is the hash of its definition. If a migration changed a column's type, the
# comment is missing: pgtrigger drops the trigger meanwhile, and restores all but the comment.
INSTALLED = """
    SELECT
        trigger.tgenabled,
        obj_description(trigger.oid, 'pg_trigger'),
        pg_get_triggerdef(trigger.oid)
    FROM unnest(%(names)s::text[], %(tables)s::text[]) WITH ORDINALITY
        AS wanted(name, rows, place)
    LEFT JOIN pg_trigger AS trigger
      ON trigger.tgname = wanted.name
     AND trigger.tgrelid = to_regclass(wanted.rows)
    ORDER BY place
"""
# With ALWAYS a trigger also fires for replicated rows.
ALWAYS = "A"
FIRES = ("O", ALWAYS)
ENABLE_ALWAYS = "ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"

# Each trigger has its own function, whose body names the spec.
TABLES_OF = r"""
    SELECT DISTINCT tgrelid::regclass::text
    FROM pg_trigger
    JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE tgname LIKE 'pgtrigger\_pgembed\_%%'
      AND position(quote_literal(%(key)s) IN prosrc) > 0
    ORDER BY 1
"""


def tables_of(key: str, *, using: str) -> list[str]:
    """Return the tables that have triggers of a spec, even if it is no longer declared."""
    return [table for [table] in database.rows(using, TABLES_OF, key=key)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A declared trigger, with its state in a database."""

    # Any, as pgtrigger's annotations say Model where it passes the class.
    model: Any
    trigger: SpecTrigger
    declared: CompiledTrigger
    enabled: str | None
    hash: str | None
    definition: str | None

    @property
    def state(self) -> str | None:
        """The fault: missing, outdated or disabled. None: as declared."""
        if self.definition is None:
            return "missing"
        if self._is_another() or self.is_rebound:
            return "outdated"
        return None if self.enabled in FIRES else "disabled"

    @property
    def is_rebound(self) -> bool:
        """Whether its definition is as declared, but reads columns with other names by now.

        Postgres binds a condition to column numbers. If a column was renamed and another column
        took its old name, the trigger still reads the renamed one.
        """
        if self.definition is None or self._is_another():
            return False
        named = self.declared.sql.kwargs["condition"]
        # Look only after WHEN, because a schema may be called "old".
        _, _, condition = self.definition.partition(" WHEN (")
        return conditions.columns_read(
            condition.rpartition(" EXECUTE ")[0]
        ) != conditions.columns_read(named)

    def renew(self, *, using: str) -> None:
        """Install the trigger again, so that it reads the columns that have the names now."""
        self.trigger.install(self.model, database=using)
        if self.enabled == ALWAYS:
            statement = sql.SQL(ENABLE_ALWAYS).format(
                table=sql.SQL(postgres.quoted_table(self.model)),
                trigger=sql.Identifier(self.declared.sql.pgid),
            )
            database.execute(using, statement.as_string())

    def _is_another(self) -> bool:
        return self.hash not in (None, self.declared.hash)


def drifted(keys: Collection[str], *, using: str) -> Mapping[str, Mapping[str, int]]:
    """Count the triggers that are missing, outdated or disabled, by spec key and state.

    If a table does not exist, all its triggers are missing.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    states = [(one.trigger.watch.key, one.state) for one in _installed(keys, using=using)]
    for key, state in sorted((key, state) for key, state in states if state):
        found[key][state] += 1
    return found


def rebound(keys: Collection[str], *, using: str) -> Mapping[str, list[Installed]]:
    """Return the triggers that read columns with other names by now, by spec key.

    Leaves out triggers that are disabled, or that no migration would install in this database.
    """
    found: defaultdict[str, list[Installed]] = defaultdict(list)
    for one in _installed(keys, using=using):
        fires = one.enabled in FIRES and one.trigger.allow_migrate(one.model, database=using)
        if fires and one.is_rebound:
            found[one.trigger.watch.key].append(one)
    return found


def install_missing(keys: Collection[str], *, using: str) -> None:
    """Install the triggers that are missing, if no migration is to do that."""
    for one in _installed(keys, using=using):
        if one.definition is None:
            one.renew(using=using)


def names(keys: Collection[str]) -> list[tuple[str, str, str]]:
    """Return (spec key, name in the database, quoted table) of each trigger of the given specs."""
    return [
        (trigger.watch.key, trigger.get_pgid(model), postgres.quoted_table(model))
        for model, trigger in _declared(keys)
    ]


def _declared(keys: Collection[str]) -> list[tuple[Any, SpecTrigger]]:
    return [
        (model, trigger)
        for model, trigger in registry.registered()
        if isinstance(trigger, SpecTrigger) and trigger.watch.key in keys
    ]


def _installed(keys: Collection[str], *, using: str) -> Iterator[Installed]:
    wanted = _declared(keys)
    found = database.rows(
        using,
        INSTALLED,
        names=[trigger.get_pgid(model) for model, trigger in wanted],
        tables=[postgres.quoted_table(model) for model, _ in wanted],
    )
    for (model, trigger), (enabled, written, definition) in zip(wanted, found, strict=True):
        yield Installed(
            model=model,
            trigger=trigger,
            declared=trigger.compile(model),
            enabled=enabled,
            hash=written,
            definition=definition,
        )
