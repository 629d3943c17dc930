"""Let a command end without a traceback after Ctrl-C, a closed pipe or a refusal by Postgres."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError, SystemCheckError
from django.db import InterfaceError, OperationalError, ProgrammingError

from pgembed_django import faults
from pgembed_django.faults import Fault

CANNOT_START = 2
"""The exit status of a command with wrong options, or without its database."""

INTERRUPTED = 130
"""The exit status of a command that was stopped by Ctrl-C, as in a shell."""

UNREAD = 141
"""The exit status of a command whose output pipe was closed, as in a shell."""

NOT_AS_DECLARED = (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable)
"""What a statement fails with before its table is migrated. All else may be a mistake of ours."""


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
                f"The connection to the database is lost: {faults.said(error)}. What was done "
                "before is done: run it again."
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
            f"The role of this connection may not do that: {faults.said(error)}. What it needs "
            "is under 'Roles with few rights' in the documentation.",
            returncode=CANNOT_START,
        )
    if faults.of(error) is Fault.OURS:
        return CommandError(
            f"A table or function of pgembed is not as this code expects: {faults.said(error)}. "
            "Run manage.py migrate with this code, or start it with the code that was migrated."
        )
    if isinstance(error.__cause__, NOT_AS_DECLARED):
        return CommandError(
            f"A table is not as this code declares it: {faults.said(error)}. "
            "Run manage.py makemigrations and migrate, or start it with the code that was migrated."
        )
    return None
