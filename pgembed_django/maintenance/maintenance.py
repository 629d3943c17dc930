"""The chores of a worker. One thread reaps, reconciles and prunes jobs, another tends spaces."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pgembed_django import conf, database, events, rollups, spaces, specs
from pgembed_django.maintenance import backfill, laps, recognizing, reconcile, renaming, retired
from pgembed_django.maintenance.chores import Chore, Chores, apart, attempt
from pgembed_django.maintenance.filling import Filling
from pgembed_django.models import Ending, Lap, Space
from pgembed_django.queue import jobs
from pgembed_django.specs import Spec

LAPS_SECONDS = 1.0
STALE_PAGE_SECONDS = 10.0
"""How often a page of each spec is compared. Each spec's turn comes at a time of its own."""
STALE_SECONDS = 5.0
"""How long a spec goes on to the next page if pages end early because their texts are slow."""
PRUNE_SECONDS = 60.0
OPEN_SECONDS = 60.0
BUILD_SECONDS = 5.0
FILL_SECONDS = 1.0

PUT_BACK_SECONDS = 1.0
"""The server's clock is never this much behind its former self, unless somebody put it back."""

NOW = "SELECT extract(epoch FROM statement_timestamp())::float8"

QUIET_SECONDS = 0.2
"""How much of each second may go to pages without a gap, so that saved rows need not wait."""


class Maintenance:
    """Runs all chores in two threads. Locks keep workers from doing the same chore at once.

    There are two threads because an index takes minutes to build, and expired leases must not
    wait for that.
    """

    def __init__(
        self,
        worked_on: Mapping[str, Spec],
        *,
        using: str,
        settings: conf.Settings,
        wake: Callable[[], None],
        worker_id: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.specs = worked_on
        self._clock = clock
        self._ahead = math.inf
        """By how much the server's clock was ahead of ours. Infinite: not known yet."""
        self._was_put_back = False
        """Whether the server's clock was, or may have been before we looked at it first."""
        self._reaps_from = clock()
        self._own = jobs.Lease(worker_id, settings.lease_seconds) if worker_id else None
        self.using = using
        self.settings = settings
        self._quiet_seconds = math.inf
        self._has_recognized = False
        self._compared_in_turn = itertools.cycle(worked_on.values())
        self._filling = Filling(using=using, reconcile_seconds=settings.reconcile_seconds)
        is_reconciling = settings.reconcile_seconds > 0
        is_comparing = is_reconciling and worked_on
        self._keeper = Chores(
            "keeper",
            [
                # Not at once: this worker may have been started after an outage.
                Chore(settings.reap_seconds, self.reap, starts_at_once=False, awaits_others=True),
                Chore(settings.reconcile_seconds, self.reconcile),
                # Not at once: the laps that ``reconcile`` begins are to take turns with the work.
                Chore(LAPS_SECONDS * is_reconciling, self.continue_laps, starts_at_once=False),
                Chore(
                    STALE_PAGE_SECONDS / len(worked_on) if is_comparing else 0,
                    self.look_for_stale_rows,
                    starts_at_once=False,
                ),
                Chore(PRUNE_SECONDS, self.prune_jobs),
            ],
            using=using,
            wake=wake,
        )
        self._builder = Chores(
            "builder",
            [
                Chore(OPEN_SECONDS, self.open_spaces),
                Chore(BUILD_SECONDS, self.build),
                Chore(FILL_SECONDS, self.fill),
                Chore(PRUNE_SECONDS, self.prune_spaces),
            ],
            using=using,
            wake=wake,
        )

    def start(self) -> None:
        """Start both threads. Their first rounds begin at once."""
        self._quiet_seconds = QUIET_SECONDS
        self._keeper.start()
        self._builder.start()

    def check(self) -> None:
        """Raise the error that ended a thread, if one did."""
        self._keeper.check()
        self._builder.check()

    def stop(self) -> None:
        """End both threads and wait for them."""
        self._keeper.stop()
        self._builder.stop()
        self._keeper.join()
        self._builder.join()

    def once(self) -> int:
        """Do the chores of a drain once, in the caller's thread. Return how many jobs became ready.

        Reaps, looks for gaps, compares all texts with a changed recipe, prunes, builds indexes and
        switches.
        """
        ready = attempt(self.reap) + attempt(self.reconcile)
        attempt(self.note_recipes)
        ready += attempt(self.continue_laps)
        attempt(self.prune_jobs)
        self._filling.look_at_once()
        ready += attempt(self.build)
        attempt(self.prune_spaces)
        return ready

    def reap(self) -> int:
        """Take back jobs whose lease has expired. Return how many are due again."""
        if self._leases_ran_out_at_once():
            return 0
        recalled = 0
        if self._was_put_back:
            recalled = jobs.recall(
                list(self.specs), lease_seconds=self.settings.lease_seconds, using=self.using
            )
            self._was_put_back = False
        reaped = jobs.reap(max_crashes=self.settings.max_crashes, using=self.using, own=self._own)
        tally = rollups.Tally()
        for claim, ending in reaped:
            if ending in {Ending.BUSY, Ending.LOST}:
                continue  # nothing was taken back
            tally.ended(claim.spec, ending)
            events.tell(
                events.LEASE_EXPIRED,
                about=claim,
                spec=claim.spec,
                source_pk=claim.source_pk,
                job_id=claim.id,
                crashes=claim.crashes + 1,
                result=ending,
            )
        tally.flush(using=self.using)
        return recalled + sum(ending is Ending.REQUEUED for _, ending in reaped)

    def reconcile(self) -> int:
        """Enqueue rows without vectors and vectors without rows. Fail old jobs of unknown specs."""
        unknown = jobs.fail_unknown([spec.key for spec in specs.all()], using=self.using)
        if unknown:
            events.tell(events.JOBS_WITHOUT_SPEC, count=unknown)
        return self._go_over(
            dict.fromkeys(self.specs.values(), laps.CHEAP_SWEEPS), chore="reconcile"
        )

    def continue_laps(self) -> int:
        """Continue unfinished laps. They stop often, to take turns with the worker's own work.

        A lap also stops while the backlog is full.
        """
        under_way = laps.under_way(self.specs.values(), using=self.using)
        return self._go_over(under_way, chore="continue_laps")

    def note_recipes(self) -> int:
        """Note what each spec declares, so that a later drain knows of a change."""
        for spec in self.specs.values():
            laps.begin(spec, Lap.Sweep.STALE, using=self.using)
        return 0

    def look_for_stale_rows(self) -> int:
        """Compare the next spec's next page of texts with the stored digests, lap after lap.

        One spec at a time: saved rows wait for the processor that comparing takes.
        """
        enqueued = 0
        spec = next(self._compared_in_turn)
        with apart(spec, chore="look_for_stale_rows", using=self.using):
            enqueued += self._look_for_stale_rows(spec)
        return enqueued

    def prune_jobs(self) -> int:
        """Delete old finished jobs in small batches, other old records, and dead workers' rows."""
        while jobs.prune(keep_seconds=self.settings.keep_succeeded_seconds, using=self.using):
            if self._keeper.stopping.is_set():
                break
        jobs.prune_attempts(using=self.using)
        rollups.prune(using=self.using)
        backfill.prune(using=self.using)
        jobs.forget_dead_workers(silent_seconds=self.settings.lease_seconds * 3, using=self.using)
        return 0

    def open_spaces(self) -> int:
        """Open missing spaces. Ask the servers for their models' digests: a tag may have moved.

        At first also compare all models with what their spaces know of them, later only those that
        were exchanged.
        """
        live: list[Space] = []
        for spec in self.specs.values():
            with apart(spec, chore="open_spaces", using=self.using):
                live += spaces.ensure(spec, using=self.using)
        spaces.ask_for_weights(live)
        for spec in self.specs.values():
            with apart(spec, chore="open_spaces", using=self.using):
                recognizing.recognize(spec, using=self.using, only_exchanged=self._has_recognized)
        self._has_recognized = True
        return 0

    def build(self) -> int:
        """Build missing indexes, switch to full spaces, and open a space for specs without one."""
        enqueued = 0
        for spec in self.specs.values():
            with apart(spec, chore="build", using=self.using):
                live = spaces.live(spec, using=self.using)
                # After a ``flush`` none is live: jobs would wait for the next open_spaces.
                if not live and renaming.follow(using=self.using):
                    live = spaces.ensure(spec, using=self.using)
                enqueued += sum(self._build(spec, space) for space in live)
        return enqueued

    def fill(self) -> int:
        """Look at the spaces that are being built, more often than ``build`` does."""
        building = Space.objects.using(self.using).filter(
            spec__in=self.specs, state=Space.State.BUILDING
        )
        enqueued = 0
        for space in building:
            with apart(self.specs[space.spec], chore="fill", using=self.using):
                enqueued += self._filling.look(self.specs[space.spec], space)
        return enqueued

    def prune_spaces(self) -> int:
        """Delete the vectors of spaces that were retired long enough ago."""
        for space in spaces.prunable(
            retired_for_seconds=self.settings.retired_seconds, using=self.using
        ):
            spec = self.specs.get(space.spec)
            is_stopping = self._builder.stopping.is_set
            if spec is not None and not is_stopping():
                with apart(spec, chore="prune_spaces", using=self.using):
                    retired.prune(spec, space, using=self.using, is_stopping=is_stopping)
        return 0

    def _leases_ran_out_at_once(self) -> bool:
        """Return whether the server's clock was put forward, and workers have yet to renew.

        It is as if we had not run for a while: everything was asleep, and the others may be back.
        Also notes whether the clock was put back.
        """
        before = self._clock()
        [[now]] = database.rows(self.using, NOW)
        after = self._clock()
        if now - after > self._ahead + self.settings.lease_seconds / 3:
            # Within a third of their lease all have renewed it.
            self._reaps_from = after + self.settings.lease_seconds / 2
        self._was_put_back |= now - before < self._ahead - PUT_BACK_SECONDS
        self._ahead = now - before
        return after < self._reaps_from

    def _look_for_stale_rows(self, spec: Spec) -> int:
        """Compare the next page, and for a while further ones if pages end early."""
        enqueued = 0
        until = time.monotonic() + STALE_SECONDS
        while page := reconcile.reconcile_page(spec, Lap.Sweep.STALE, using=self.using):
            enqueued += page.enqueued
            if not page.is_cut or time.monotonic() > until:
                break
        return enqueued

    def _go_over(self, sweeps: Mapping[Spec, Sequence[str]], *, chore: str) -> int:
        enqueued = 0
        for spec in self._in_turn(sweeps):
            with apart(spec, chore=chore, using=self.using):
                enqueued += reconcile.reconcile_once(
                    spec,
                    using=self.using,
                    sweeps=sweeps[spec],
                    quiet_seconds=self._quiet_seconds / len(sweeps),
                )
        return enqueued

    def _in_turn(self, of: Iterable[Spec]) -> Iterator[Spec]:
        """Yield specs until the keeper is asked to stop."""
        return itertools.takewhile(lambda _: not self._keeper.stopping.is_set(), of)

    def _build(self, spec: Spec, space: Space) -> int:
        if space.state == Space.State.ACTIVE:
            self._filling.index(spec, space)
            if space.is_partial and not spaces.has_gap(spec, space, using=self.using):
                spaces.note_full(space, using=self.using)
            return 0
        enqueued = self._filling.look(spec, space)
        if self.settings.switch_early:
            self._filling.switch_early(spec, space)
        return enqueued
