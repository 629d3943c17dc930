"""The worker: one loop that claims, embeds and stores, and sleeps when there is nothing to do.

Only the loop knows what is held. Pool threads talk to providers, one thread stores, two do the
maintenance, each on a connection of its own; when one of these two dies, the worker stops.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from pgembed_django import conf, events, faults, rollups, spaces
from pgembed_django.faults import Fault
from pgembed_django.listener import Listener
from pgembed_django.maintenance import Maintenance
from pgembed_django.pipeline import Pipeline
from pgembed_django.specs import Spec
from pgembed_django.worker import configuring, preparing
from pgembed_django.worker.limits import Limits
from pgembed_django.worker.liveness import Liveness
from pgembed_django.worker.presence import Presence, aside, paused
from pgembed_django.worker.rest import BUSY_LOOK_SECONDS, Rest
from pgembed_django.worker.sessions import Sessions
from pgembed_django.worker.signals import stopped_by_signals
from pgembed_django.worker.timer import Timer

RECRUIT_SECONDS = 5.0
REPORT_SECONDS = 10.0
LISTENER_SECONDS = 15.0
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
        self.stops_asked = 0
        self.is_running = False
        """Whether it claims: it has started, and is not being stopped."""
        self.recycled_for = ""
        """Which limit was reached, in words. Empty: none."""
        self._stopping_since: float | None = None
        self._rest = Rest(self.settings)
        self._outage_seconds = 0.0
        self._recruited_at = 0.0
        self._has_reconciled = False
        self._awaits_answer = False

    def run(self) -> int:
        """Work. Returns how many units were stored.

        Raises:
            MaintenanceDied: a thread of the maintenance ended with an error.
        """
        with stopped_by_signals(self.stop):
            try:
                if not self._begin():
                    return 0
                try:
                    self._loop()
                finally:
                    self._end()
            finally:
                self._hang_up()
        return self.pipeline.completed

    @property
    def paused(self) -> dict[str, str]:
        """The providers that are down or paused by hand, and why."""
        return paused(self.pipeline) if hasattr(self, "pipeline") else {}

    @property
    def aside(self) -> dict[str, str]:
        """The specs that are set aside, and why."""
        return aside(self.pipeline) if hasattr(self, "pipeline") else {}

    @property
    def is_cut_off(self) -> bool:
        """Whether the database was away when it was last asked."""
        return self._outage_seconds > 0

    @property
    def is_deaf(self) -> bool:
        """Whether it ought to hear notifications, and does not."""
        return self.settings.notify and not self.drain and not self.listener.is_up

    def stop(self) -> None:
        """Stop after what is in flight; asked twice, at once."""
        self.stops_asked += 1
        self.wake()

    def wake(self) -> None:
        """Wake the loop. May be called from any thread, or from a signal handler."""
        self._rest.wake()

    def _begin(self) -> bool:
        """Start as soon as the server lets us. Tells whether it did before we were stopped."""
        while not self.stops_asked:
            try:
                self._start()
            except DatabaseError as error:
                if not faults.is_of_the_server(error):
                    raise
                self._sit_out(error)
            else:
                return True
        return False

    def _start(self) -> None:
        configuring.configure_sessions(self.using)
        self.sessions.watch()
        preparing.prepare(self.specs, using=self.using)
        self.presence = Presence(self.specs, using=self.using)
        self.pipeline = Pipeline(
            self.specs,
            using=self.using,
            worker_id=self.presence.row.pk,
            settings=self.settings,
            wake=self.wake,
        )
        self.maintenance = Maintenance(
            self.specs, using=self.using, settings=self.settings, wake=self.wake
        )
        # Now: the first saved row is not to wait for the models.
        spaces.warm_up(self.specs.values(), using=self.using)
        now = time.monotonic()
        self._listener_timer = Timer(LISTENER_SECONDS, self._tend_listener, now)
        self._heartbeat = Timer(
            self.settings.lease_seconds / 3, self.pipeline.holding.heartbeat, now
        )
        self._timers = [
            Timer(REPORT_SECONDS, self._report, now),
            Timer(rollups.FLUSH_SECONDS, self._add_up, now),
        ]
        events.tell(events.WORKER_STARTED, worker=str(self.presence), specs=", ".join(self.specs))
        if not self.drain:
            self._timers.append(self._listener_timer)
            self.maintenance.start()
        self.is_running = True

    def _loop(self) -> None:
        while True:
            self.liveness.tick()
            try:
                if self._is_done():
                    return
                self._round()
            except (DatabaseError, InterfaceError) as error:
                match faults.of(error):
                    case Fault.OUTAGE:
                        self._sit_out(error)
                    case Fault.TOO_SLOW:
                        self._try_later(error)
                    case _:
                        raise

    def _round(self) -> None:
        self.maintenance.check()
        if self.listener.was_lost:
            self._listener_timer.due_at = 0.0  # just now: listen again at once
        # Before anything else: what was lost while it was frozen is not worked on.
        self._heartbeat.run(time.monotonic())
        if self._outage_seconds:
            # What is held, before more is claimed that could not be stored either.
            self.pipeline.storing.finish()
            self._step(claim=False)
            self._awaits_answer = False
        # With the last jobs on their way, what comes back is first: the row waits for that.
        moved = self._step(claim=not self._awaits_answer)
        if self._outage_seconds:
            self._outage_seconds = 0.0
            events.tell(events.DATABASE_BACK)
        # Not sooner: a row that has just come waits for none of them.
        now = time.monotonic()
        for timer in self._timers:
            timer.run(now)
        if not moved and not (self.drain and self.pipeline.holding.is_empty):
            moved = self._sleep()
        is_waiting = self.pipeline.storing.is_at_work or self.pipeline.embedding.is_asking
        has_more = self.pipeline.claiming.has_more or self.pipeline.planning.has_more
        self._awaits_answer = moved and is_waiting and not has_more
        if moved:
            self._rest.moved(is_waiting=is_waiting)
            self._recruit(now)

    def _sleep(self) -> bool:
        """Wait until something may have moved: an answer, a nudge, a timer, a signal.

        Tells whether something has been moved already.
        """
        timeout = self._timeout()
        if self.stops_asked or not self.pipeline.claiming.wanted:
            self._rest.wait(self.listener, timeout)
            return False
        return self._rest.sleep(self.pipeline, self.listener, step=self._step, timeout=timeout)

    def _step(self, *, claim: bool = True) -> bool:
        return self.pipeline.step(claim=claim and not self.stops_asked)

    def _timeout(self) -> float:
        now = time.monotonic()
        timers = [self._heartbeat, *self._timers]
        waits = [timer.due_at - now for timer in timers if timer.seconds]
        waits.append(self.settings.poll_seconds or float("inf"))
        waits += [
            pool.paused_seconds for pool in self.pipeline.embedding.pools if pool.paused_seconds
        ]
        text_due = self.pipeline.early_text.due_seconds()
        if text_due is not None:
            # It is overdue where an open writer holds the job.
            waits.append(text_due if text_due > 0 else self._rest.busy_look())
        if self.pipeline.holding.is_blocked and not self.pipeline.storing.is_at_work:
            waits.append(self._rest.busy_look())
        if self._stopping_since is not None:
            waits.append(self._stopping_since + self.settings.stop_grace_seconds - now)
        return max(0.0, min(waits))

    def _is_done(self) -> bool:
        if not self.stops_asked and (reason := self.limits.reached(self.pipeline.completed)):
            self.recycled_for = reason
            events.tell(events.WORKER_RECYCLED, reason=reason)
            self.stops_asked = 1
        if self.stops_asked:
            if self._stopping_since is None:
                self._stopping_since = time.monotonic()
                self.is_running = False
                events.tell(events.WORKER_STOPPING)
                self.pipeline.release_unsent()
            waited = time.monotonic() - self._stopping_since
            return (
                self.stops_asked > 1
                or self.pipeline.holding.is_empty
                or waited >= self.settings.stop_grace_seconds
            )
        return self.drain and self._is_drained()

    def _is_drained(self) -> bool:
        """Whether nothing is left that can be done now."""
        if not self.pipeline.holding.is_empty:
            return False
        if self.pipeline.step() or not self.pipeline.holding.is_empty:
            return False
        # What the reconciler finds again waits for a provider, or for tables.
        is_last = self._has_reconciled and bool(self.paused or self.aside)
        self._has_reconciled = True
        # It reads whole tables, and is not being stuck meanwhile.
        self.liveness.end()
        return not self.maintenance.once() or is_last

    def _report(self) -> None:
        self.presence.report(self.pipeline)

    def _add_up(self) -> None:
        self.pipeline.holding.tally.flush(using=self.using)

    def _recruit(self, now: float) -> None:
        """Call the workers that sleep, where there is more to do than one claim takes.

        The reconciler and the reaper do not notify, nor do writers while a worker is awake.
        """
        if self.pipeline.claiming.has_more and now >= self._recruited_at + RECRUIT_SECONDS:
            self._recruited_at = now
            self.listener.recruit()

    def _tend_listener(self) -> None:
        if not self.settings.notify:
            return
        if self.listener.is_up:
            self.listener.probe()
        elif self.listener.open():  # which counts as a nudge: the next round looks for jobs
            configuring.configure_sessions(self.using, is_direct=True)

    def _sit_out(self, error: Exception) -> None:
        """The database is away or unwell. What is held stays held; look again, ever more slowly."""
        self._outage_seconds = faults.longer(self._outage_seconds)
        if faults.is_of_the_server(error):
            reason = faults.said(error)
            events.tell(events.DATABASE_REFUSES, seconds=self._outage_seconds, error=reason)
        else:
            events.tell(events.DATABASE_LOST, seconds=self._outage_seconds, error=str(error))
        connections[self.using].close()
        seconds = self._outage_seconds if self._stopping_since is None else BUSY_LOOK_SECONDS
        until, stops_asked = time.monotonic() + seconds, self.stops_asked
        # Writers nudge on, where only our tables have no room.
        while self.stops_asked == stops_asked and (left := until - time.monotonic()) > 0:
            self._rest.wait(self.listener, left)

    def _try_later(self, error: Exception) -> None:
        """Something took too long. Not at once again; in fewer rows, where it was many."""
        events.tell(events.STATEMENT_CANCELED, error=str(error))
        if faults.is_lost_connection(error):
            connections[self.using].close()
        self._rest.wait(self.listener, CANCELED_SECONDS)

    def _end(self) -> None:
        """Leave nothing leased. The leases first: the rest may take its time."""
        self.is_running = False
        self.liveness.end()
        with suppress(DatabaseError, InterfaceError):
            self.pipeline.release()
            self._add_up()
            self.presence.end()
        self.pipeline.close()
        self.listener.close()
        self.maintenance.stop()
        events.tell(events.WORKER_ENDED, worker=str(self.presence), rows=self.pipeline.completed)

    def _hang_up(self) -> None:
        self._rest.close()
        configuring.leave_sessions(self.using)
        self.sessions.end()
