"""What keeps rows and spaces in order: look for gaps, and open, build, switch and prune spaces."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pgembed_django import conf, spaces
from pgembed_django.models import Lap, Space
from pgembed_django.queue.maintenance import Chore, apart
from pgembed_django.spaces import backfill, laps, pruning, recognition, reconcile, renames
from pgembed_django.spaces.filling import Filling
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

QUIET_SECONDS = 0.2
"""How much of each second may go to pages without a gap, so that saved rows need not wait."""


class Upkeep:
    """Looks for gaps, and tends spaces. Locks keep workers from doing the same at once."""

    def __init__(
        self, worked_on: Mapping[str, Spec], *, using: str, settings: conf.Settings
    ) -> None:
        self.specs = worked_on
        self.using = using
        self.settings = settings
        self._is_stopping: Callable[[], bool] = lambda: False
        self._quiet_seconds = math.inf
        self._has_recognized = False
        self._compared_in_turn = itertools.cycle(worked_on.values())
        self._filling = Filling(using=using, reconcile_seconds=settings.reconcile_seconds)

    def chores(self, is_stopping: Callable[[], bool]) -> tuple[Sequence[Chore], Sequence[Chore]]:
        """Return what looks for gaps, and what tends spaces: an index takes minutes to build."""
        self._is_stopping = is_stopping
        self._quiet_seconds = QUIET_SECONDS
        is_reconciling = self.settings.reconcile_seconds > 0
        is_comparing = is_reconciling and self.specs
        return [
            Chore(self.settings.reconcile_seconds, self.reconcile),
            # Not at once: the laps that ``reconcile`` begins are to take turns with the work.
            Chore(LAPS_SECONDS * is_reconciling, self.continue_laps, starts_at_once=False),
            Chore(
                STALE_PAGE_SECONDS / len(self.specs) if is_comparing else 0,
                self.look_for_stale_rows,
                starts_at_once=False,
            ),
            Chore(PRUNE_SECONDS, self.prune_records),
        ], [
            Chore(OPEN_SECONDS, self.open_spaces),
            Chore(BUILD_SECONDS, self.build),
            Chore(FILL_SECONDS, self.fill),
            Chore(PRUNE_SECONDS, self.prune_spaces),
        ]

    def chores_of_drain(self) -> list[Callable[[], int]]:
        """Return what finds gaps, compares texts with a changed recipe, and tends the spaces."""
        self._filling.look_at_once()
        self._quiet_seconds = math.inf  # there is nobody to take turns with
        return [
            self.reconcile,
            self.note_recipes,
            self.continue_laps,
            self.prune_records,
            self.build,
            self.prune_spaces,
        ]

    def reconcile(self) -> int:
        """Enqueue rows without vectors and vectors without rows."""
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
        with apart(spec.key, chore="look_for_stale_rows", using=self.using):
            enqueued += self._look_for_stale_rows(spec)
        return enqueued

    def prune_records(self) -> int:
        """Delete the records of backfills that ended long enough ago."""
        backfill.prune(using=self.using)
        return 0

    def open_spaces(self) -> int:
        """Open missing spaces. Ask the servers for their models' digests: a tag may have moved.

        At first also compare all models with what their spaces know of them, later only those that
        were exchanged.
        """
        live: list[Space] = []
        for spec in self.specs.values():
            with apart(spec.key, chore="open_spaces", using=self.using):
                live += spaces.ensure(spec, using=self.using)
        spaces.ask_for_weights(live)
        for spec in self.specs.values():
            with apart(spec.key, chore="open_spaces", using=self.using):
                recognition.recognize(spec, using=self.using, only_exchanged=self._has_recognized)
        self._has_recognized = True
        return 0

    def build(self) -> int:
        """Build missing indexes, switch to full spaces, and open a space for specs without one."""
        enqueued = 0
        for spec in self.specs.values():
            with apart(spec.key, chore="build", using=self.using):
                live = spaces.live(spec, using=self.using)
                # After a ``flush`` none is live: jobs would wait for the next open_spaces.
                if not live and renames.follow(using=self.using):
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
            with apart(self.specs[space.spec].key, chore="fill", using=self.using):
                enqueued += self._filling.look(self.specs[space.spec], space)
        return enqueued

    def prune_spaces(self) -> int:
        """Delete the vectors of spaces that were retired long enough ago."""
        for space in spaces.prunable(
            retired_for_seconds=self.settings.retired_seconds, using=self.using
        ):
            spec = self.specs.get(space.spec)
            is_stopping = self._is_stopping
            if spec is not None and not is_stopping():
                with apart(spec.key, chore="prune_spaces", using=self.using):
                    pruning.prune(spec, space, using=self.using, is_stopping=is_stopping)
        return 0

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
            with apart(spec.key, chore=chore, using=self.using):
                enqueued += reconcile.reconcile_once(
                    spec,
                    using=self.using,
                    sweeps=sweeps[spec],
                    quiet_seconds=self._quiet_seconds / len(sweeps),
                )
        return enqueued

    def _in_turn(self, of: Iterable[Spec]) -> Iterator[Spec]:
        """Yield specs until the worker is to stop."""
        return itertools.takewhile(lambda _: not self._is_stopping(), of)

    def _build(self, spec: Spec, space: Space) -> int:
        if space.state == Space.State.ACTIVE:
            self._filling.index(spec, space)
            if space.is_partial and not spaces.has_gap(spec, space, using=self.using):
                spaces.note_full(space, using=self.using)
            return 0
        return self._filling.look(spec, space)
