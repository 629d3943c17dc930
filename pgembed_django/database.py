"""Run our statements: named parameters, and transactions that give way to the application's."""

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

from pgembed_django import faults, together

# Well under deadlock_timeout (1 s by default), so that we lose, never the writer.
GIVE_WAY = "SELECT set_config('lock_timeout', %(wait)s, true)"

NAMED = re.compile(r"(?<!%)%\((\w+)\)s")

SETTING = "SELECT current_setting(%(name)s)"
SET = "SELECT set_config(%(name)s, %(value)s, true)"

# A plan that is kept is a generic one, and the tables may have grown a thousandfold since. So what
# is sent with it has to find its rows by an index at any size. Sequential scans and sorts are
# priced out; JIT is off, as the cost of a generic plan is a guess.
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
"""What wraps statements of a connection, and never makes two of one."""

# The last only where a transaction is not READ COMMITTED, as those of workers are.
BUSY = {faults.LOCK_NOT_AVAILABLE, faults.DEADLOCK_DETECTED, faults.SERIALIZATION_FAILURE}

BRIEFLY = "10ms"
"""The ``wait`` of what can as well be done later."""

SHORTLY = "100ms"
"""That of all else."""

Row = tuple[Any, ...]
T = TypeVar("T")
Read = Callable[[], T]
"""Reads the answer to what was sent already."""


class Busy(Exception):
    """Another transaction holds what we need, or has just changed it. To be tried again."""


def rows(using: str, statement: str, **parameters: Any) -> list[Row]:
    """Run a statement and return its rows."""
    with connections[using].cursor() as cursor:
        run(cursor, statement, parameters or None)
        together.synchronize(connections[using])
        found: list[Row] = cursor.fetchall()
        return found


def run(cursor: Any, statement: str, parameters: Mapping[str, Any] | None) -> None:
    """Run a statement on Django's cursor, with parameters by name.

    What wraps all statements of a connection, as ``pgtrigger.ignore`` does, may put one of its
    own in front, with parameters in order. Both kinds cannot be mixed: then ours have an order.
    """
    given: Any = parameters
    if parameters and cursor.db.execute_wrappers:
        given = [parameters[name] for name in NAMED.findall(statement)]
        statement = NAMED.sub("%s", statement)
    cursor.execute(statement, given)


def prepared(using: str, statement: str, **parameters: Any) -> list[Row]:
    """Run a statement that a worker sends all day, and return its rows.

    In a worker's direct session (``worker.configuring``) the server binds the parameters and
    parses the statement once. Elsewhere, and where statements are logged, it is like ``rows``.
    """
    return send_prepared(using, statement, **parameters)()


def by_kept_plan(using: str, statement: str, *, flush: bool = True, **parameters: Any) -> list[Row]:
    """Run a statement like ``prepared``. A worker's direct session keeps its plan as well.

    It has to be planned well at any size of its tables: see ``KEPT_PLANS``. Without ``flush``,
    a worker does not wait for the disk (an asynchronous commit): a crash of the server may
    take the effect back.
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
    """Let a worker's session keep the plans of what follows in ``giving_way(in_one_go=True)``."""
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

    In ``giving_way(in_one_go=True)`` it travels together with the next statement that is
    waited for. What is wrong with it is raised there, or at the end, after which its rows
    can still be read.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    with wrapper.wrap_database_errors:
        cursor = psycopg.Cursor(wrapper.connection)
        cursor.execute(statement, parameters)

    def read() -> list[Row]:
        with wrapper.wrap_database_errors:
            if cursor.pgresult is None:
                together.synchronize(wrapper)
            return cursor.fetchall()

    return read


def is_lost(using: str) -> bool:
    """Tell whether the connection that we had is gone."""
    connection = connections[using].connection
    return connection is None or connection.closed


def learn_vectors(using: str) -> None:
    """Let a connection send vectors as binary. Their type is looked up once."""
    wrapper = connections[using]
    wrapper.ensure_connection()
    # The connection may be lost while it is looked up, too.
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
    using: str, *, wait: str = SHORTLY, in_one_go: bool = False, keep_plans: bool = False
) -> Iterator[None]:
    """Run a transaction that waits for no writer: raises ``Busy`` instead.

    ``in_one_go``: statements without rows to fetch travel together with the next that has
    some. What is wrong with them is raised there, or at the end.

    ``keep_plans``: of all that is sent, as in ``by_kept_plan``.
    """
    try:
        with (
            _in_one_go(using) if in_one_go else transaction.atomic(using=using),
            leaving_its("lock_timeout", using=using),
        ):
            keeps = keep_plans and _keeps_plans(connections[using])
            send_prepared(using, GIVE_WAY_BY_KEPT_PLANS if keeps else GIVE_WAY, wait=wait)
            yield
    except OperationalError as error:
        if faults.sqlstate(error) in BUSY:
            raise Busy from error
        raise


@contextmanager
def leaving_its(setting: str, *, using: str) -> Iterator[None]:
    """Where ours is a part of somebody's transaction, leave the rest of that its own setting.

    Where ours fails, going back to its savepoint does so.
    """
    if not connections[using].savepoint_ids:
        yield
        return
    [[before]] = rows(using, SETTING, name=setting)
    yield
    if not connections[using].needs_rollback:
        rows(using, SET, name=setting, value=before)


@contextmanager
def _in_one_go(using: str) -> Iterator[None]:
    wrapper = connections[using]
    wrapper.ensure_connection()
    if not _pipelines(wrapper):
        with transaction.atomic(using=using):
            yield
        return
    # Before it begins: psycopg looks types up in a transaction, whose COMMIT would end this one.
    learn_vectors(using)
    with together.sent_together(wrapper):
        yield


def _prepares(wrapper: BaseDatabaseWrapper) -> bool:
    """Tell whether it is a worker's direct session, whose statements nobody logs."""
    return wrapper.connection.prepare_threshold is not None and not wrapper.queries_logged


def _pipelines(wrapper: BaseDatabaseWrapper) -> bool:
    """Tell whether a transaction of our own may be sent in one go.

    What wraps statements may put one of its own in front, and a pipeline takes one at a time.
    """
    is_wrapped = any(one not in ONE_AT_A_TIME for one in wrapper.execute_wrappers)
    return not (wrapper.in_atomic_block or is_wrapped) and psycopg.Pipeline.is_supported()


def _keeps_plans(wrapper: BaseDatabaseWrapper) -> bool:
    """Tell whether a plan may be kept: what is prepared outlives the transaction, our own."""
    return _prepares(wrapper) and _pipelines(wrapper)
