"""The base classes of the ``embed_…`` commands.

They check the chosen specs, database and role, and let a command end without a traceback after
Ctrl-C or a refusal by Postgres.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError, CommandParser, SystemCheckError
from django.db import (
    DEFAULT_DB_ALIAS,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from pgembed_django import conf
from pgembed_django.core import database, faults, postgres
from pgembed_django.core.faults import Fault
from pgembed_django.declaration import specs
from pgembed_django.exceptions import did_you_mean
from pgembed_django.ops import status
from pgembed_django.tasks import backend

CANNOT_START = 2
"""The exit status of a command with wrong options, or without its database."""

INTERRUPTED = 130
"""The exit status of a command that was stopped by Ctrl-C, as in a shell."""

NOT_AS_DECLARED = (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable)
"""What a statement fails with before its table is migrated. All else may be a mistake of ours."""

# The second column: read-only for good, as on a replica or if the client asked for it.
STATE = """
    SELECT
        current_setting('transaction_read_only')::boolean,
        pg_is_in_recovery() OR source IN ('client', 'session'),
        'pgembed_job'::regclass
    FROM pg_settings
    WHERE name = 'default_transaction_read_only'
"""

HIDDEN = """
    SELECT name, current_user
    FROM unnest(%(names)s::text[]) AS wanted(name)
    WHERE row_security_active(to_regclass(name)::oid)
    ORDER BY name
"""


def cannot_start(message: str) -> CommandError:
    """Return the error of a command with wrong options, or without what it needs."""
    return CommandError(message, returncode=CANNOT_START)


class StoppableCommand(BaseCommand):
    """A command that may be stopped by Ctrl-C."""

    stopped = "Stopped."
    """The message after Ctrl-C."""
    is_a_program = False
    """Whether it was run by ``manage.py``, rather than by ``call_command``."""

    def run_from_argv(self, argv: list[str]) -> None:
        self.is_a_program = True
        super().run_from_argv(argv)

    def check(self, *args: Any, **options: Any) -> None:
        """Run the system checks. If one fails, the command cannot start: 1 would say it did."""
        try:
            super().check(*args, **options)
        except SystemCheckError as error:
            error.returncode = CANNOT_START
            raise

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. Ctrl-C ends it with a message instead of a traceback.

        So do a missing privilege, a table that is not as declared and a lost connection.
        """
        try:
            return super().execute(*args, **options)
        except KeyboardInterrupt:
            raise CommandError(self.stopped, returncode=INTERRUPTED) from None
        except (OperationalError, InterfaceError) as error:
            if not faults.is_lost_connection(error):
                raise
            raise CommandError(
                f"The connection to the database was lost: {faults.said(error)}. What was done "
                "so far is kept. Run it again."
            ) from error
        except ProgrammingError as error:
            raise (refused(error) or error) from error.__cause__


def refused(error: BaseException | None) -> CommandError | None:
    """Return the message for a missing privilege, table or column, else None."""
    if not isinstance(error, ProgrammingError):
        return None
    if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
        return cannot_start(
            f"The database role lacks a privilege: {faults.said(error)}. See "
            "'Roles with few rights' in the documentation."
        )
    if faults.of(error) is Fault.OURS or isinstance(error.__cause__, NOT_AS_DECLARED):
        return CommandError(
            f"A table or function does not match this code: {faults.said(error)}. Run manage.py "
            "makemigrations and migrate, or start it with the code that was migrated."
        )
    return None


QUEUES: dict[str, Any] = {
    "metavar": "NAME,NAME",
    "help": "Only these queues of tasks. If given without --specs, no specs; and vice versa.",
}
"""The option ``--queues`` of commands that are about jobs and tasks."""


class EmbedCommand(StoppableCommand):
    """A command that works on some specs in one database."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--specs",
            nargs="+",
            action="extend",
            metavar="SPEC",
            help="Only these, for example blog.ArticleEmbedding. All, unless given.",
        )
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help="The alias of the database. PGEMBED_WORKER_DATABASE, or default, unless given.",
        )

    def chosen_specs(
        self, keys: list[str] | None, *, using: str, or_tasks: bool = False
    ) -> dict[str, specs.Spec]:
        """Return the chosen specs by key. By default all that are in the database.

        ``or_tasks``: there may be none, if TASKS has a queue.
        """
        known = {spec.key: spec for spec in specs.all()}
        here = {spec.key: spec for spec in specs.on(using)}
        if or_tasks and not (keys or known) and backend.queues():
            return {}
        if not known:
            raise cannot_start(
                "No model is embeddable. Decorate one with @embeddable(fields=[...]), then run "
                "makemigrations and migrate."
                + (" And TASKS has no queue of PostgresBackend." if or_tasks else "")
            )
        for key in keys or ():
            if key not in known:
                raise cannot_start(
                    f"No spec named {key!r}. {did_you_mean(key, known)}"
                    f"There are: {', '.join(known)}."
                )
        elsewhere = ", ".join(key for key in keys or () if key not in here)
        if elsewhere or not here:
            what = f"{elsewhere} is not" if elsewhere else "No embeddable model is"
            raise cannot_start(
                f"{what} in the database {using!r}: a router keeps it elsewhere. Name its "
                "database with --database."
            )
        return {key: spec for key, spec in here.items() if not keys or key in keys}

    def chosen_queues(self, names: str | None, *, using: str) -> list[str] | None:
        """Return the queues that ``--queues`` names: of TASKS, or with tasks. None: all of them."""
        if names is None:
            return None
        known = [queue.key for queue in status.overview(specs=[], using=using).queues]
        for name in (wanted := [name for name in names.split(",") if name]):
            if name not in known:
                raise cannot_start(
                    f"No queue {name!r} in TASKS, and it has no tasks. {did_you_mean(name, known)}"
                    f"There are: {', '.join(known) or 'none'}."
                )
        return wanted

    def require_tables(self, chosen: Iterable[specs.Spec], *, using: str) -> dict[specs.Spec, str]:
        """Raise if a spec has no table because its migration has not run yet.

        Returns the specs whose table newer code has renamed or dropped, each with its migration.
        """
        newer = {
            spec: newer_migration(spec, using=using)
            for spec in specs.without_table(chosen, using=using)
        }
        for spec, migration in newer.items():
            if not migration:
                raise cannot_start(
                    f"The database {using!r} has no table for {spec}. "
                    f"Run manage.py makemigrations and {migrate(using)}."
                )
        return newer

    def require_rows(self, chosen: Iterable[specs.Spec], *, using: str) -> None:
        """Raise if a table is missing, or if row-level security hides rows, which look like gaps.

        A worker sets ``row_security = off``, so that its statements fail instead. A command does
        not, as the setting would stay in its caller's session, or in the pooler's.
        """
        self.require_tables(chosen, using=using)
        models = [model for spec in chosen for model in (spec.model, spec.embedding_model)]
        names = [postgres.quoted_table(model) for model in models]
        if hidden := database.rows(using, HIDDEN, names=names):
            raise cannot_start(
                f"Row-level security hides rows of {', '.join(name for name, _ in hidden)} from "
                f"the role {hidden[0][1]!r}. Use a role that sees all rows: ALTER ROLE … BYPASSRLS."
            )

    def chosen_database(
        self, alias: str | None, *, writes: bool = True, waits: bool = False
    ) -> str:
        """Return the chosen alias, after checking that the database is usable and has our tables.

        ``waits``: the caller can wait while the server is read-only, unless it is so for good.
        """
        if alias is None:
            alias = conf.current().worker_database or DEFAULT_DB_ALIAS
        if alias not in connections:
            # Empty if it came from a shell variable that is not set.
            what = f"No database named {alias!r}" if alias else "--database is empty"
            raise cannot_start(
                f"{what}. {did_you_mean(alias, connections)}There are: {', '.join(connections)}."
            )
        if other := postgres.not_postgres(alias, remedy="--database"):
            raise cannot_start(other)
        if writes and not connections[alias].settings_dict["AUTOCOMMIT"]:
            raise cannot_start(
                f"The database {alias!r} has AUTOCOMMIT off: nothing would be committed. Name an "
                "alias that has it on with --database."
            )
        try:
            [[is_read_only, is_for_good, _]] = database.rows(alias, STATE)
        except OperationalError as error:
            raise cannot_start(
                f"Cannot reach the database {alias!r}: {str(error).strip()}\n"
                "Is it running, and is DATABASES right?"
            ) from error
        except ProgrammingError as error:
            raise cannot_start(
                f"The database {alias!r} has no job table. Run {migrate(alias)}."
            ) from error
        if writes and is_read_only and (is_for_good or not waits):
            raise cannot_start(
                f"The database {alias!r} is read-only: is it a replica? Name the writable one "
                "with --database."
            )
        return alias


def migrate(alias: str) -> str:
    """Return the command that migrates a database."""
    option = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
    return f"manage.py migrate{option}"


def newer_migration(spec: specs.Spec, *, using: str) -> str:
    """Return the last applied migration of a spec's app if this code lacks it, else "".

    Earlier ones are not looked for: the code may lack them because they were squashed. Also
    returns "" if this role may not read which migrations are applied.
    """
    label = spec.embedding_model._meta.app_label
    try:
        with transaction.atomic(using=using):
            applied = MigrationRecorder(connections[using]).migration_qs
            last = applied.filter(app=label).order_by("pk").last()
    except ProgrammingError:
        return ""
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    if last is None or (label, last.name) in loader.disk_migrations:
        return ""
    return f"{label}.{last.name}"
