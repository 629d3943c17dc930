"""One run of a task's function: what it is given, and how it ends.

A run touches nothing of the worker's. It happens in a thread, on an event loop, or in a process
of its own, and leaves its outcome behind.
"""

from __future__ import annotations

import asyncio
import enum
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from pgembed_django import events
from pgembed_django.core import database, faults
from pgembed_django.core.coroutines import entered
from pgembed_django.exceptions import (
    Canceled,
    InputRefused,
    LeaseLost,
    PgembedError,
    ProviderUnavailable,
)
from pgembed_django.queue.jobs import Claim
from pgembed_django.tasks import api, arguments, moving
from pgembed_django.tasks.completing import Completing
from pgembed_django.tasks.errors import Again, described
from pgembed_django.tasks.finishing import Ended

OF_PROVIDER = (ProviderUnavailable, InputRefused)


class Call(NamedTuple):
    """A claimed task, with what its function is called with."""

    claim: Claim
    arguments: str
    """As JSON."""
    tenant: str
    once: str | None
    created_at: datetime


class End(enum.Enum):
    """How a run has ended."""

    FINISHED = enum.auto()
    """Its function has returned."""
    COMPLETED = enum.auto()
    """It was completed within ``completing()``."""
    AGAIN = enum.auto()
    CANCELED = enum.auto()
    LOST = enum.auto()
    PUT_OFF = enum.auto()
    """The database went down under it, or its provider."""
    RETRY = enum.auto()
    FAILED = enum.auto()
    CRASHED = enum.auto()
    """The process that ran it has died."""


class Outcome(NamedTuple):
    """How a run has ended, and what is kept of it."""

    end: End
    said: str = ""
    """Its error for people: class and message in one line, then the end of the traceback."""
    seconds: float = 0
    """When to run again."""
    error: BaseException | None = None
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(api.TaskContext):  # type: ignore[type-arg, misc]
    """What a task with ``takes_context`` is given, beside its arguments."""

    run: Run

    @property
    def key(self) -> str:
        """The call's name, the same at each attempt: to hand on as an idempotency key."""
        return self.run.key

    @property
    def tenant(self) -> str:
        """The tenant that the task was enqueued for."""
        return self.run.call.tenant

    @property
    def is_canceled(self) -> bool:
        """Whether this run is to end: its time is up, or a person has asked for it."""
        return bool(self.run.canceled_for)

    def check(self) -> None:
        """Raise ``Canceled`` if this run is to end."""
        self.run.check()

    @contextmanager
    def completing(self, *, result: Any = None) -> Iterator[None]:
        """Commit what is written inside together with the task's end: once, whatever happens.

        ``result`` is kept if the task has ``keep_results``. What the function returns is not.

        Raises:
            LeaseLost: another worker has the task. Nothing inside is committed.
        """
        with self.run.completing(result):
            yield

    @asynccontextmanager
    async def acompleting(self, *, result: Any = None) -> AsyncIterator[None]:
        """Do the same in an async function, for what Django's async ORM writes inside."""
        async with entered(self.run.completing(result)):
            yield

    def retry(self, *, at: datetime | None = None, in_seconds: float = 0) -> None:
        """End this run, and ask for another one at a time. It costs no attempt."""
        raise Again(at, in_seconds)


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """A claimed task while it runs."""

    call: Call
    task: Any
    using: str
    max_attempts: int
    is_async: bool = False
    """Whether its function is a coroutine's."""
    worker: str = ""
    enter_tenant: Callable[[str], AbstractContextManager[object]] | None = None
    """What a task of a tenant runs in."""
    search_path: str = ""
    """Where our tables are found, if a tenant's session may look elsewhere."""
    tell: Callable[[bool], None] = lambda is_completing: None
    """Called when it begins to complete, and if it has not after all."""
    outcome: Outcome | None = None
    began_at: float | None = None
    """By ``time.monotonic``. None: not begun yet."""
    started_at: datetime | None = None
    """The same time, as Django is told."""
    seconds: float = 0.0
    """How long it took."""
    canceled_for: str = ""
    """Why it is to end, for people. Empty: it is not."""
    waited: float | None = None
    """If it was completed within ``completing()``: for how long it had been due when it started."""
    is_given_up: bool = False
    """Whether nobody waits for its outcome any more."""
    is_completing: bool = False
    """Whether it may have completed just now."""
    stop: Callable[[], None] = lambda: None
    """Ends what runs it, as far as that is possible."""

    @property
    def key(self) -> str:
        """See ``Context.key``."""
        call = self.call
        return moving.key_of(call.claim.id, tenant=call.tenant, once=call.once)

    @property
    def keep_seconds(self) -> float:
        """How long its result is kept."""
        kept = getattr(self.task, "keep_results", None)
        return kept.total_seconds() if kept else 0.0

    def ended(self, result: Any) -> Ended:
        """Return what is kept of it once it has succeeded."""
        claim = self.call.claim
        return Ended(claim.id, result, self.keep_seconds, self.task, claim.started_at)

    def cancel(self, reason: str) -> None:
        """Ask it to end. Any thread may call it."""
        self.canceled_for = reason
        self.stop()

    def check(self) -> None:
        """Raise ``Canceled`` if it is to end."""
        if self.canceled_for:
            raise Canceled(self.canceled_for)

    # In the thread that runs it

    def run(self) -> None:
        """Call the function, in the calling thread. Its error is kept, not raised."""
        self.began_at, self.started_at = time.monotonic(), timezone.now()
        # What the function leaves in context variables, such as a language, ends with it.
        copy_context().run(self._run)

    def _run(self) -> None:
        started = self._announce(api.task_started, api.TaskResultStatus.RUNNING)
        try:
            args, kwargs = self._given(started)
            result = None
            if not self._is_left_to_other():
                result = self._called(args, kwargs)
                self._note(moving.SUCCEEDED, result)
            self.outcome = self._finished(result)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and is_main_thread():
                raise  # a person has interrupted a test
            self._fail(error)
            self._note(moving.FAILED)
        else:
            self._announce(api.task_finished, api.TaskResultStatus.SUCCESSFUL)

    def _called(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        call = self.task.call if self.is_async else self.task.func
        if not (self.call.tenant and self.enter_tenant):
            return call(*args, **kwargs)
        with self.enter_tenant(self.call.tenant):
            return call(*args, **kwargs)

    # On the event loop

    async def arun(self) -> None:
        """Await the function. Synchronous code of it has a thread of its own."""
        self.began_at, self.started_at = time.monotonic(), timezone.now()
        async with ThreadSensitiveContext() as context:
            started = await self._aannounce(api.task_started, api.TaskResultStatus.RUNNING)
            try:
                args, kwargs = self._given(started)
                result = None
                if not (self.move and await sync_to_async(self._is_left_to_other)()):
                    result = await self._acall(args, kwargs)
                    if self.move:
                        await sync_to_async(self._note)(moving.SUCCEEDED, result)
                self.outcome = self._finished(result)
            except BaseException as error:  # noqa: BLE001 - as above
                self._fail(error)
                if self.move:
                    await sync_to_async(self._note)(moving.FAILED)
            else:
                await self._aannounce(api.task_finished, api.TaskResultStatus.SUCCESSFUL)
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(connections.close_all)()

    async def _acall(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not (self.call.tenant and self.enter_tenant):
            return await self.task.func(*args, **kwargs)
        async with entered(self.enter_tenant(self.call.tenant)):
            return await self.task.func(*args, **kwargs)

    # Completing

    @contextmanager
    def completing(self, result: Any) -> Iterator[None]:
        """See ``Context.completing``."""
        if self.is_completing:
            raise PgembedError("completing() may be used once in a run, and not within itself.")
        self.check()
        self.is_completing = True
        self.tell(True)
        completing = Completing(
            self.call.claim,
            self.ended(self._kept(result)),
            using=self.using,
            search_path=self.search_path if self.call.tenant else "",
            also=partial(self._note, moving.SUCCEEDED, result),
        )
        try:
            with completing:
                yield
        finally:
            if completing.is_committed:
                self.outcome, self.waited = Outcome(End.COMPLETED), completing.waited
            else:
                self.is_completing = False
                self.tell(False)

    # How it ends

    def _finished(self, result: Any) -> Outcome:
        return self.outcome or Outcome(End.FINISHED, result=self._kept(result))

    def _kept(self, result: Any) -> Any:
        """Return a result as JSON has it, or None if it is not kept.

        Raises:
            TypeError, ValueError: JSON has nothing for it.
        """
        return arguments.returned(result) if self.keep_seconds else None

    def _fail(self, error: BaseException) -> None:
        said = described(error)
        if self.outcome is not None:  # it has completed
            events.tell(
                events.TASK_FAILED_LATE,
                function=self.call.claim.kind,
                job_id=self.call.claim.id,
                error=said.partition("\n")[0],
            )
            return
        end = self._end_of(error)
        seconds = error.seconds if isinstance(error, Again) else 0
        self.outcome = Outcome(end, said, seconds, error)
        if end is End.FAILED:
            self._announce(api.task_finished, api.TaskResultStatus.FAILED)

    def _end_of(self, error: BaseException) -> End:
        if isinstance(error, Again):
            return End.AGAIN
        if isinstance(error, LeaseLost):
            return End.LOST
        if getattr(self.task, "provider", None) and isinstance(error, OF_PROVIDER):
            return End.FAILED if isinstance(error, InputRefused) else End.PUT_OFF  # see Outages
        if self.canceled_for and isinstance(error, Canceled | asyncio.CancelledError):
            return End.CANCELED
        if isinstance(error, (DatabaseError, InterfaceError)) and faults.is_lost_connection(error):
            return End.PUT_OFF
        retry_on = getattr(self.task, "retry_on", ())
        is_final = isinstance(error, getattr(self.task, "give_up_on", ())) or (
            retry_on and not isinstance(error, retry_on)
        )
        is_last = self.call.claim.attempts + 1 >= self.max_attempts
        return End.FAILED if is_final or is_last else End.RETRY

    # While tasks move over from another queue

    @property
    def move(self) -> moving.Move | None:
        """The stage, if tasks are moved."""
        return moving.of(self.task.get_backend())

    def _is_left_to_other(self) -> bool:
        """Return whether the other queue runs it."""
        move = self.move
        if move is None:
            return False
        try:
            path, since = self.call.claim.kind, self.call.created_at
            return moving.is_left_to_other(move, self.key, path, since=since, using=self.using)
        except moving.NotYet:
            raise Again(None, moving.LOOK_SECONDS) from None

    def _note(self, outcome: str, result: Any = None) -> None:
        """Record its outcome, unless that was done as it completed."""
        is_failure = self.outcome is not None and self.outcome.end in (End.RETRY, End.FAILED)
        if self.move is None or is_failure == (outcome == moving.SUCCEEDED):
            return
        if self.outcome is not None and self.outcome.end is End.COMPLETED:
            return
        moving.note(
            self.key,
            self.call.claim.kind,
            outcome,
            consumer=moving.HERE,
            using=self.using,
            result=result,
        )

    # What it is given

    def _given(self, started: Any) -> tuple[list[Any], dict[str, Any]]:
        given = json.loads(self.call.arguments)
        args, kwargs = given.get("args", []), given.get("kwargs", {})
        if self.task.takes_context:
            state = started or self._state(api.TaskResultStatus.RUNNING)
            args = [Context(task_result=state, run=self), *args]
        return args, kwargs

    # What Django is told

    def _announce(self, signal: Any, status: Any) -> Any:
        """Send one of Django's signals, if anything but a silent log would receive it."""
        if not api.is_received(signal, is_failed=status == api.TaskResultStatus.FAILED):
            return None
        state = self._state(status)
        signal.send_robust(type(self.task.get_backend()), task_result=state)
        return state

    async def _aannounce(self, signal: Any, status: Any) -> Any:
        if not api.is_received(signal, is_failed=False):
            return None
        return await sync_to_async(self._announce)(signal, status)

    def _state(self, status: Any) -> Any:
        call = self.call
        given = json.loads(call.arguments)
        result: Any = api.TaskResult(
            task=self.task,
            id=str(call.claim.id),
            status=status,
            enqueued_at=call.created_at,
            started_at=self.started_at,
            finished_at=None,
            last_attempted_at=self.started_at,
            args=given.get("args", []),
            kwargs=given.get("kwargs", {}),
            backend=self.task.backend,
            errors=[],
            worker_ids=[self.worker] * (call.claim.attempts + 1),
        )
        if status == api.TaskResultStatus.RUNNING:
            return result
        result = replace(result, finished_at=timezone.now())
        if status == api.TaskResultStatus.FAILED and self.outcome and self.outcome.error:
            kind = type(self.outcome.error)
            path = f"{kind.__module__}.{kind.__qualname__}"
            trace = self.outcome.said.partition("\n")[2]
            error = api.TaskError(exception_class_path=path, traceback=trace)
            return replace(result, errors=[error])
        object.__setattr__(result, "_return_value", self.outcome and self.outcome.result)
        return result


def is_main_thread() -> bool:
    """Return whether signals' handlers run in this thread."""
    return threading.current_thread() is threading.main_thread()


def leave_sessions() -> None:
    """End what a run has left open in this thread's database sessions, as after a web request."""
    for wrapper in connections.all(initialized_only=True):
        if wrapper.connection is None:
            continue
        if wrapper.in_atomic_block or (
            wrapper.vendor == "postgresql" and database.is_halfway(wrapper.alias)
        ):
            # Entered by hand and never left: what is in it must not reach the next task.
            wrapper.in_atomic_block = False
            wrapper.savepoint_ids, wrapper.atomic_blocks = [], []
            wrapper.close()
        else:
            wrapper.close_if_unusable_or_obsolete()
