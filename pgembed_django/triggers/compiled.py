"""The trigger class in users' migrations, with the SQL to install and to drop the trigger."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pgtrigger import compiler
from psycopg import sql as psycopg_sql

from pgembed_django.core import postgres
from pgembed_django.triggers import conditions, sql

ENQUEUE = "pgembed_enqueue_v1"


class CompiledTrigger(compiler.Trigger):
    """A trigger as a migration contains it.

    pgtrigger drops a trigger by its table's old name. So a trigger would survive RenameModel, and
    use a spec and a table that are gone. This class finds the trigger by its function, whatever
    its table is called now. When such a migration is undone, or a db_table changes, pgtrigger
    installs the trigger before the table has its new name. Then the SQL can only raise an error
    that says what to do.

    A superuser may run this SQL. So its calls and casts leave no choice to Postgres, which would
    prefer a role's own function for exactly the given types to a built-in one.
    """

    reads: tuple[tuple[str, str, str | None], ...] = ()
    """App, model and field of what a trigger on another table reads, for ``RelatedTables``."""

    MISSING: ClassVar[str] = """
        DO $$
        BEGIN
            IF to_regclass({table}) IS NULL THEN
                RAISE EXCEPTION 'pgembed: there is no table % to put a trigger on', {table}
                USING HINT = 'Where db_table is another, move AlterModelTable of its migration '
                    'above the AddTrigger operations, below those of RemoveTrigger. '
                    'To undo a RenameModel, first move the RemoveTrigger operations '
                    'of its migration above it, with the old model_name.';
            END IF;
        END
        $$;
    """
    # Postgres's own error would name the column, but not say which migration has to create it.
    MISSING_COLUMNS: ClassVar[str] = """
        DO $$
        DECLARE
            missing text;
        BEGIN
            SELECT pg_catalog.string_agg(wanted.name, ', ')
            INTO missing
            FROM pg_catalog.unnest({columns}::text[]) AS wanted(name)
            WHERE NOT EXISTS (
                SELECT
                FROM pg_catalog.pg_attribute
                WHERE attrelid = to_regclass({table})::oid
                  AND attname = wanted.name::name
                  AND NOT attisdropped
            );
            IF missing IS NOT NULL THEN
                RAISE EXCEPTION 'pgembed: the table % has no column % to watch', {table}, missing
                USING HINT = 'Where this migration adds it, move that operation above those of '
                    'AddTrigger. Where a migration of another app makes it, as for a proxy of its '
                    'model, name that one in the dependencies of this migration, '
                    'for instance (''vendor'', ''0002_item_body'').';
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
                  AND tgfoid = to_regprocedure('{pgid}()')::oid
                  -- Those of partitions go with the whole table's.
                  AND tgparentid = 0::oid
            LOOP
                EXECUTE pg_catalog.format('DROP TRIGGER {pgid} ON %s', source);
            END LOOP;
        END
        $$;

        DROP FUNCTION IF EXISTS {pgid}();
    """
    # A statement trigger fires only on the table that the statement names: one on the parent misses
    # rows written directly into a partition, and one on a partition those written into the parent.
    PARTITIONED: ClassVar[str] = """
        DO $$
        BEGIN
            IF EXISTS (
                SELECT FROM pg_catalog.pg_class
                WHERE oid = to_regclass({table})::oid
                  AND (relkind = 'p' OR relispartition)
            ) THEN
                RAISE EXCEPTION 'pgembed: % is partitioned, and a trigger for each statement '
                    'misses rows that are written straight into a partition', {table}
                USING HINT = 'Take trigger_level="statement" off its @embeddable.';
            END IF;
        END
        $$;
    """
    # The trigger of one tenant would take the place of another one's, as they have one name.
    SHARED: ClassVar[str] = """
        DO $$
        BEGIN
            IF EXISTS (
                SELECT FROM pg_catalog.pg_class
                WHERE oid = to_regclass({table})::oid
                  AND relnamespace::regnamespace::text <> pg_catalog.quote_ident(current_schema())
            ) THEN
                RAISE EXCEPTION 'pgembed: the table % is shared by all tenants, and the texts of '
                    'one cannot be told of its changes', {table}
                USING HINT = 'Take it out of related, and enqueue the rows where it changes.';
            END IF;
        END
        $$;
    """
    # Routers let a proxy's triggers into every schema that has the table. In one without our
    # functions, as that of shared apps, each write would fail.
    UNMIGRATED: ClassVar[str] = """
        DO $$
        BEGIN
            IF to_regprocedure({function}) IS NULL THEN
                DROP TRIGGER {pgid} ON {rows};
                DROP FUNCTION {pgid}();
            END IF;
        END
        $$;
    """
    # With a schema per tenant, a row may be written under another tenant's search_path or an empty
    # one. Its job must still go into the row's own schema.
    PIN: ClassVar[str] = "ALTER FUNCTION {pgid}() SET search_path FROM CURRENT;"

    # When nothing is ignored, pgtrigger's check raises and catches an error for each row, which
    # takes time. So it is skipped while the setting is empty.
    ASKED: ClassVar[re.Pattern[str]] = re.compile(
        r"IF \((\S*_pgtrigger_should_ignore\(TG_NAME\)) IS TRUE\)"
    )
    ASKED_WHERE_SET: ClassVar[str] = (
        r"IF (COALESCE(current_setting('pgtrigger.ignore', true), '') <> '' AND \1 IS TRUE)"
    )

    @property
    def install_sql(self) -> str:
        """The SQL that creates the function and the trigger."""
        table = literal(postgres.quoted_name(self.sql.table))
        # A statement trigger tests the condition in its body, with operators of the search_path.
        by_tenant = not sql.is_in_one_schema()
        pin = ""
        if self.sql.kwargs.get("referencing") or by_tenant:
            pin = self.PIN.format(pgid=self.sql.pgid)
        if by_tenant:
            pin += self.UNMIGRATED.format(
                pgid=self.sql.pgid,
                rows=postgres.quoted_name(self.sql.table),
                function=literal(f"{ENQUEUE}({sql.FUNCTIONS[ENQUEUE]})"),
            )
        # A condition in the body may contain the $$ that pgtrigger quotes the body with.
        func = self.sql.kwargs["func"]
        before, _, after = super().install_sql.partition(func)
        before = "AS $pgembed$".join(before.rsplit("AS $$", 1))
        install = before + func + after.replace("$$", "$pgembed$", 1)
        install = self.ASKED.sub(self.ASKED_WHERE_SET, install)
        refuse = self.MISSING + self.MISSING_COLUMNS
        refuse += self.PARTITIONED if self.sql.kwargs.get("referencing") else ""
        is_related = str(self.name).startswith("pgembed_ripple_")
        refuse += self.SHARED if is_related and by_tenant else ""
        refuse = refuse.replace("{table}", table).replace("{columns}", self._columns())
        return refuse + install + pin

    def _columns(self) -> str:
        """Return the columns that the trigger's WHEN names, as an SQL array."""
        read = conditions.columns_read(self.sql.kwargs.get("condition") or "")
        names = map(literal, read)
        return f"ARRAY[{', '.join(names)}]"

    @property
    def uninstall_sql(self) -> str:
        """The SQL that drops the trigger and its function."""
        return self.DROP.format(pgid=self.sql.pgid)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Return what a migration writes: a stable import path, and the arguments."""
        _, args, kwargs = super().deconstruct()
        return "pgembed_django.triggers.CompiledTrigger", args, kwargs


def literal(value: str | int) -> str:
    """Return a value as an SQL literal."""
    return psycopg_sql.quote(value).strip()
