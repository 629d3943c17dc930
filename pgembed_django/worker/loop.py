"""The loop's rounds: take results, claim jobs, do what its timers ask for, and rest."""

from __future__ import annotations

import time

from pgembed_django import conf, rollups
from pgembed_django.maintenance import Maintenance
from pgembed_django.pipeline import Pipeline
from pgembed_django.queue.listener import Listener
from pgembed_django.worker import configuring
from pgembed_django.worker.outage import Outage
from pgembed_django.worker.presence import Presence
from pgembed_django.worker.rest import Rest
from pgembed_django.worker.stopping import Stopping
from pgembed_django.worker.timer import Timer

RECRUIT_SECONDS = 5.0
REPORT_SECONDS = 10.0
LISTENER_SECONDS = 15.0


class Loop:
    """Makes a worker's rounds, from its start until it is stopped.

    With ``drain`` it does not listen, and does not rest while it holds no jobs.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        maintenance: Maintenance,
        presence: Presence,
        listener: Listener,
        *,
        rest: Rest,
        outage: Outage,
        stopping: Stopping,
        settings: conf.Settings,
        drain: bool,
    ) -> None:
        self.pipeline = pipeline
        self.maintenance = maintenance
        self.presence = presence
        self._listener = listener
        self._settings = settings
        self._drain = drain
        self._using = pipeline.holding.using
        self._rest = rest
        self._outage = outage
        self._stopping = stopping
        self._recruited_at = 0.0
        self._awaits_answer = False
        now = time.monotonic()
        self._heartbeat = Timer(settings.lease_seconds / 3, self._renew, now)
        listens = settings.notify and not drain
        self._listening = Timer(LISTENER_SECONDS if listens else 0, self._tend_listener, now)
        self._timers = [
            Timer(REPORT_SECONDS, self._report, now),
            Timer(rollups.FLUSH_SECONDS, self.add_up, now),
            self._listening,
        ]

    def round(self) -> None:
        """Make one round. Waits when there is nothing to do."""
        self.maintenance.check()
        if self._listener.was_lost:
            self._listening.due_at = 0.0  # just lost: listen again at once
        if self._outage:
            self._heartbeat.due_at = 0.0  # leases may have run out
        # First of all, so that jobs lost during a freeze are not worked on.
        self._heartbeat.run(time.monotonic())
        if self._outage:
            # Finish the held jobs first: new ones could not be stored either.
            self.pipeline.storing.begin_anew()
            self.step(claim=False)
            self._awaits_answer = False
        # While the last jobs are in flight, results come before claims: their rows wait for them.
        moved = self.step(claim=not self._awaits_answer)
        self._outage.end()
        # After the step: a new row must not wait for a timer.
        now = time.monotonic()
        for timer in self._timers:
            timer.run(now)
        if not moved and not (self._drain and self.pipeline.holding.is_empty):
            moved = self._sleep()
        is_waiting = self.pipeline.storing.is_at_work or self.pipeline.embedding.is_asking
        has_more = self.pipeline.claiming.has_more or self.pipeline.planning.has_more
        self._awaits_answer = moved and is_waiting and not has_more
        if moved:
            self._rest.moved(is_waiting=is_waiting)
            self._recruit(now)

    def step(self, *, claim: bool = True) -> bool:
        """Let the pipeline do one step. Return whether it did anything."""
        return self.pipeline.step(claim=claim and not self._stopping.asked)

    def add_up(self) -> None:
        """Write the counts to the sums per minute."""
        self.pipeline.holding.tally.flush(using=self._using)

    def _renew(self) -> None:
        self.pipeline.holding.heartbeat(after_outage=bool(self._outage))

    def _report(self) -> None:
        self.presence.report(self.pipeline)

    def _sleep(self) -> bool:
        """Wait until there may be something to do: an answer, a nudge, a timer or a signal.

        Returns whether a step already did something.
        """
        timeout = self._timeout()
        if self._stopping.asked or not self.pipeline.claiming.wanted:
            self._rest.wait(self._listener, timeout)
            return False
        return self._rest.sleep(self.pipeline, self._listener, step=self.step, timeout=timeout)

    def _timeout(self) -> float:
        now = time.monotonic()
        timers = [self._heartbeat, *self._timers]
        waits = [timer.due_at - now for timer in timers if timer.seconds]
        waits += [self._settings.poll_seconds or float("inf"), self._stopping.grace_left()]
        waits += [
            pool.paused_seconds for pool in self.pipeline.embedding.pools if pool.paused_seconds
        ]
        text_due = self.pipeline.early_text.due_seconds()
        if text_due is not None:
            # Overdue means that an open writer has locked the job.
            waits.append(text_due if text_due > 0 else self._rest.busy_look())
        if self.pipeline.holding.is_blocked and not self.pipeline.storing.is_at_work:
            waits.append(self._rest.busy_look())
        return max(0.0, min(waits))

    def _recruit(self, now: float) -> None:
        """Wake sleeping workers if there are more jobs than one claim takes.

        The reconciler and the reaper do not notify, and writers do not while a worker is awake.
        """
        if self.pipeline.claiming.has_more and now >= self._recruited_at + RECRUIT_SECONDS:
            self._recruited_at = now
            self._listener.recruit()

    def _tend_listener(self) -> None:
        if self._listener.is_up:
            self._listener.probe()
        elif self._listener.open():  # which counts as a nudge: the next round looks for jobs
            configuring.configure_sessions(self._using, is_direct=True)
