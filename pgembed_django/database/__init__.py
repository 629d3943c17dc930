"""Run our statements, in transactions that give way to the application's.

``rows`` and ``execute`` run one statement. For statements that a worker repeats all day there are
``prepared`` and ``by_kept_plan``. ``send`` does not wait for the answer: with
``giving_way(pipelined=True)`` a whole transaction takes few round trips.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg.adapt import PyFormat

from pgembed_django import faults
from pgembed_django.database import interrupting, pipelining

# Far below deadlock_timeout (1 s by default), so that we give up, and never the writer.
GIVE_WAY = "SELECT set_config('lock_timeout', %(wait)s, true)"

NAMED = re.compile(r"%%|%\((\w+)\)s")

SETTING = "SELECT current_setting(%(name)s)"
SET = "SELECT set_config(%(name)s, %(value)s, true)"

# A kept plan is generic, and the tables may have grown a thousandfold since it was made. So such
# statements must find their rows by an index at any size: sequential scans and sorts are made
# too expensive. JIT is off, as the cost of a generic plan is a guess.
KEPT_PLANS = """
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true),
    set_config('enable_sort', 'off', true),
    set_config('jit', 'off', true)
"""
BY_KEPT_PLANS = f"SELECT {KEPT_PLANS}"
GIVE_WAY_BY_KEPT_PLANS = f"{GIVE_WAY}, {KEPT_PLANS}"
WITHOUT_FLUSH_BY_KEPT_PLANS = f"SELECT set_config('synchronous_commit', 'off', true), {KEPT_PLANS}"

ONE_AT_A_TIME: list[Any] = []
"""Execute wrappers that are known never to turn one statement into two."""

# The last can happen only outside READ COMMITTED, which is what workers use.
BUSY = {faults.LOCK_NOT_AVAILABLE, faults.DEADLOCK_DETECTED, faults.SERIALIZATION_FAILURE}

BRIEFLY = "10ms"
"""How long to wait for a lock if the work can just as well be done later."""

SHORTLY = "100ms"
"""How long to wait for a lock everywhere else."""

Row = tuple[Any, ...]
T = TypeVar("T")
Read = Callable[[], T]
"""Reads the answer to a statement that was sent already."""


class Busy(Exception):
    """Another transaction holds a lock that we need, or has just changed the row. Try again."""


def rows(using: str, statement: str, **parameters: Any) -> list[Row]:
    """Run a statement and return its rows."""
    with connections[using].cursor() as cursor:
        run(cursor, statement, parameters or None)
        if connections[using].connection.pgconn.pipeline_status:
            pipelining.synchronize(connections[using])
        found: list[Row] = cursor.fetchall()
        return found


def run(cursor: Any, statement: str, parameters: Mapping[str, Any] | None) -> None:
    """Run a statement on Django's cursor, with parameters by name.

    An execute wrapper, like that of ``pgtrigger.ignore``, may put a statement of its own in
    front, with positional parameters. The two kinds cannot be mixed, so ours become positional.
    """
    given: Any = parameters
    if parameters and cursor.db.execute_wrappers:
        given = [parameters[name] for name in NAMED.findall(statement) if name]
        statement = NAMED.sub(lambda found: "%s" if found[1] else "%%", statement)
    cursor.execute(statement, given)


def prepared(using: str, statement: str, **parameters: Any) -> list[Row]:
    """Run a statement that a worker sends all day, and return its rows.

    In a worker's direct session (``queue.sessions``) the server binds the parameters and
    parses the statement once. Elsewhere, and where statements are logged, it is like ``rows``.
    """
    return send_prepared(using, statement, **parameters)()


def by_kept_plan(using: str, statement: str, *, flush: bool = True, **parameters: Any) -> list[Row]:
    """Run a statement like ``prepared``. A worker's direct session keeps its plan as well.

    Its plan must be good at any size of its tables: see ``KEPT_PLANS``. Without ``flush``, a
    worker's commit does not wait for the disk: a crash of the server may undo it.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    if not _keeps_plans(wrapper):
        return prepared(using, statement, **parameters)
    with wrapper.wrap_database_errors, wrapper.connection.pipeline():
        # One round trip, and one transaction.
        send(using, BY_KEPT_PLANS if flush else WITHOUT_FLUSH_BY_KEPT_PLANS)
        read = send(using, statement, **parameters)
    return read()


def keep_plans(using: str) -> None:
    """Keep the plans of all later statements in a worker's ``giving_way(pipelined=True)``."""
    if _keeps_plans(connections[using]):
        send(using, BY_KEPT_PLANS)


def send_prepared(using: str, statement: str, **parameters: Any) -> Read[list[Row]]:
    """Send a statement like ``prepared``, and return what reads its rows: see ``send``."""
    wrapper = connections[using]
    wrapper.ensure_connection()
    if _prepares(wrapper):
        return send(using, statement, **parameters)
    found = rows(using, statement, **parameters)
    return lambda: found


def send(using: str, statement: str, **parameters: Any) -> Read[list[Row]]:
    """Send a statement whose parameters the server binds, and return what reads its rows.

    In ``giving_way(pipelined=True)`` it goes out with the next statement whose answer is waited
    for. Its error is raised there, or at the end of the transaction. Its rows can still be read
    after that.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    with wrapper.wrap_database_errors:
        cursor = psycopg.Cursor(wrapper.connection)
        cursor.execute(statement, parameters)

    def read() -> list[Row]:
        with wrapper.wrap_database_errors:
            if cursor.pgresult is None:
                pipelining.synchronize(wrapper)
            return cursor.fetchall()

    return read


def is_lost(using: str) -> bool:
    """Return whether the connection is closed or lost."""
    connection = connections[using].connection
    return connection is None or connection.closed


def learn_vectors(using: str) -> None:
    """Let a connection send vectors in binary. The type is looked up once per connection."""
    wrapper = connections[using]
    wrapper.ensure_connection()
    # The connection may be lost during the look-up.
    with wrapper.wrap_database_errors:
        try:
            wrapper.connection.adapters.get_dumper(Vector, PyFormat.BINARY)
        except psycopg.ProgrammingError:
            register_vector(wrapper.connection)


def execute(using: str, statement: str, **parameters: Any) -> int:
    """Run a statement and return how many rows it touched."""
    with connections[using].cursor() as cursor:
        run(cursor, statement, parameters or None)
        return int(cursor.rowcount)


@contextmanager
def giving_way(
    using: str, *, wait: str = SHORTLY, pipelined: bool = False, keep_plans: bool = False
) -> Iterator[None]:
    """Run a transaction that waits for a lock no longer than ``wait``, then raises ``Busy``.

    ``pipelined``: in psycopg's pipeline mode, where ``send`` does not wait for the answer. If a
    transaction is open already, or statements are wrapped, it is like any other.
    ``keep_plans``: keep the plans of all statements in it, as ``by_kept_plan`` does.
    """
    try:
        with (
            interrupting.letting_through(using),
            _pipelined(using) if pipelined else transaction.atomic(using=using),
            restoring("lock_timeout", using=using),
        ):
            keeps = keep_plans and _keeps_plans(connections[using])
            send_prepared(using, GIVE_WAY_BY_KEPT_PLANS if keeps else GIVE_WAY, wait=wait)
            yield
    except OperationalError as error:
        if faults.sqlstate(error) in BUSY:
            raise Busy from error
        raise


@contextmanager
def restoring(setting: str, *, using: str) -> Iterator[None]:
    """Restore a setting at the end, if our transaction is part of the caller's.

    If ours fails, the rollback to its savepoint restores it.
    """
    if not connections[using].savepoint_ids:
        yield
        return
    [[before]] = rows(using, SETTING, name=setting)
    yield
    if not connections[using].needs_rollback:
        rows(using, SET, name=setting, value=before)


@contextmanager
def _pipelined(using: str) -> Iterator[None]:
    wrapper = connections[using]
    wrapper.ensure_connection()
    if not _pipelines(wrapper):
        with transaction.atomic(using=using):
            yield
        return
    # Before the transaction begins: psycopg's look-up of a type would commit it.
    learn_vectors(using)
    with pipelining.pipelined(wrapper):
        yield


def _prepares(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether this is a worker's direct session whose statements Django does not log."""
    return wrapper.connection.prepare_threshold is not None and not wrapper.queries_logged


def _pipelines(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction of our own may be pipelined.

    An execute wrapper may put a statement of its own in front of ours, and a pipeline takes only
    one statement at a time.
    """
    is_wrapped = any(one not in ONE_AT_A_TIME for one in wrapper.execute_wrappers)
    return not (wrapper.in_atomic_block or is_wrapped) and psycopg.Pipeline.is_supported()


def _keeps_plans(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether plans may be kept: statements stay prepared, and the transaction is ours."""
    return _prepares(wrapper) and _pipelines(wrapper)
