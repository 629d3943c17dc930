"""Determine from an error's SQLSTATE whose fault it is, and whether retrying helps."""

from __future__ import annotations

import dis
import enum
import functools
import os
import re
import signal
import threading
from asyncio import CancelledError
from types import TracebackType

import psycopg
from django.apps import apps
from django.db import DatabaseError

from pgembed_django.core.adapting import doubled
from pgembed_django.core.threads import OurThread

# SQLSTATEs. The first two mean that the session was ended, so the connection is lost.
IDLE_TIMEOUT = "25P03"
TRANSACTION_TIMEOUT = "25P04"
TOO_MANY_CONNECTIONS = "53300"
LIMIT_EXCEEDED = "53400"
READ_ONLY = "25006"
CANCELED = "57014"
LOCK_NOT_AVAILABLE = "55P03"
DEADLOCK_DETECTED = "40P01"
SERIALIZATION_FAILURE = "40001"
UNIQUE_VIOLATION = "23505"
NOT_NULL_VIOLATION = "23502"
"""What is written fills all columns that are declared: the table must have another."""
INTERNAL_ERROR = "XX000"
UNKNOWN_STATEMENT = "26000"
"""The prepared statements of the session are gone: ``DEALLOCATE ALL``, ``DISCARD ALL``."""
KEPT_PLAN_CHECK = "RevalidateCachedQuery"
"""The server function that rejects a prepared statement after its column types have changed."""

# What a statement meets where a table, an index or a type is exchanged under it. The server does
# not translate these messages.
FORMER_TYPE = re.compile(r"cache lookup failed for type ")
EXCHANGED = re.compile(
    r"cache lookup failed for |could not open relation with OID |tuple concurrently "
    r"|relation \d+ deleted while still in use"
)

# A table's name is only in the server's message, which may be in any language. So quoted names are
# taken as they are, and every other word is tried as a name.
NAME = re.compile(r'"([^"]+)"|([\w.$]+)')
UNDEFINED_COLUMN = "42703"
OUR_FUNCTION = re.compile(r"pgembed_\w+_v\d+")

FIRST_OUTAGE_SECONDS = 0.5
MAX_OUTAGE_SECONDS = 30.0


PANICS = "pyo3_runtime"
"""The module of the exception that a panic in Rust raises. Tokenizers are written in Rust."""

BY_CODE = (SystemExit, GeneratorExit, CancelledError)
"""Exceptions that functions written in C raise for the code that calls them: ``sys.exit``."""

MAX_MESSAGE_CHARACTERS = 10_000


class Unreadable(Exception):
    """A row cannot be read: the code of its model or fields failed. Has the original message."""


class ManagerFailed(DatabaseError):
    """A model's base manager, which is a project's own, raised something: no row can be read."""


class Harmed(DatabaseError):
    """The code of one of the rows has ended our transaction. Try fewer rows."""


class Fault(enum.Enum):
    """Whose fault an error is."""

    TOO_SLOW = enum.auto()
    """A statement or transaction timed out, or was canceled by hand. Try fewer rows."""
    OUTAGE = enum.auto()
    """The connection is lost, or the server has a problem. Try again later."""
    PASSING = enum.auto()
    """Something else that is done to the database got in the way. Try the same again later."""
    SCHEMA = enum.auto()
    """A spec's table is not as expected, or this role or the model's manager refuses it."""
    OURS = enum.auto()
    """Likewise for one of our own tables: the worker cannot work on any spec."""
    VALUE = enum.auto()
    """A value is damaged, or the rows are too large in total. Try fewer rows."""
    OTHER = enum.auto()
    """Probably the fault of one row."""


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception in user code was thrown into it, and is no row's fault.

    True for what the handler of a signal raises, such as Celery's soft time limit, and for what is
    no ``Exception`` and was not raised by the code, such as Ctrl-C and Dramatiq's time limit.
    Its class may be a project's own, whose attributes raise: none is asked for in the usual way.
    """
    if isinstance(threading.current_thread(), OurThread):
        return False  # nobody else knows this thread
    trace = []
    entry: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    while entry is not None:
        trace.append((entry.tb_frame.f_code, entry.tb_lasti))
        entry = entry.tb_next
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(one, "__func__", one), "__code__", None) for one in handlers}
    if any(code in codes for code, _ in trace):
        return True
    kind = type(error)
    if issubclass(kind, (Exception, *BY_CODE)):
        return False
    if type.__getattribute__(kind, "__module__") == PANICS:
        return False
    # A statement of the code: what is thrown into it comes between two, or in a call.
    code, at = trace[-1]
    return dis.opname[code.co_code[at]] != "RAISE_VARARGS"


def is_at_a_limit(error: BaseException) -> bool:
    """Return whether this process can open no file or start no thread, so other rows fail too."""
    try:
        if issubclass(type(error), OSError):
            os.close(os.open(os.devnull, os.O_RDONLY))
        elif type(error) is RuntimeError:
            OurThread(target=int, daemon=True).start()
    except (OSError, RuntimeError):
        return True
    return False


def described(error: BaseException) -> str:
    """Return an exception's class and message, which is bounded."""
    said = message(error)
    if said is None:
        said = "its message cannot be read"
    return f"{name(error)}: {said}" if said else name(error)


def name(error: BaseException) -> str:
    """Return the name of an exception's class, whose metaclass may be a project's own."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def message(error: BaseException) -> str | None:
    """Return an exception's message, bounded. None: its class is a project's own, and raises."""
    try:
        # Not a slice of it: str() may return a subclass of str.
        return str.__getitem__(str(error), slice(MAX_MESSAGE_CHARACTERS))
    except BaseException as another:
        if is_interruption(another):
            raise
        return None


def of(error: BaseException) -> Fault:
    """Return whose fault a database error is.

    A transaction time-out also ends the session, but counts as ``TOO_SLOW``, not ``OUTAGE``.
    """
    state = sqlstate(error)
    if state in {CANCELED, LOCK_NOT_AVAILABLE, TRANSACTION_TIMEOUT}:
        return Fault.TOO_SLOW
    if is_lost_connection(error) or is_of_the_server(error):
        return Fault.OUTAGE
    # Rollbacks, objects in use or not in the state that is needed, operators at work.
    is_exchanged = state == INTERNAL_ERROR and EXCHANGED.match(str(error))
    if state.startswith(("40", "55", "57")) or is_exchanged:
        return Fault.PASSING
    if isinstance(error, ManagerFailed):
        return Fault.SCHEMA
    if state.startswith(("3F", "42")) or state == NOT_NULL_VIOLATION:
        return Fault.OURS if _is_about_ours(error) else Fault.SCHEMA
    if state.startswith(("22", "XX")) or state == LIMIT_EXCEEDED or isinstance(error, Harmed):
        return Fault.VALUE
    return Fault.OTHER


def may_pass(error: Exception) -> bool:
    """Return whether the next try may succeed, with fewer rows.

    These were too slow or large, or one is damaged, or something else got in the way.
    """
    return of(error) in {Fault.TOO_SLOW, Fault.PASSING, Fault.VALUE}


def is_nobodys(error: Exception) -> bool:
    """Return whether an error over a single row is not that row's fault.

    Something else got in the way, or rows are there that its plan does not know of.
    """
    return of(error) is Fault.PASSING or sqlstate(error) == UNIQUE_VIOLATION


def is_in_the_way(error: BaseException) -> bool:
    """Return whether others on the database got in the way of a statement."""
    return of(error) is Fault.PASSING or sqlstate(error) == LOCK_NOT_AVAILABLE


def is_of_the_server(error: BaseException) -> bool:
    """Return whether the server as a whole has a problem, so that other rows would fail too.

    Its disk or memory is full or failing, or it is read-only for a while.
    """
    return has_no_room(error) or sqlstate(error) == READ_ONLY


def has_no_room(error: BaseException) -> bool:
    """Return whether the server's disk or memory is full or failing."""
    state = sqlstate(error)
    return state.startswith(("53", "58")) and state != LIMIT_EXCEEDED


def is_lost_connection(error: BaseException) -> bool:
    """Return whether the connection is lost, rather than one statement refused.

    It also counts as lost if a statement prepared in it is gone, or would now return columns of
    other types, or if a type that it looked up was created anew: only a new connection helps.
    """
    state, cause = sqlstate(error), error.__cause__
    if state in {IDLE_TIMEOUT, TRANSACTION_TIMEOUT, TOO_MANY_CONNECTIONS, UNKNOWN_STATEMENT}:
        return True
    if state == INTERNAL_ERROR:
        return FORMER_TYPE.match(str(error)) is not None
    if isinstance(cause, psycopg.NotSupportedError):
        return cause.diag.source_function == KEPT_PLAN_CHECK
    # Connection errors, and errors that end connections. 57014 only cancels a statement.
    return isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and (
        not state or state.startswith(("08", "57P"))
    )


def said(error: BaseException) -> str:
    """Return the server's message, without the lines that show the statement."""
    return str(error).partition("\n")[0]


def longer(seconds: float) -> float:
    """Return the next wait for a server that is down: twice the last one, which may be zero."""
    return doubled(seconds, first=FIRST_OUTAGE_SECONDS, most=MAX_OUTAGE_SECONDS)


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of the driver's error that Django wrapped. Empty: none."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def _is_about_ours(error: BaseException) -> bool:
    """Return whether an error is about one of our tables or functions, not one named similarly."""
    for quoted, word in NAME.findall(said(error)):
        before, _, last = (quoted or word).rpartition(".")
        # In "column app_note.body", the table comes before the dot. Elsewhere it comes last.
        is_column = sqlstate(error) == UNDEFINED_COLUMN and before
        name = before.rpartition(".")[2] if is_column else last
        if name in _our_tables() or OUR_FUNCTION.fullmatch(name):
            return True
    return False


@functools.cache
def _our_tables() -> frozenset[str]:
    return frozenset(model._meta.db_table for model in apps.get_app_config("pgembed").get_models())
