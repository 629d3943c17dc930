"""A worker from start to end: it starts, makes rounds, waits out outages, and stops.

Only the loop knows which jobs are held. Handlers' threads ask servers, one thread completes jobs,
some do the chores, each on its own connection. If a thread of chores dies, the worker stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import conf, events
from pgembed_django.core import database, faults
from pgembed_django.core.faults import Fault
from pgembed_django.queue import rollups, sessions
from pgembed_django.queue.handler import Handler
from pgembed_django.queue.limits import Limits, stopped_by_signals
from pgembed_django.queue.listener import BUSY_LOOK_SECONDS, IdleWait, Listener, Timer
from pgembed_django.queue.liveness import Liveness, WorkerRecord, hindrances
from pgembed_django.queue.maintenance import Maintenance
from pgembed_django.queue.work import Work

CANCELED_SECONDS = 0.5
REPORT_SECONDS = 10.0
LISTENER_SECONDS = 15.0


class Worker:
    """Works on its handlers' jobs until it is stopped, or with ``drain`` until nothing is ready.

    With ``drain`` it does not listen, and does not rest while it holds no jobs.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        using: str,
        settings: conf.Settings | None = None,
        drain: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.handlers = handlers
        self.using = using
        self.settings = settings or conf.current()
        self.drain = drain
        self.limits = limits
        self.liveness = Liveness(stuck_seconds=self.settings.stuck_seconds)
        self.specs = [spec for handler in handlers for spec in handler.specs]
        self.listener = Listener(self.specs, using=using)
        self.is_running = False
        """Whether it claims jobs: it has started, and is not stopping."""
        self.recycled_for = ""
        """Which limit was reached, for people. Empty: none."""
        self.works: list[Work] = []
        self.record: WorkerRecord | None = None
        """Its row in the database, while it has one."""
        self._idle = IdleWait(self.listener, self.settings)
        self._stops_asked = 0
        """One: stop after what is in flight. Two or more: at once."""
        self._grace_ends_at = float("inf")
        self._is_stopping = False
        self._outage_seconds = 0.0
        """The last wait for the database. Zero: it answered when it was last asked."""
        self._only_waits = False
        """Whether nothing can be done until an answer or a new job wakes the loop."""
        self._has_done_chores = False

    # What others ask of it

    @property
    def completed(self) -> int:
        """How many jobs it has completed."""
        return sum(work.completed for work in self.works)

    @property
    def holds(self) -> int:
        """How many jobs it holds."""
        return sum(len(work.held.jobs) for work in self.works)

    @property
    def failed(self) -> int:
        """How many jobs have failed for good."""
        return sum(work.held.failed for work in self.works)

    @property
    def is_cut_off(self) -> bool:
        """Whether the database did not answer the last time."""
        return self._outage_seconds > 0

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether a person, a signal or a limit has asked it to end."""
        return self._stops_asked > 0

    def stop(self) -> None:
        """Stop after what is in flight, or at the second call at once.

        May be called from any thread, or from a signal handler.
        """
        grace_ends_at = time.monotonic() + self.settings.stop_grace_seconds
        self._grace_ends_at = min(self._grace_ends_at, grace_ends_at)
        self._stops_asked += 1
        self._idle.wake()

    # From start to end

    def run(self) -> int:
        """Run until the end. Returns how many jobs were completed.

        Raises:
            MaintenanceDied: a thread of the maintenance ended with an error.
        """
        with stopped_by_signals(self.stop) as handle_signals_again:
            try:
                if not self._begin():
                    return 0
                try:
                    self._make_rounds(handle_signals_again)
                finally:
                    self._end()
            finally:
                self._idle.close()
                sessions.end_sessions(self.using)
        return self.completed

    def _begin(self) -> bool:
        """Start as soon as the server allows it. Return False if it was stopped before."""
        while not self.is_asked_to_stop:
            try:
                with sessions.Connecting(self.using):
                    self._start()
            except (DatabaseError, InterfaceError) as error:
                self._handle_database_error(error)
            else:
                return True
        return False

    def _start(self) -> None:
        using, settings = self.using, self.settings
        sessions.configure_sessions(using)
        for handler in self.handlers:
            handler.prepare()
        self.record = record = WorkerRecord(self.specs, using=using)
        worker_id = record.row.pk
        works = [
            Work(handler, using=using, worker_id=worker_id, settings=settings, wake=self._idle.wake)
            for handler in self.handlers
        ]
        self._maintenance = Maintenance(
            self.handlers, using=using, settings=settings, wake=self._idle.wake, worker_id=worker_id
        )
        now = time.monotonic()
        listens = settings.notify and not self.drain
        self._heartbeat = Timer(settings.lease_seconds / 3, self._renew_leases, now)
        self._listening = Timer(LISTENER_SECONDS if listens else 0, self._tend_listener, now)
        self._timers = [
            Timer(REPORT_SECONDS, lambda: record.report(self.works), now),
            Timer(rollups.FLUSH_SECONDS, self._add_up, now),
            self._listening,
        ]
        for handler in self.handlers:
            handler.warm_up()
        events.tell(events.WORKER_STARTED, worker=str(record), specs=", ".join(self.specs))
        if not self.drain:
            self._maintenance.start()
        self.works = works
        self.is_running = True

    def _make_rounds(self, handle_signals_again: Callable[[], None] | None) -> None:
        self.liveness.loop = threading.get_ident()
        while True:
            self.liveness.round_began_at = time.monotonic()
            if handle_signals_again is not None:
                handle_signals_again()
            try:
                with sessions.Connecting(self.using):
                    if self._is_done():
                        return
                    self._round()
            except (DatabaseError, InterfaceError) as error:
                self._handle_database_error(error)

    def _is_done(self) -> bool:
        if self.limits and not self.is_asked_to_stop:
            self.recycled_for = self.limits.reached(self.completed)
            if self.recycled_for:
                events.tell(events.WORKER_RECYCLED, reason=self.recycled_for)
                self.stop()
        if not self.is_asked_to_stop:
            return self.drain and self._is_drained()
        if not self._is_stopping:
            self._is_stopping = True
            self.is_running = False
            events.tell(events.WORKER_STOPPING)
            for work in self.works:
                work.release_unsent()
        is_overdue = self._stops_asked > 1 or time.monotonic() >= self._grace_ends_at
        return is_overdue or self._holds_nothing

    def _is_drained(self) -> bool:
        """Return whether nothing is left to do now."""
        if not self._holds_nothing:
            return False
        if self._step() or self.is_asked_to_stop or not self._holds_nothing:
            return False
        # If something is down or quarantined, the chores would find the same gaps again.
        found = hindrances(self.works)
        is_last = self._has_done_chores and bool(found.paused or found.quarantined)
        self._has_done_chores = True
        # Chores read whole tables: the loop is not stuck in the meantime.
        self.liveness.round_began_at = None
        has_found = self._maintenance.once() > 0
        has_moved = self._step()
        return not has_moved and (is_last or not has_found)

    def _end(self) -> None:
        """Release all jobs, then close the rest, which may take longer."""
        self.is_running = False
        self.liveness.round_began_at = None
        record, self.record = self.record, None
        with suppress(DatabaseError, InterfaceError):
            if database.is_halfway(self.using):
                connections[self.using].close()
            # Nothing ends a wait for a standby that is gone now.
            database.execute(self.using, "SET synchronous_commit = 'local'")
        try:
            for work in self.works:
                with suppress(DatabaseError, InterfaceError):
                    work.release()
            with suppress(DatabaseError, InterfaceError):
                self._add_up()
                if record is not None:
                    record.end()
        finally:
            for work in self.works:
                work.close()
            self.listener.close()
            self._maintenance.stop()
        events.tell(events.WORKER_ENDED, worker=str(record), jobs=self.completed)

    # One round

    def _round(self) -> None:
        """Make one round. Waits when there is nothing to do."""
        if any(thread.error for thread in self._maintenance.threads):
            self._maintenance.check()
        if self.listener.was_lost:
            self._listening.due_at = 0.0  # just lost: listen again at once
        if self.is_cut_off:
            self._heartbeat.due_at = 0.0  # leases may have run out
            self._beat()
            # Finish the held jobs first: new ones could not be completed either.
            for work in self.works:
                work.completing.begin_anew()
            self._step(claim=False)
        moved = self._step()
        if self.is_cut_off:
            self._outage_seconds = 0.0
            events.tell(events.DATABASE_BACK)
        # After the step: a new row must not wait for a timer.
        now = time.monotonic()
        for timer in self._timers:
            if timer.seconds and now >= timer.due_at:
                timer.run()
        if moved:
            self._note_move()
        # If all that is left waits for answers, which wake the loop, there is nothing to look for.
        while (not moved or self._only_waits) and not (self.drain and self._holds_nothing):
            moved = self._sleep()
            if not moved:
                break
            self._note_move()

    def _note_move(self) -> None:
        """Look for more at short intervals again, and let other workers help with it."""
        waiting = [work.is_waiting for work in self.works]
        unbegun = [work.handler.has_unbegun for work in self.works]
        more = [work.has_more for work in self.works]
        self._only_waits = all(waiting) and not (any(unbegun) or any(more))
        self._idle.moved(is_waiting=any(waiting))
        if any(more):
            self.listener.recruit()

    @property
    def _holds_nothing(self) -> bool:
        return all(work.held.is_empty for work in self.works)

    def _step(self, *, claim: bool = True) -> bool:
        """Let the handlers do one step each. Return whether anything moved."""
        self._beat()
        moved, refused = False, None
        for work in self.works:
            try:
                moved |= work.step(claim=claim and not self.is_asked_to_stop)
            except DatabaseError as error:
                if faults.of(error) is Fault.OUTAGE:
                    raise
                refused = refused or error  # it must not keep the others from theirs
        if refused is not None:
            raise refused
        return moved

    def _beat(self) -> None:
        """Renew the leases if it is time, before a step: what was lost in a freeze is let go of."""
        if self._heartbeat.seconds and time.monotonic() >= self._heartbeat.due_at:
            self._heartbeat.run()

    def _sleep(self) -> bool:
        """Wait until there may be something to do: an answer, a nudge, a timer or a signal.

        Returns whether a step already did something.
        """
        now = time.monotonic()
        timers = [self._heartbeat, *self._timers]
        waits = [timer.due_at - now for timer in timers if timer.seconds]
        waits += [self.settings.poll_seconds or float("inf"), self._grace_ends_at - now]
        for work in self.works:
            seconds = work.handler.wait_seconds
            # Overdue means that an open writer has locked the job.
            waits.append(seconds if seconds > 0 else self._idle.busy_look())
            if work.held.is_blocked and not work.completing.is_at_work:
                waits.append(self._idle.busy_look())
        timeout = max(0.0, min(waits))
        rooms = [work.handler.room for work in self.works]
        if self._stops_asked or not any(rooms):
            self._idle.wait(timeout)
            return False
        return self._idle.sleep(step=self._step, due_seconds=self._due_seconds, timeout=timeout)

    def _due_seconds(self) -> float | None:
        """Return in how many seconds the next job is due, if one is pending."""
        due = [work.next_due_seconds() for work in self.works if work.handler.room]
        return min((one for one in due if one is not None), default=None)

    def _renew_leases(self) -> None:
        for work in self.works:
            work.held.heartbeat(after_outage=self.is_cut_off)

    def _tend_listener(self) -> None:
        if self.listener.is_up:
            self.listener.probe()
        elif self.listener.open():  # which counts as a nudge: the next round looks for jobs
            sessions.configure_sessions(self.using, is_direct=True)

    def _add_up(self) -> None:
        """Write the counts to the sums per minute."""
        for work in self.works:
            work.held.tally.flush(using=self.using)

    # Outages of the database: the worker keeps its jobs, and tries again

    def _handle_database_error(self, error: Exception) -> None:
        database.raise_what_is_behind(error, using=self.using)
        match faults.of(error):
            case Fault.OUTAGE:
                self._wait_out_outage(error)
            case Fault.TOO_SLOW | Fault.PASSING:
                # A statement was canceled: it is tried again in a moment, with fewer rows.
                events.tell(events.STATEMENT_CANCELED, error=str(error))
                if faults.is_lost_connection(error):
                    connections[self.using].close()
                self._idle.wait(CANCELED_SECONDS)
            case _:
                raise error

    def _wait_out_outage(self, error: Exception) -> None:
        """Wait with backoff. A request to stop ends the wait."""
        self._outage_seconds = seconds = faults.longer(self._outage_seconds)
        if faults.is_of_the_server(error):
            events.tell(events.DATABASE_REFUSES, seconds=seconds, error=faults.said(error))
        else:
            events.tell(events.DATABASE_LOST, seconds=seconds, error=str(error))
        connections[self.using].close()
        # Where only our writes fail, leases can be renewed meanwhile.
        seconds = min(seconds, self.settings.lease_seconds / 3)
        if self._is_stopping:
            seconds = BUSY_LOOK_SECONDS
        until, asked = time.monotonic() + seconds, self._stops_asked
        # In a loop, because nudges end a wait: writers go on where only our writes fail.
        while self._stops_asked == asked and (left := until - time.monotonic()) > 0:
            self._idle.wait(left)
