"""The chores of a worker that embeds: look for gaps, and open, fill, switch and prune spaces.

Locks keep workers from doing the same at once. A look at a space that is being filled is cheap
enough for every other second. It first checks the row that lacked its vectors at the last look,
then the end of the table, which is filled last. The whole space is only read when it may be full,
and by one worker at a time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from pgembed_django import conf, events, spaces
from pgembed_django.core import database, locks
from pgembed_django.core.adapting import doubled
from pgembed_django.declaration.specs import Spec
from pgembed_django.events import LogOnce
from pgembed_django.models import Job, ScanCursor, Space
from pgembed_django.models.job import OPEN_FAILURE
from pgembed_django.queue.maintenance import Chore, apart
from pgembed_django.spaces import indexes, lifecycle, reconcile, repairs, ripples

CONTINUE_SECONDS = 1.0
STALE_PAGE_SECONDS = 10.0
"""How often a page of each spec is compared. Each spec's turn comes at a time of its own."""
PRUNE_SECONDS = 60.0
OPEN_SECONDS = 60.0
BUILD_SECONDS = 2.0

QUIET_SECONDS = 0.2
"""How much of each second may go to pages without a gap, so that saved rows need not wait."""

SCAN_SECONDS = 5.0
"""How soon a second scan over the rows may follow the first. Each further wait is twice as long."""

BACKFILLS_KEPT = timedelta(days=1)
"""How long the cursor of a backfill is kept after its end."""

FIRST_FILL = timedelta(minutes=15)
"""How long gaps in an active space may put off the building of its indexes."""

INDEXED_SECONDS = 20.0
"""How long to wait before looking again at an active space that needs no index."""

HELD_UP_SECONDS = 60.0
"""How long to wait before looking again at a space that has too many failed rows."""

RESTS = 10
"""After a look, wait this many times as long as it took."""

# Only one worker at a time checks whether a space is full, because that may read the whole table.
# The lock only saves work: ``activate`` takes row locks.
LOCK = "pgembed_switch"

_told = LogOnce()


class Upkeep:
    """The chores of one worker. They run in two threads: an index takes minutes to build."""

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
        """Return what looks for gaps, and what tends spaces."""
        self._is_stopping = is_stopping
        self._quiet_seconds = QUIET_SECONDS
        seconds = self.settings.reconcile_seconds
        compare_seconds = STALE_PAGE_SECONDS / len(self.specs) if seconds and self.specs else 0
        return [
            Chore(seconds, self.reconcile),
            # Not at once: the scans that ``reconcile`` begins are to take turns with the work.
            Chore(CONTINUE_SECONDS, self.continue_scans, starts_at_once=False),
            Chore(compare_seconds, self.look_for_stale_rows, starts_at_once=False),
        ], [
            Chore(OPEN_SECONDS, self.open_spaces),
            Chore(BUILD_SECONDS, self.build),
            Chore(PRUNE_SECONDS, self.prune_spaces),
        ]

    def chores_of_drain(self) -> list[Callable[[], int]]:
        """Return what finds gaps, compares texts with a changed recipe, and tends the spaces."""
        self._filling = Filling(using=self.using, reconcile_seconds=self._filling.reconcile_seconds)
        self._quiet_seconds = math.inf  # there is nobody to take turns with
        return [
            self.reconcile,
            self.note_recipes,
            self.continue_scans,
            self.build,
            self.prune_spaces,
        ]

    def reconcile(self) -> int:
        """Enqueue rows without vectors and vectors without rows."""
        scans = dict.fromkeys(self.specs.values(), reconcile.CHEAP_SCANS)
        return self._go_over(scans, chore="reconcile")

    def continue_scans(self) -> int:
        """Continue unfinished scans. They stop often, to take turns with the worker's own work.

        A scan also stops while the backlog is full. Without the reconciler, those go on that follow
        a gap in the write-ahead log: triggers may watch their specs by now.
        """
        is_off = not self.settings.reconcile_seconds
        under_way = reconcile.under_way(self.specs.values(), using=self.using, only_begun=is_off)
        return self._go_over(under_way, chore="continue_scans")

    def note_recipes(self) -> int:
        """Note what each spec declares, so that a later drain knows of a change."""
        for spec in self.specs.values():
            reconcile.begin(spec, ScanCursor.Scan.STALE, using=self.using)
        return 0

    def look_for_stale_rows(self) -> int:
        """Compare the next spec's next page of texts with the stored digests, scan after scan.

        One spec at a time: saved rows wait for the processor that comparing takes.
        """

        def look(spec: Spec) -> int:
            page = reconcile.reconcile_page(spec, ScanCursor.Scan.STALE, using=self.using)
            return page.enqueued if page else 0

        return self._each([next(self._compared_in_turn)], look, chore="look_for_stale_rows")

    def open_spaces(self) -> int:
        """Open missing spaces. Ask the servers for their models' digests: a tag may have moved.

        At first also compare all models with what their spaces know of them, later only those that
        were exchanged.
        """

        def open_space(spec: Spec) -> int:
            spaces.ask_for_weights(spaces.ensure(spec, using=self.using))
            spaces.recognize(spec, using=self.using, only_exchanged=self._has_recognized)
            return 0

        self._each(self.specs.values(), open_space, chore="open_spaces")
        self._has_recognized = True
        return 0

    def build(self) -> int:
        """Build missing indexes, switch to full spaces, and open a space for specs without one."""

        def build_spaces(spec: Spec) -> int:
            found = spaces.live(spec, using=self.using)
            # After a ``flush`` none is live: jobs would wait for the next open_spaces.
            if not found and repairs.follow_renames(using=self.using):
                found = spaces.ensure(spec, using=self.using)
            return sum(self._filling.look(spec, space) for space in found)

        return self._each(self.specs.values(), build_spaces, chore="build")

    def prune_spaces(self) -> int:
        """Delete the vectors of spaces that were retired long ago, and cursors of old backfills.

        Also ripples of relations that are no longer declared.
        """
        backfills = ScanCursor.objects.using(self.using).filter(scan=ScanCursor.Scan.BACKFILL)
        backfills.filter(finished_at__lt=Now() - BACKFILLS_KEPT).delete()
        for known in self.specs.values():
            ripples.prune(known, using=self.using)
        seconds = self.settings.retired_seconds
        for space in spaces.prunable(retired_for_seconds=seconds, using=self.using):
            if (spec := self.specs.get(space.spec)) and not self._is_stopping():
                with apart(spec.key, chore="prune_spaces", using=self.using):
                    lifecycle.prune(spec, space, using=self.using, is_stopping=self._is_stopping)
        return 0

    def _go_over(self, scans: Mapping[Spec, Sequence[str]], *, chore: str) -> int:
        def go_over(spec: Spec) -> int:
            return reconcile.reconcile_once(
                spec,
                using=self.using,
                scans=scans[spec],
                quiet_seconds=self._quiet_seconds / len(scans),
            )

        return self._each(scans, go_over, chore=chore)

    def _each(self, of: Iterable[Spec], once: Callable[[Spec], int], *, chore: str) -> int:
        """Do a chore for each spec until the worker is to stop. An error ends it for one spec."""
        total = 0
        for spec in itertools.takewhile(lambda _: not self._is_stopping(), of):
            with apart(spec.key, chore=chore, using=self.using):
                total += once(spec)
        return total


@dataclass(slots=True)
class Seen:
    """What the last looks at a space found, and when the next ones are due.

    ``gap``: the key of a row that lacked vectors, or None. Times are by the monotonic clock.
    """

    gap: Any = None
    look_at: float = float("-inf")
    scan_at: float = float("-inf")
    scan_seconds: float = 0.0


class Filling:
    """Watches the live spaces, and remembers what one worker has seen of them."""

    def __init__(
        self,
        *,
        using: str,
        reconcile_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.using = using
        self.reconcile_seconds = reconcile_seconds
        self._clock = clock
        self._seen: defaultdict[int, Seen] = defaultdict(Seen)

    def look(self, spec: Spec, space: Space) -> int:
        """Tend a live space if its turn has come. Return how many jobs were added."""
        seen = self._seen[space.pk]
        if self._clock() < seen.look_at:
            return 0
        try:
            if space.state == Space.State.ACTIVE:
                self._tend_active(spec, space, seen)
                return 0
            return self._tend_building(spec, space, seen)
        except database.Busy:
            return 0  # a writer has locked the whole table

    def _tend_active(self, spec: Spec, space: Space, seen: Seen) -> None:
        """Build the indexes of the active space.

        Wait until its first fill is over, because rows that are stored during a build make it take
        many times as long. But a fill may take days, so wait at most for ``FIRST_FILL``.
        """
        same = Space.objects.using(self.using).filter(pk=space.pk)
        if space.is_partial and spaces.last_gap(spec, space, using=self.using) is None:
            same.update(is_partial=False)
        if (
            not same.filter(activated_at__gt=Now() - FIRST_FILL).exists()
            or indexes.is_complete(spec, space, using=self.using)
            or spaces.last_gap(spec, space, using=self.using) is None
        ):
            started = self._clock()
            if not indexes.build(spec, space, using=self.using):
                # Until there are enough rows for an index, each look counts them.
                self._rest(seen, started, least=INDEXED_SECONDS)

    def _tend_building(self, spec: Spec, space: Space, seen: Seen) -> int:
        """Switch to the space if it is full and indexed, or else enqueue its gaps."""
        with locks.session_lock(LOCK, space.pk, using=self.using) as is_ours:
            if is_ours and self._is_full(spec, space, seen):
                self._switch(spec, space, seen)
            elif is_ours:
                return self._find_more(spec, space, seen)
        return 0

    def _is_full(self, spec: Spec, space: Space, seen: Seen) -> bool:
        if seen.gap is not None:
            same = Q(pk=seen.gap)
            if spaces.last_gap(spec, space, within=same, using=self.using) is not None:
                return False
        started = self._clock()
        seen.gap = spaces.last_gap(spec, space, using=self.using)
        self._rest(seen, started)
        return seen.gap is None

    def _switch(self, spec: Spec, space: Space, seen: Seen) -> None:
        if self._is_held_up(spec, space, seen):
            return
        # Built last, because inserts are many times faster without indexes. As that takes time,
        # there may be gaps again.
        if indexes.build(spec, space, using=self.using) and (
            not self._is_full(spec, space, seen) or self._is_held_up(spec, space, seen)
        ):
            return
        if not indexes.is_complete(spec, space, using=self.using):
            return
        with spaces.last_look(space, using=self.using) as is_ours:
            is_full = is_ours and self._is_full(spec, space, seen)
            is_switched = is_full and spaces.activate(space, using=self.using)
        if is_switched:
            events.tell(events.SPACE_ACTIVATED, spec=spec.key, space=str(space))

    def _is_held_up(self, spec: Spec, space: Space, seen: Seen) -> bool:
        """Return whether a switch would lose many rows that have failed. Tell once.

        The new provider may be set up wrongly, and the former vectors are pruned some time after.
        """
        started = self._clock()
        failed = Job.objects.using(self.using).filter(OPEN_FAILURE, spec=spec.key)
        lost = failed.exists() and spaces.lost_by_switching(spec, space, using=self.using)
        if not lost:
            _told.clear((space.pk, self.using))
            return False
        if _told.is_new((space.pk, self.using), "held up"):
            events.tell(
                events.SPACE_HELD_UP,
                spec=spec.key,
                space=str(space),
                number=space.pk,
                count=lost,
            )
        self._rest(seen, started, least=HELD_UP_SECONDS)
        return True

    def _find_more(self, spec: Spec, space: Space, seen: Seen) -> int:
        """Go over the rows now, if no job covers the gap. Return how many jobs were added.

        A gap without a job means that the last scan passed the row too early, or that one is under
        way. This continues such a scan only if none of the jobs that it has added is waiting.
        """
        if self.reconcile_seconds <= 0:
            return 0
        scans = [ScanCursor.Scan.MISSING]
        is_under_way = scans[0] in reconcile.under_way([spec], using=self.using).get(spec, ())
        if is_under_way and reconcile.backlog(spec, using=self.using):
            return 0
        if not is_under_way and self._clock() < seen.scan_at:
            return 0
        with database.giving_way(self.using):
            is_gap = reconcile.missing(spec, [space], Q(pk=seen.gap), using=self.using)
        if not is_gap:
            return 0
        if not is_under_way:
            most = max(SCAN_SECONDS, self.reconcile_seconds)
            seen.scan_seconds = doubled(seen.scan_seconds, first=SCAN_SECONDS, most=most)
            seen.scan_at = self._clock() + seen.scan_seconds
        return reconcile.reconcile_once(spec, using=self.using, scans=scans)

    def _rest(self, seen: Seen, started: float, *, least: float = 0.0) -> None:
        ended = self._clock()
        seen.look_at = ended + max(least, RESTS * (ended - started))
