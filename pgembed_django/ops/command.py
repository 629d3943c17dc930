"""The base class of the ``embed_…`` commands. It checks the chosen specs, database and role."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterable

from django.core.management.base import CommandError, CommandParser
from django.db import (
    DEFAULT_DB_ALIAS,
    OperationalError,
    ProgrammingError,
    connections,
)

from pgembed_django import conf, database, postgres, specs
from pgembed_django.exceptions import did_you_mean
from pgembed_django.ops.deploying import newer_migration
from pgembed_django.ops.stoppable import CANNOT_START, StoppableCommand

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
                    f"{key} is not in the database {using!r}: a router keeps it elsewhere. Say "
                    "where with --database.",
                    returncode=CANNOT_START,
                )
        if not here:
            raise CommandError(
                f"No embeddable model is in the database {using!r}: routers keep them elsewhere. "
                "Say where with --database.",
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
                "Run it as one that sees all: ALTER ROLE … BYPASSRLS.",
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
                f"The database {alias!r} is read-only: a replica? Name the one that is written to "
                "with --database.",
                returncode=CANNOT_START,
            )
        return alias


def migrate(alias: str) -> str:
    """Return the command that migrates a database."""
    option = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
    return f"manage.py migrate{option}"


def whole(value: object) -> int:
    """Parse a whole number of one or more."""
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of one or more")
    return int(text)


def seconds(value: object) -> float:
    """Parse a number of seconds above zero."""
    parsed = _number(value, "a number of seconds above zero")
    if parsed > threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{value!r} is more seconds than can be waited for")
    return parsed


def above_zero(value: object) -> float:
    """Parse a number above zero."""
    return _number(value, "a number above zero")


def _number(value: object, what: str) -> float:
    try:
        parsed = float(str(value))
    except ValueError:
        parsed = -1.0
    if not 0 < parsed < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is not {what}")
    return parsed
