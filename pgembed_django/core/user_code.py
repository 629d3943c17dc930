"""Call a project's own code: text methods, models, fields and chunkers.

Whatever it raises is the failure of its row alone. It uses our database connection. If it runs a
statement that changes the session, a rollback in a transaction of ours undoes it, or else a new
connection does.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.utils import timezone, translation
from psycopg import sql
from psycopg.pq import TransactionStatus

from pgembed_django.core import faults
from pgembed_django.core.faults import Fault

T = TypeVar("T")

# What a session keeps after the transaction. A row whose code does this fails, and the session is
# replaced.
CHANGES = re.compile(
    r"""
    (?: \A | ; ) \s*
    (?: SET \s+ (?! LOCAL \b | TRANSACTION \b | CONSTRAINTS \b )
      | (?: RESET | DISCARD | LISTEN | UNLISTEN | PREPARE | DEALLOCATE | LOAD ) \b
      | CREATE \s+ (?: LOCAL \s+ | GLOBAL \s+ )? TEMP
      | DECLARE \b .* \b WITH \s+ HOLD \b
    )
    | \bset_config \s* \( .* \bfalse\b
    | \bpg_(?: try_ )? advisory_(?: un )? lock
    | \bINTO \s+ TEMP
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
# What ends with the transaction that it is run in.
LOCAL = re.compile(
    r"\s* (?: SET\ LOCAL\b | SELECT\b .* \bset_config\b .* \btrue \s* \) ) (?! .* ; )",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)

MAX_LOSSES = 3
"""After so many lost connections in the code of one row, one after another, the row has failed."""

OPEN = (TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR)

LOST = "The database connection is lost whenever it runs."
LEFT_OPEN = "It left a transaction open. Use transaction.atomic()."
CHANGED = (
    "It ran a statement that may change the database session: {statement}. "
    "Use SET LOCAL in transaction.atomic(), or another connection."
)


class Failed(Exception):
    """A project's code has failed for a row. The message is for people."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass
        """Whether others on the database got in its way."""


class Call(NamedTuple):
    """The row for which a project's code is called."""

    spec: str
    source_pk: str


class Progress(NamedTuple):
    """When a thread began or ended its last call, by ``time.monotonic``."""

    since: float
    call: Call | None
    """The call that it is in."""


_progress: dict[int, Progress] = {}
_losses: Counter[Call] = Counter()
"""How often the connection was lost in the code of a row that has not ended otherwise since."""


def progress_of(thread: int) -> Progress:
    """Return how far a thread is with its calls. Other threads may ask."""
    return _progress.get(thread, Progress(float("-inf"), None))


class UserCode:
    """Calls a project's code for rows, between statements of ours.

    In a transaction that is open already, each call has a savepoint of its own. ``only_values``:
    the calls only convert the values of fields, which may raise, but changes nothing.
    """

    def __init__(self, *, using: str, only_values: bool = False) -> None:
        self._using = using
        self._only_values = only_values
        self._wrapper = connections[using]
        self._is_inside = self._wrapper.in_atomic_block
        self._has_savepoints = self._is_inside and not only_values
        self._depth = len(self._wrapper.savepoint_ids)
        self._pid = os.getpid()
        self._connection = self._wrapper.connection
        self._changing: list[str] = []
        """The statements that may have changed the session."""
        self._is_local = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the statements that the code runs."""
        wrappers = self._wrapper.execute_wrappers
        before = [*wrappers]
        self._wrappers = [*before, self._note]
        wrappers[:] = self._wrappers
        try:
            with of_settings():
                yield
        finally:
            wrappers[:] = before
            _progress.pop(threading.get_ident(), None)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert what the code of the rows that are read meanwhile does wrong to ``Unreadable``.

        Models, their managers and fields may have such code.
        """
        failure = ""
        with self.watching():
            try:
                with self._apart():
                    with _reading():
                        yield
                    self._refuse_changes()
            except (Failed, faults.Unreadable) as error:
                failure = str(error)
            try:
                self._put_right(failure)
            except Failed as error:
                failure = str(error)
        if failure:
            raise faults.Unreadable(failure)

    def call(self, function: Callable[[], T], *, spec: str, source_pk: str) -> T:
        """Return what the code returns for a row. Only within ``watching``.

        Raises:
            Failed: it raised something, or left the session other than it was.
            Harmed: it has ended a transaction that it did not begin.
            DatabaseError: the connection was lost, or the server is out of room.
        """
        thread = threading.get_ident()
        call = Call(spec, source_pk)
        _progress[thread] = Progress(time.monotonic(), call)
        failure, may_pass = "", False
        try:
            try:
                result = self._run(function)
            except DatabaseError as error:
                if faults.of(error) not in {Fault.TOO_SLOW, Fault.PASSING}:
                    raise
                # A deadlock, or a statement that a person has canceled: not yet the row's error.
                result = self._run(function)
        except Failed as error:
            failure = str(error)
        except BaseException as error:
            # Whatever the code raises is the error of its row.
            if faults.is_interruption(error) or faults.is_at_a_limit(error):
                raise
            if self._is_of_the_database(error, call):
                raise
            failure = faults.described(error)
            may_pass = issubclass(type(error), DatabaseError) and faults.is_in_the_way(error)
        finally:
            _progress[thread] = Progress(time.monotonic(), None)
        if not self._only_values:
            self._put_right(failure, call)
        _losses.pop(call, None)
        if failure:
            raise Failed(failure, may_pass=may_pass)
        return result

    def _run(self, function: Callable[[], T]) -> T:
        with self._apart():
            try:
                result = function()
            finally:
                if os.getpid() != self._pid:
                    os._exit(1)  # The code has forked. There must be only one of this worker.
            self._refuse_changes()
            return result

    @contextmanager
    def _apart(self) -> Iterator[None]:
        wrapper: Any = self._wrapper
        known = len(wrapper.run_on_commit)
        with transaction.atomic(using=self._using) if self._has_savepoints else nullcontext():
            try:
                yield
            finally:
                wrapper.execute_wrappers[:] = self._wrappers
                # What the code has put off until the commit, which is ours, must not fail that.
                put_off = wrapper.run_on_commit[known:]
                wrapper.run_on_commit[known:] = [(sids, run, True) for sids, run, _ in put_off]

    def _note(self, execute: Callable[..., T], statement: Any, *rest: Any) -> T:
        """Note a statement that may change the session."""
        if isinstance(statement, sql.Composable):
            text = statement.as_string(self._wrapper.connection)
        else:
            text = str(statement)
        if LOCAL.match(text):
            self._is_local = True
        if CHANGES.search(text):
            self._changing.append(text)
        return execute(statement, *rest)

    def _refuse_changes(self) -> None:
        """Raise if the code may have changed the session, so that its savepoint is rolled back."""
        if not self._has_savepoints:
            return
        is_local, self._is_local = self._is_local, False
        if changed := self._changed():
            raise Failed(changed)
        if is_local:
            # It would have ended with the transaction of the code, but that is part of ours.
            transaction.set_rollback(True, using=self._using)

    def _changed(self) -> str:
        """Return what the code has done to the session, for people. Empty: nothing."""
        if not self._changing:
            return ""
        changing, self._changing = self._changing, []
        # The backend may run some itself for each cursor: that of django-tenants sets search_path.
        with suppress(DatabaseError, InterfaceError):
            self._wrapper.cursor().close()
        of_cursors, self._changing = self._changing, []
        of_code = [text for text in changing if text not in of_cursors]
        return CHANGED.format(statement=" ".join(of_code[0].split()[:2])[:50]) if of_code else ""

    def _put_right(self, failure: str, call: Call | None = None) -> None:
        """Put right what the code has left behind. Raise if it must not, and has not failed."""
        _reset()
        connection = self._wrapper.connection
        status = connection.pgconn.transaction_status if connection is not None else None
        is_lost = connection is not None and connection.broken
        if is_lost and not _loses_each_time(call):
            # Not yet the row's fault, even if the code hides the error.
            lost = psycopg.OperationalError("the connection is lost")
            raise OperationalError(str(lost)) from lost
        if self._is_inside:
            self._changing = []
            is_ours = connection is self._connection and status == TransactionStatus.INTRANS
            if not is_ours or len(self._wrapper.savepoint_ids) != self._depth:
                raise faults.Harmed("A row's code has ended a transaction that it did not begin.")
            return
        wrapper = self._wrapper
        is_open = wrapper.in_atomic_block or wrapper.needs_rollback or status in OPEN
        is_open |= wrapper.connection is connection is not None and not wrapper.get_autocommit()
        is_closed = status == TransactionStatus.UNKNOWN
        left = LOST if is_lost else LEFT_OPEN if is_open else ""
        left = left or self._changed()
        if is_closed or left:
            wrapper.close()
            wrapper.connect()
        # After that: those who configure new connections run statements, too.
        self._changing, self._is_local = [], False
        if left and not failure:
            raise Failed(left)

    def _is_of_the_database(self, error: BaseException, call: Call) -> bool:
        """Return whether the server is out of room, or our connection is lost."""
        if not issubclass(type(error), (DatabaseError, InterfaceError)):
            return False
        if faults.has_no_room(error):
            return True
        connection = self._wrapper.connection
        # That of another database, which the code has asked, may be lost, too.
        is_away = connection is None or connection.broken
        return faults.is_lost_connection(error) and is_away and not _loses_each_time(call)


def _loses_each_time(call: Call | None) -> bool:
    """Count a lost connection. Return whether it is lost whenever the code of this row runs.

    In between, others have used a new one: so it is no outage.
    """
    if call is not None:
        _losses[call] += 1
    return call is not None and _losses[call] >= MAX_LOSSES


@contextmanager
def _reading() -> Iterator[None]:
    """Convert errors while fetching rows to ``faults.Unreadable`` if a value cannot be read."""
    try:
        yield
    except BaseException as error:
        if _is_of_a_value(error) and not faults.is_interruption(error):
            raise faults.Unreadable(faults.described(error)) from error
        raise


def _is_of_a_value(error: BaseException) -> bool:
    if issubclass(type(error), DatabaseError | InterfaceError):
        cause = error.__cause__
        return isinstance(cause, psycopg.DataError) and cause.sqlstate is None
    return not issubclass(type(error), psycopg.Error)


@contextmanager
def of_settings() -> Iterator[None]:
    """Activate the language and time zone of the settings, as in a worker."""
    if _are_active():
        yield
        return
    with translation.override(settings.LANGUAGE_CODE), timezone.override(None):
        yield


def _reset() -> None:
    """Activate them again, within ``of_settings``, if a project's code has changed them."""
    if not _are_active():
        translation.activate(settings.LANGUAGE_CODE)
        timezone.deactivate()


def _are_active() -> bool:
    return (
        translation.get_language() == settings.LANGUAGE_CODE
        and timezone.get_current_timezone() is timezone.get_default_timezone()
    )
