"""Run our statements, in transactions that give way to the application's.

``rows`` and ``execute`` run one statement. For statements that a worker repeats all day there are
``prepared`` and ``by_kept_plan``. ``send`` does not wait for the answer: with
``giving_way(pipelined=True)`` a whole transaction takes few round trips.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import (
    DatabaseError,
    Error,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg import generators
from psycopg.adapt import PyFormat
from psycopg.pq import TransactionStatus

from pgembed_django.core import faults

# Far below deadlock_timeout (1 s by default), so that we give up, and never the writer.
GIVE_WAY = "SELECT set_config('lock_timeout', %(wait)s, true)"

NAMED = re.compile(r"%%|%\((\w+)\)s")

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

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
WITHOUT_FLUSH = "set_config('synchronous_commit', 'off', true)"
WITHOUT_FLUSH_BY_KEPT_PLANS = f"SELECT {WITHOUT_FLUSH}, {KEPT_PLANS}"

ONE_AT_A_TIME: list[Any] = []
"""Execute wrappers that are known never to turn one statement into two."""

# The last can happen only outside READ COMMITTED, which is what workers use.
BUSY = {faults.LOCK_NOT_AVAILABLE, faults.DEADLOCK_DETECTED, faults.SERIALIZATION_FAILURE}

BRIEFLY = "10ms"
"""How long to wait for a lock if the work can just as well be done later."""

SHORTLY = "100ms"
"""How long to wait for a lock everywhere else."""

OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)

Row = tuple[Any, ...]
T = TypeVar("T")
R = TypeVar("R")
Read = Callable[[], T]
"""Reads the answer to a statement that was sent already."""

_open_pipelines: WeakKeyDictionary[psycopg.Connection[Any], psycopg.Pipeline] = WeakKeyDictionary()


class Busy(Exception):
    """Another transaction holds a lock that we need, or has just changed the row. Try again."""


def rows(using: str, statement: str, **parameters: Any) -> list[Row]:
    """Run a statement and return its rows."""
    with connections[using].cursor() as cursor:
        run(cursor, statement, parameters or None)
        if connections[using].connection.pgconn.pipeline_status:
            synchronize(connections[using])
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
                synchronize(wrapper)
            return cursor.fetchall()

    return read


def delete(rows: QuerySet[Any]) -> int:
    """Delete rows without signals: an error in a receiver would end the worker."""
    return int(rows._raw_delete(rows.db) or 0)  # noqa: SLF001 - documented as for this


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
    using: str,
    *,
    wait: str = SHORTLY,
    pipelined: bool = False,
    keep_plans: bool = False,
    flush: bool = True,
) -> Iterator[None]:
    """Run a transaction that waits for a lock no longer than ``wait``, then raises ``Busy``.

    ``pipelined``: in psycopg's pipeline mode, where ``send`` does not wait for the answer. If a
    transaction is open already, or statements are wrapped, it is like any other.
    ``keep_plans``: keep the plans of all statements in it, as ``by_kept_plan`` does. Without
    ``flush``, such a commit does not wait for the disk.
    """
    try:
        with (
            letting_through(using),
            _pipelined(using) if pipelined else transaction.atomic(using=using),
            restoring("lock_timeout", using=using),
        ):
            keeps = keep_plans and _keeps_plans(connections[using])
            send_prepared(using, GIVE_WAY_BY_KEPT_PLANS if keeps else GIVE_WAY, wait=wait)
            if keeps and not flush:
                send(using, f"SELECT {WITHOUT_FLUSH}")
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
    with _in_pipeline(wrapper):
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


@contextmanager
def _in_pipeline(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Begin, run and commit in a pipeline. Django's ``atomic`` would wait for each answer."""
    connection = wrapper.connection
    with wrapper.wrap_database_errors:
        try:
            with connection.pipeline() as pipeline:
                _open_pipelines[connection] = pipeline
                cursor = psycopg.Cursor(connection)
                with _quiet_after_errors(pipeline):
                    cursor.execute(BEGIN)
                    yield
                    cursor.execute("COMMIT")
        finally:
            _open_pipelines.pop(connection, None)
            if connection.info.transaction_status in OPEN:
                connection.rollback()


@contextmanager
def _quiet_after_errors(pipeline: psycopg.Pipeline) -> Iterator[None]:
    """After an error, fetch the answers of the statements that were sent with the one that failed.

    Otherwise psycopg does so at the pipeline's end, and warns of them in its log: "error ignored".
    """
    try:
        yield
    except (Error, psycopg.Error):
        with suppress(psycopg.Error):
            pipeline.sync()
        raise


def synchronize(wrapper: BaseDatabaseWrapper) -> None:
    """Send a Sync after the statements so far, before anything waits for their answers.

    psycopg would send a Flush. After that Postgres expects more statements, and the session counts
    as active, not as idle in transaction. So ``idle_in_transaction_session_timeout`` would not end
    a session whose worker is frozen there, or whose host is gone, and its locks would stay.
    """
    connection = wrapper.connection
    if (pipeline := _open_pipelines.get(connection)) is not None:
        with wrapper.wrap_database_errors:
            # Send everything first: sync() would wait for answers as soon as the socket has taken
            # a part of it, while the server waits for the rest of a long text.
            connection.wait(generators.send(connection.pgconn))
            pipeline.sync()


def is_halfway(using: str) -> bool:
    """Return whether the connection was left in the middle of a statement or transaction.

    It takes no other statement until the first has ended, and nobody ends the transaction.
    """
    wrapper = connections[using]
    if wrapper.connection is None:
        return False
    status = wrapper.connection.info.transaction_status
    return status is TransactionStatus.ACTIVE or (status in OPEN and not wrapper.in_atomic_block)


@contextmanager
def letting_through(using: str) -> Iterator[None]:
    """Raise what interrupted a commit, not the error that hides it.

    What ends the transaction after that fails, as the connection is still in the middle of it.
    That error would be taken for an outage, and be waited out.
    """
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        raise_what_is_behind(error, using=using)
        raise


def raise_what_is_behind(error: BaseException, *, using: str) -> None:
    """Raise what interrupted the connection and is hidden by the error, if anything."""
    behind = error.__context__
    while isinstance(behind, (DatabaseError, InterfaceError, psycopg.Error)):
        behind = behind.__context__
    if behind is not None and is_halfway(using):
        raise behind from None


def read_each(queries: Sequence[QuerySet[Any, R]], *, using: str, wait: str = SHORTLY) -> list[R]:
    """Return the rows of all queries, except those whose table is locked now.

    The statement holds one table while it waits for the next: a deadlock with a migration or a
    TRUNCATE that locks them in another order. So it gives way, and then each query runs alone,
    and gives way as well: in a caller's transaction the tables read so far stay locked.
    """
    if not queries:
        return []
    rows = queries[0].union(*queries[1:], all=True) if len(queries) > 1 else queries[0]
    try:
        with giving_way(using, wait=wait):
            return list(rows.order_by())  # the first model's own would be the union's
    except Busy:
        alone = [[query] for query in queries] if len(queries) > 1 else []
        briefly = partial(read_each, using=using, wait=BRIEFLY)
        return [*chain.from_iterable(map(briefly, alone))]


def array(values: Iterable[int | str]) -> str:
    """Return an array literal of numbers, or of times as Postgres prints them.

    psycopg would adapt each element of a list.
    """
    return "{" + ",".join([f'"{value}"' for value in values]) + "}"
