"""The base classes of the ``embed_…`` commands.

They check the chosen specs, database and role, and let a command end without a traceback after
Ctrl-C, a closed pipe or a refusal by Postgres.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from operator import attrgetter
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

from pgembed_django import conf, database, faults, postgres, specs
from pgembed_django.exceptions import did_you_mean
from pgembed_django.faults import Fault

CANNOT_START = 2
"""The exit status of a command with wrong options, or without its database."""

INTERRUPTED = 130
"""The exit status of a command that was stopped by Ctrl-C, as in a shell."""

UNREAD = 141
"""The exit status of a command whose output pipe was closed, as in a shell."""

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
    SELECT current_user, name
    FROM unnest(%(names)s::text[]) AS wanted(name)
    WHERE row_security_active(to_regclass(name)::oid)
    ORDER BY name
"""


class StoppableCommand(BaseCommand):
    """A command that may be stopped by Ctrl-C, or whose output may be cut off by ``| head``."""

    stopped = "Stopped."
    """The message after Ctrl-C."""
    is_a_program = False
    """Whether it was run by ``manage.py``, rather than by ``call_command``."""

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from the command line. A failure's exit status wins over that of a closed pipe."""
        status: int | str | None = None
        self.is_a_program = True
        try:
            super().run_from_argv(argv)
        except BrokenPipeError:
            status = UNREAD
        except SystemExit as ended:
            status = ended.code
        try:
            self.stdout.flush()
        except BrokenPipeError:
            # At exit Python would write what is still buffered, and fail with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = status or UNREAD
        if status:
            sys.exit(status)

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
            return super().execute(*args, **self._parsed(options))
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
            refusal = refused(error)
            if refusal is None:
                raise
            raise refusal from error

    def _parsed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Parse the options that ``call_command`` was given, which it passes on as they are."""
        parsed = dict(options)
        for action in self.create_parser("manage.py", "")._actions:  # noqa: SLF001 - as Django does
            given = options.get(action.dest)
            if given is None or action.nargs == 0:
                continue
            if action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction):  # noqa: SLF001
                several = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
                parsed[action.dest] = [_parsed(action, one) for one in several]
            else:
                parsed[action.dest] = _parsed(action, given)
        return parsed


def _parsed(action: argparse.Action, given: Any) -> Any:
    """Parse one value. Parsers return what they have parsed already unchanged."""
    parse: Any = action.type or str
    name = action.option_strings[-1] if action.option_strings else action.dest
    try:
        parsed = parse(given)
    except (argparse.ArgumentTypeError, OverflowError, TypeError, ValueError) as error:
        said = str(error).removesuffix(".")
        raise CommandError(f"{name}: {said}.", returncode=CANNOT_START) from error
    if action.choices and parsed not in action.choices:
        choices = ", ".join(map(str, action.choices))
        raise CommandError(f"{name} is {given!r}. Choose: {choices}.", returncode=CANNOT_START)
    return parsed


def refused(error: BaseException | None) -> CommandError | None:
    """Return the message for a missing privilege, table or column, else None."""
    if not isinstance(error, ProgrammingError):
        return None
    if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
        return CommandError(
            f"The database role lacks a privilege: {faults.said(error)}. See "
            "'Roles with few rights' in the documentation.",
            returncode=CANNOT_START,
        )
    if faults.of(error) is Fault.OURS:
        return CommandError(
            f"A table or function of pgembed does not match this code: {faults.said(error)}. "
            "Run manage.py migrate with this code, or start it with the code that was migrated."
        )
    if isinstance(error.__cause__, NOT_AS_DECLARED):
        return CommandError(
            f"A table does not match this code: {faults.said(error)}. "
            "Run manage.py makemigrations and migrate, or start it with the code that was migrated."
        )
    return None


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

    def chosen_specs(self, keys: list[str] | None, *, using: str) -> dict[str, specs.Spec]:
        """Return the chosen specs by key. By default all that are in the database."""
        known = {spec.key: spec for spec in specs.all()}
        if not known:
            raise CommandError(
                "No model is embeddable. Decorate one with @embeddable(fields=[...]), then run "
                "makemigrations and migrate.",
                returncode=CANNOT_START,
            )
        here = {spec.key: spec for spec in specs.on(using)}
        for key in keys or ():
            if key not in known:
                raise CommandError(
                    f"No spec named {key!r}. {did_you_mean(key, known)}"
                    f"There are: {', '.join(known)}.",
                    returncode=CANNOT_START,
                )
            if key not in here:
                raise CommandError(
                    f"{key} is not in the database {using!r}: a router keeps it elsewhere. Name "
                    "its database with --database.",
                    returncode=CANNOT_START,
                )
        if not here:
            raise CommandError(
                f"No embeddable model is in the database {using!r}: routers keep them elsewhere. "
                "Name their database with --database.",
                returncode=CANNOT_START,
            )
        return {key: spec for key, spec in here.items() if not keys or key in keys}

    def refuse_hidden_rows(self, chosen: Iterable[specs.Spec], *, using: str) -> None:
        """Raise if row-level security hides rows from the role, which would then overlook gaps.

        A worker sets ``row_security = off``, so that its statements fail instead. A command does
        not, as the setting would stay in its caller's session.
        """
        models = [model for spec in chosen for model in (spec.model, spec.embedding_model)]
        names = [postgres.quoted_table(model) for model in models]
        if hidden := database.rows(using, HIDDEN, names=names):
            tables = ", ".join(name for _, name in hidden)
            raise CommandError(
                f"Row-level security hides rows of {tables} from the role {hidden[0][0]!r}. "
                "Use a role that sees all rows: ALTER ROLE … BYPASSRLS.",
                returncode=CANNOT_START,
            )

    def refuse_missing_tables(
        self, chosen: Iterable[specs.Spec], *, using: str
    ) -> dict[specs.Spec, str]:
        """Raise if a spec has no table because nobody has migrated yet.

        Returns the specs whose table newer code has renamed or dropped, each with its migration.
        """
        missing = specs.without_table(chosen, using=using)
        newer = {spec: newer_migration(spec, using=using) for spec in missing}
        for spec in missing:
            if not newer[spec]:
                raise CommandError(
                    f"The database {using!r} has no table for {spec}. "
                    f"Run manage.py makemigrations and {migrate(using)}.",
                    returncode=CANNOT_START,
                )
        return newer

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
            raise CommandError(
                f"{what}. {did_you_mean(alias, connections)}There are: {', '.join(connections)}.",
                returncode=CANNOT_START,
            )
        if other := postgres.not_postgres(alias, remedy="--database"):
            raise CommandError(other, returncode=CANNOT_START)
        if writes and not connections[alias].settings_dict["AUTOCOMMIT"]:
            raise CommandError(
                f"The database {alias!r} has AUTOCOMMIT off: nothing would be committed. Name an "
                "alias that has it on with --database.",
                returncode=CANNOT_START,
            )
        try:
            with connections[alias].cursor() as cursor:
                cursor.execute(STATE)
                [is_read_only, is_for_good, _] = cursor.fetchone()
        except OperationalError as error:
            raise CommandError(
                f"Cannot reach the database {alias!r}: {str(error).strip()}\n"
                "Is it running, and is DATABASES right?",
                returncode=CANNOT_START,
            ) from error
        except ProgrammingError as error:
            raise CommandError(
                f"The database {alias!r} has no job table. Run {migrate(alias)}.",
                returncode=CANNOT_START,
            ) from error
        if writes and is_read_only and (is_for_good or not waits):
            raise CommandError(
                f"The database {alias!r} is read-only: is it a replica? Name the writable one "
                "with --database.",
                returncode=CANNOT_START,
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
            applied = MigrationRecorder(connections[using]).applied_migrations().values()
    except ProgrammingError:
        return ""
    of_app = [one for one in applied if one.app == label]
    if not of_app:
        return ""
    last = max(of_app, key=attrgetter("pk")).name
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return "" if (label, last) in loader.disk_migrations else f"{label}.{last}"
