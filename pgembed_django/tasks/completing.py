"""Complete a task in the transaction of what its function writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from pgembed_django.core import database, faults
from pgembed_django.exceptions import LeaseLost
from pgembed_django.models import Task
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim
from pgembed_django.tasks import finishing
from pgembed_django.tasks.finishing import Ended
from pgembed_django.tasks.table import TASKS

MAX_STARTS = 5
"""How often to begin anew where the session's isolation level refuses a row just renewed."""

MAX_ASKED_SECONDS = 60.0
"""How long to ask the server whether a commit has happened whose answer was lost."""


class Completing:
    """A transaction that proves the lease first, and ends the task last."""

    def __init__(
        self,
        claim: Claim,
        ended: Ended,
        *,
        using: str,
        search_path: str = "",
        also: Callable[[], None] = lambda: None,
    ) -> None:
        self._claim = claim
        self._ended = ended
        self._using = using
        self._search_path = search_path
        self._also = also
        self._is_sent = False
        self.waited: float | None = None
        """For how long it had been due when it started."""
        self.is_committed = False

    def __enter__(self) -> None:
        for left in reversed(range(MAX_STARTS)):
            # Durable: within another transaction it would say that it is done, and be rolled back.
            self._atomic = transaction.atomic(using=self._using, durable=True)
            self._atomic.__enter__()
            try:
                self._hold()
                transaction.on_commit(self._note_commit, using=self._using)
                return
            except BaseException as error:
                self._atomic.__exit__(type(error), error, error.__traceback__)
                is_renewed = faults.sqlstate(error) == faults.SERIALIZATION_FAILURE
                if not (is_renewed and left):
                    raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._complete()
            except BaseException as failure:
                self._atomic.__exit__(type(failure), failure, failure.__traceback__)
                raise
            self._is_sent = True
        try:
            self._atomic.__exit__(kind, error, trace)
        except (DatabaseError, InterfaceError) as failure:
            if self.is_committed or not self._is_sent or not faults.is_lost_connection(failure):
                raise
            # The server may have committed, and the answer is lost.
            if not self._was_committed():
                raise
        if self._is_sent:
            self.is_committed = True  # in a test's transaction nothing ever commits

    def _note_commit(self) -> None:
        # Called first: what the project does on commit may raise.
        self.is_committed = True

    def _hold(self) -> None:
        with self._our_path():
            held = jobs.hold([self._claim], using=self._using, table=TASKS, waits=True)
        if not held.ours:
            raise LeaseLost(f"Task {self._claim.id} is no longer this worker's.")

    def _complete(self) -> None:
        with self._our_path():
            waited = finishing.complete([self._ended], using=self._using)()
            self.waited = waited.get(self._claim.id)
            self._also()

    def _our_path(self) -> _SearchPath:
        return _SearchPath(self._search_path, using=self._using)

    def _was_committed(self) -> bool:
        """Ask whether the task has ended. Waits for the former session, which may have its lock."""
        seconds, waited = 0.0, threading.Event()
        asked = 0.0
        while asked <= MAX_ASKED_SECONDS:
            try:
                with transaction.atomic(using=self._using):
                    self._hold()
            except LeaseLost:
                return not Task.objects.using(self._using).filter(pk=self._claim.id).exists()
            except (OperationalError, InterfaceError) as error:
                if not faults.is_lost_connection(error):
                    return False
            else:
                return False
            seconds = faults.longer(seconds)
            asked += seconds
            waited.wait(seconds)
        return False


class _SearchPath:
    """Looks for our tables where they are, in a session that a tenant's context has changed."""

    SHOW = "SELECT current_setting('search_path')"
    SET = "SELECT set_config('search_path', %(path)s, true)"

    def __init__(self, path: str, *, using: str) -> None:
        self._path = path
        self._using = using
        self._before: str | None = None

    def __enter__(self) -> None:
        if not self._path:
            return
        [[before]] = database.rows(self._using, self.SHOW)
        if before != self._path:
            database.rows(self._using, self.SET, path=self._path)
            self._before = before

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None and kind is None:
            database.rows(self._using, self.SET, path=self._before)
