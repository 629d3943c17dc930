"""Delete what a test has committed, instead of Django's flush of every table.

A flush truncates some sixty tables and writes content types and permissions anew, which takes a
tenth of a second. A test writes to five. Sequences go on, as they do after a flush.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.contenttypes.models import ContentType
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.test import TransactionTestCase

flush = TransactionTestCase._fixture_teardown

# Large files, and statistics, are left by rows that were deleted or rolled back too. Plans and
# estimates of the tests that follow would change with them.
FIND_GROWN = """
    SELECT name
    FROM unnest(%s::text[]) AS name
    JOIN pg_class ON pg_class.oid = name::regclass
    WHERE relpages > 0 OR pg_relation_size(name::regclass) > 65536
"""


@dataclass(frozen=True)
class Migrated:
    """A database as its migrations leave it."""

    empty: list[str]
    """Quoted names of tables."""
    filled: dict[str, bytes]
    """Other tables, and their rows as COPY writes them."""
    find_changed: str

    @classmethod
    def read(cls, using: str) -> Migrated:
        connection = connections[using]
        names = connection.introspection.django_table_names(only_existing=True, include_views=False)
        empty, filled, tests = [], {}, []
        with connection.cursor() as cursor:
            for table in sorted(map(connection.ops.quote_name, names)):
                digest = f"SELECT md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM {table} AS t"
                cursor.execute(digest)
                [rows] = cursor.fetchone()
                if rows is None:
                    empty.append(table)
                    tests.append(f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})")
                else:
                    with cursor.copy(f"COPY {table} TO STDOUT") as copy:
                        filled[table] = b"".join(map(bytes, copy))
                    tests.append(f"SELECT '{table}' WHERE ({digest}) IS DISTINCT FROM '{rows}'")
        return cls(empty, filled, " UNION ALL ".join(tests))

    def restore(self, using: str) -> None:
        with transaction.atomic(using), connections[using].cursor() as cursor:
            # As a flush does, wait for the transactions of processes that were killed.
            tables = ", ".join([*self.empty, *self.filled])
            cursor.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")
            cursor.execute(self.find_changed)
            changed = {table for (table,) in cursor.fetchall()}
            cursor.execute(FIND_GROWN, [self.empty])
            grown = {table for (table,) in cursor.fetchall()}
            statements = [
                "SET LOCAL session_replication_role = replica"
            ]  # neither triggers nor keys
            statements += [f"DELETE FROM {table}" for table in changed - grown]
            if grown:
                statements.append(f"TRUNCATE {', '.join(grown)} CASCADE")
            cursor.execute("; ".join(statements))
            for table in changed & self.filled.keys():
                with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                    copy.write(self.filled[table])
        ContentType.objects.clear_cache()


migrated: dict[str, Migrated] = {}
"""By the names of the databases."""


def remember(using: str) -> None:
    """Take a database that was just migrated for the pattern of what tests find."""
    migrated[connections[using].settings_dict["NAME"]] = Migrated.read(using)


def fixture_teardown(self: TransactionTestCase) -> None:
    """Restore the databases of a test that commits, and flush those that have no pattern.

    A module made these for itself. A role or a schema may see other tables there.
    """
    names = {
        alias: connections[alias].settings_dict["NAME"]
        for alias in self._databases_names(include_mirrors=False)
    }
    if not set(names.values()) <= migrated.keys():
        flush(self)
        # Triggers have left ripples of what it has truncated in the tests' own database.
        names = {alias: name for alias, name in names.items() if alias == DEFAULT_DB_ALIAS}
    for alias, name in names.items():
        if name in migrated:
            migrated[name].restore(alias)
