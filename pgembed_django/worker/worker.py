"""A worker from start to end: it waits for the server, runs its loop, and survives outages.

Only the loop knows which jobs are held. Pool threads talk to providers, one thread stores, two do
the maintenance, each on its own connection. If a maintenance thread dies, the worker stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import conf, events, faults, spaces
from pgembed_django.database import interrupting
from pgembed_django.faults import Fault
from pgembed_django.maintenance import Maintenance
from pgembed_django.pipeline import Pipeline
from pgembed_django.queue.listener import Listener
from pgembed_django.specs import Spec
from pgembed_django.worker import configuring, preparing
from pgembed_django.worker.limits import Limits
from pgembed_django.worker.liveness import Liveness, Stuck
from pgembed_django.worker.loop import Loop
from pgembed_django.worker.outage import Outage
from pgembed_django.worker.presence import Presence, aside, paused
from pgembed_django.worker.rest import BUSY_LOOK_SECONDS, Rest
from pgembed_django.worker.sessions import Sessions
from pgembed_django.worker.signals import stopped_by_signals
from pgembed_django.worker.stopping import Stopping

CANCELED_SECONDS = 0.5


class Worker:
    """Runs a pipeline until it is stopped, or with ``drain`` until nothing is ready."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        using: str,
        settings: conf.Settings | None = None,
        drain: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.specs = specs
        self.using = using
        self.settings = settings or conf.current()
        self.drain = drain
        self.limits = limits or Limits()
        self.liveness = Liveness(stuck_seconds=self.settings.stuck_seconds)
        self.sessions = Sessions(using=using)
        self.listener = Listener(list(specs), using=using)
        self.is_running = False
        """Whether it claims jobs: it has started, and is not stopping."""
        self.recycled_for = ""
        """Which limit was reached, for people. Empty: none."""
        self._pipeline: Pipeline | None = None
        self._loop: Loop | None = None
        """Set while the worker has a row."""
        self._rest = Rest(self.settings)
        self._outage = Outage(using=using)
        self._stopping = Stopping(grace_seconds=self.settings.stop_grace_seconds)
        self._has_reconciled = False

    def run(self) -> int:
        """Run until the end. Returns how many units were stored.

        Raises:
            MaintenanceDied: a thread of the maintenance ended with an error.
        """
        with stopped_by_signals(self.stop) as handle_signals_again:
            try:
                loop = self._begin()
                if loop is None:
                    return 0
                try:
                    self._go_round(loop, handle_signals_again)
                finally:
                    self._end(loop)
            finally:
                self._hang_up()
        return loop.pipeline.completed

    @property
    def holds(self) -> int:
        """How many jobs it holds."""
        return len(self._pipeline.holding.units) if self._pipeline else 0

    @property
    def failed(self) -> int:
        """How many jobs have failed for good."""
        return self._pipeline.holding.failed if self._pipeline else 0

    @property
    def paused(self) -> dict[str, str]:
        """The providers that are down or paused by hand, and why."""
        return paused(self._pipeline) if self._pipeline else {}

    @property
    def aside(self) -> dict[str, str]:
        """The specs that are set aside, and why."""
        return aside(self._pipeline) if self._pipeline else {}

    @property
    def is_cut_off(self) -> bool:
        """Whether the database did not answer the last time."""
        return bool(self._outage)

    @property
    def is_deaf(self) -> bool:
        """Whether it should hear notifications, but does not listen."""
        return self.settings.notify and not self.drain and not self.listener.is_up

    @property
    def is_overdue(self) -> bool:
        """Whether it should have ended by now, so that its waits may be canceled."""
        return self.is_asked_to_stop and (self._pipeline is None or self._stopping.is_overdue)

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether a person, a signal or a limit has asked it to end."""
        return self._stopping.asked > 0

    def stop(self) -> None:
        """Stop after what is in flight, or at the second call at once."""
        self._stopping.ask()
        self.wake()

    @property
    def is_late(self) -> bool:
        """Whether its loop has been too busy to say that it is alive, and the database is there."""
        return self._loop is not None and self._loop.presence.is_late and not self._outage

    def say_alive(self) -> None:
        """Update its row while the loop is too busy to do so. Another thread calls this."""
        loop = self._loop
        try:
            with suppress(DatabaseError, InterfaceError):
                if loop is not None:
                    loop.presence.update(loop.pipeline)
        finally:
            connections[self.using].close()

    def give_up(self, stuck: Stuck) -> None:
        """Give the jobs back of a loop that is stuck in a project's code.

        The row whose code that is counts a crash, so that it is claimed alone next, and fails in
        the end. If the loop is stuck elsewhere, the leases run out. Another thread calls this.
        """
        call = self.liveness.call
        spec, source_pk = call or ("", "")
        events.tell(
            events.WORKER_GAVE_UP,
            seconds=stuck.seconds,
            where=stuck.where,
            spec=spec,
            source_pk=source_pk,
        )
        if call and self._pipeline:
            error = f"No end of its code within {self.settings.stuck_seconds:g} s: {stuck.where}"
            try:
                with suppress(DatabaseError, InterfaceError):
                    self._pipeline.holding.give_up(spec, source_pk, error)
            finally:
                connections[self.using].close()

    def wake(self) -> None:
        """Wake the loop. May be called from any thread, or from a signal handler."""
        self._rest.wake()

    def _begin(self) -> Loop | None:
        """Start as soon as the server allows it. None: the worker was stopped before."""
        while not self.is_asked_to_stop:
            try:
                return self._start()
            except (DatabaseError, InterfaceError) as error:
                self._get_over(error)
        return None

    def _start(self) -> Loop:
        configuring.configure_sessions(self.using)
        self.sessions.watch()
        preparing.prepare(self.specs, using=self.using)
        presence = Presence(self.specs, using=self.using)
        pipeline = Pipeline(
            self.specs,
            using=self.using,
            worker_id=presence.row.pk,
            settings=self.settings,
            wake=self.wake,
        )
        maintenance = Maintenance(
            self.specs,
            using=self.using,
            settings=self.settings,
            wake=self.wake,
            worker_id=presence.row.pk,
        )
        loop = self._loop = Loop(
            pipeline,
            maintenance,
            presence,
            self.listener,
            rest=self._rest,
            outage=self._outage,
            stopping=self._stopping,
            settings=self.settings,
            drain=self.drain,
        )
        # At the start, so that the first saved row need not wait for the models.
        spaces.warm_up(self.specs.values(), using=self.using)
        events.tell(events.WORKER_STARTED, worker=str(presence), specs=", ".join(self.specs))
        if not self.drain:
            maintenance.start()
        self._pipeline = pipeline
        self.is_running = True
        return loop

    def _go_round(self, loop: Loop, handle_signals_again: Callable[[], None]) -> None:
        while True:
            self.liveness.tick()
            handle_signals_again()
            try:
                if self._is_done(loop):
                    return
                loop.round()
            except (DatabaseError, InterfaceError) as error:
                self._get_over(error)

    def _is_done(self, loop: Loop) -> bool:
        if not self.is_asked_to_stop and (reason := self.limits.reached(loop.pipeline.completed)):
            self.recycled_for = reason
            events.tell(events.WORKER_RECYCLED, reason=reason)
            self._stopping.ask()
        if not self.is_asked_to_stop:
            return self.drain and self._is_drained(loop)
        if not self._stopping.has_begun:
            self._stopping.begin()
            self.is_running = False
            events.tell(events.WORKER_STOPPING)
            loop.pipeline.release_unsent()
        return self._stopping.is_overdue or loop.pipeline.holding.is_empty

    def _is_drained(self, loop: Loop) -> bool:
        """Return whether nothing is left to do now."""
        if not loop.pipeline.holding.is_empty:
            return False
        if loop.step() or self.is_asked_to_stop or not loop.pipeline.holding.is_empty:
            return False
        # If something is down or set aside, the reconciler would find the same gaps again.
        is_last = self._has_reconciled and bool(self.paused or self.aside)
        self._has_reconciled = True
        # Maintenance reads whole tables: the loop is not stuck in the meantime.
        self.liveness.end()
        has_found = loop.maintenance.once() > 0
        # It may have switched: what a retired space's provider lacks is of no interest any more.
        loop.pipeline.live.outdate()
        has_moved = loop.step()
        return not has_moved and (is_last or not has_found)

    def _get_over(self, error: Exception) -> None:
        interrupting.raise_what_is_behind(error, using=self.using)
        match faults.of(error):
            case Fault.OUTAGE:
                self._sit_out(error)
            case Fault.TOO_SLOW | Fault.PASSING:
                self._try_later(error)
            case _:
                raise error

    def _sit_out(self, error: Exception) -> None:
        """Wait out an outage with backoff. A request to stop ends the wait."""
        self._outage.note(error)
        # Where only our writes fail, leases can be renewed meanwhile.
        seconds = min(self._outage.seconds, self.settings.lease_seconds / 3)
        if self._stopping.has_begun:
            seconds = BUSY_LOOK_SECONDS
        until, asked = time.monotonic() + seconds, self._stopping.asked
        # In a loop, because nudges end a wait: writers go on where only our writes fail.
        while self._stopping.asked == asked and (left := until - time.monotonic()) > 0:
            self._rest.wait(self.listener, left)

    def _try_later(self, error: Exception) -> None:
        """Wait a moment after a statement was canceled, to try it again, with fewer rows."""
        events.tell(events.STATEMENT_CANCELED, error=str(error))
        if faults.is_lost_connection(error):
            connections[self.using].close()
        self._rest.wait(self.listener, CANCELED_SECONDS)

    def _end(self, loop: Loop) -> None:
        """Release all jobs, then close the rest, which may take longer."""
        self.is_running = False
        self.liveness.end()
        with suppress(DatabaseError, InterfaceError):
            configuring.drop_halfway_session(self.using)
            loop.pipeline.release()
            loop.add_up()
            self._loop = None
            loop.presence.end()
        loop.pipeline.close()
        self.listener.close()
        loop.maintenance.stop()
        events.tell(events.WORKER_ENDED, worker=str(loop.presence), rows=loop.pipeline.completed)

    def _hang_up(self) -> None:
        self._rest.close()
        configuring.end_sessions(self.using)
        self.sessions.end()
