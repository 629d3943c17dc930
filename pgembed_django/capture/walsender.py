"""A replication connection: make a slot, stream from it, and confirm what was stored."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

import psycopg
from django.db import connections
from psycopg import pq, sql

from pgembed_django.capture import pgoutput
from pgembed_django.queue.sessions import notice_silence

CONNECT_SECONDS = 10

WAL_SENDER_TIMEOUT = "20s"
"""After so long a silence the server lets another worker read: this one is frozen or gone."""

REPLY_SECONDS = 5.0
WAIT_SECONDS = 0.5
"""How long to wait for the server, before looking whether the worker is to stop."""

END_SECONDS = 1.0
"""How long to wait for the server to end the stream."""

FIRST_WITH_FAILOVER = 170000
"""The first version whose slots a standby may take over."""

CREATE = "CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput (SNAPSHOT 'nothing'{failover})"
START = """
    START_REPLICATION SLOT {slot} LOGICAL {position}
    (proto_version '1', publication_names {publication}, messages 'true')
"""


class Refused(Exception):
    """The server does not let us read. ``sqlstate`` and the message are the server's."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.sqlstate = sqlstate


class Stopped(Exception):
    """The worker is to stop."""


class Walsender:
    """A connection to the server's process that sends the write-ahead log. A context manager."""

    def __init__(self, *, using: str, is_stopping: Callable[[], bool]) -> None:
        parameters = connections[using].get_connection_params()
        for name in ("cursor_factory", "prepare_threshold", "context"):
            parameters.pop(name, None)
        parameters.setdefault("connect_timeout", CONNECT_SECONDS)
        limits = {
            "wal_sender_timeout": WAL_SENDER_TIMEOUT,
            # A slot is made once all open transactions have ended.
            "lock_timeout": "0",
            "statement_timeout": "0",
            "idle_session_timeout": "0",
        }
        given = [parameters.get("options") or "", *(f"-c {k}={v}" for k, v in limits.items())]
        parameters["options"] = " ".join(given).strip()
        self.is_stopping = is_stopping
        self._replied_at = float("-inf")
        self._is_reading = False
        try:
            self._connection = psycopg.connect(
                **parameters, autocommit=True, replication="database"
            )
        except psycopg.Error as error:
            raise Refused(str(error), error.sqlstate or "") from error
        except OSError as error:  # see sessions.Connecting
            raise Refused(str(error)) from error
        self._pgconn = self._connection.pgconn
        notice_silence(self._pgconn.socket)
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_reading:
            with suppress(psycopg.Error):
                self._end()
        self._connection.close()

    def create(self, slot: str) -> int:
        """Make a slot, and return the position from which on it has all changes.

        Raises:
            Refused: there is one, or the role may not.
            Stopped: it waited for the end of open transactions.
        """
        has_failover = self._connection.info.server_version >= FIRST_WITH_FAILOVER
        statement = sql.SQL(CREATE).format(
            slot=sql.Identifier(slot),
            failover=sql.SQL(", FAILOVER" if has_failover else ""),
        )
        result = self._run(statement)
        return lsn((result.get_value(0, 1) or b"").decode())

    def start(self, slot: str, *, publication: str, position: int) -> None:
        """Begin to read after a position.

        Raises:
            Refused: another worker reads, the slot is gone or invalidated, or the role may not.
        """
        self._run(
            sql.SQL(START).format(
                slot=sql.Identifier(slot),
                position=sql.SQL(shown(position)),
                publication=sql.Literal(sql.Identifier(publication).as_string(None)),
            )
        )
        self._is_reading = True

    def pieces(self) -> Iterator[memoryview]:
        """Yield what has arrived. Waits a moment if nothing has.

        Raises:
            Refused: the server has ended the stream.
        """
        pgconn, was_read = self._pgconn, False
        while True:
            try:
                size, piece = pgconn.get_copy_data(1)
            except psycopg.Error as error:
                raise Refused(str(error), error.sqlstate or "") from error
            if size > 0:
                was_read = True  # perhaps with the answer to the command
                yield piece
            elif size == 0:
                if was_read and not self._poll.poll(0):
                    return
                if not was_read and not self._poll.poll(WAIT_SECONDS * 1000):
                    return
                was_read = True
                self._guard(pgconn.consume_input)
            else:
                raise _refused(pgconn, pgconn.get_result())

    def confirm(self, position: int) -> None:
        """Tell the server that all before a position is stored, so that it may drop it."""
        self._replied_at = time.monotonic()
        reply = pgoutput.reply(position, at=datetime.now(UTC))
        self._guard(lambda: self._pgconn.put_copy_data(reply))
        self._guard(self._pgconn.flush)

    def keep_alive(self, position: int) -> None:
        """Confirm again, if that was long ago: else the server lets another worker read."""
        if time.monotonic() - self._replied_at > REPLY_SECONDS:
            self.confirm(position)

    def _end(self) -> None:
        """Have the server let go of the slot. Else it would seem in use to whoever reads next."""
        pgconn, until = self._pgconn, time.monotonic() + END_SECONDS
        pgconn.put_copy_end()
        pgconn.flush()
        is_streaming = True
        while True:
            while is_streaming and (size := pgconn.get_copy_data(1)[0]):
                is_streaming = size > 0
            while not (is_streaming or pgconn.is_busy()):
                if pgconn.get_result() is None:
                    return
            if not self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return
            pgconn.consume_input()

    def _run(self, statement: sql.Composed) -> Any:
        """Run a command of the replication protocol, which may take long."""
        pgconn = self._pgconn
        self._guard(lambda: pgconn.send_query(statement.as_bytes(None)))
        self._guard(pgconn.flush)
        while True:
            self._guard(pgconn.consume_input)
            if not pgconn.is_busy():
                break
            if self.is_stopping():
                # Closing alone would leave the server's process waiting.
                pgconn.get_cancel().cancel()
                raise Stopped
            self._poll.poll(WAIT_SECONDS * 1000)
        result = pgconn.get_result()
        if result is None or result.status in (
            pq.ExecStatus.FATAL_ERROR,
            pq.ExecStatus.BAD_RESPONSE,
        ):
            raise _refused(pgconn, result)
        if result.status != pq.ExecStatus.COPY_BOTH:
            while pgconn.get_result() is not None:
                """Read to the end, so that the next command can be sent."""
        return result

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            call()
        except psycopg.Error as error:
            raise Refused(str(error), error.sqlstate or "") from error


def lsn(text: str) -> int:
    """Return a position in the write-ahead log as a number, given it as Postgres prints it."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def shown(position: int) -> str:
    """Return a position as Postgres prints it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def _refused(pgconn: Any, result: Any) -> Refused:
    if result is None:
        return Refused(pgconn.get_error_message() or "The connection was closed")
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"The stream has ended"
    return Refused(message.decode("utf-8", "replace"), state.decode())
