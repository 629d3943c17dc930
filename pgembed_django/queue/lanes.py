"""Which jobs a worker claims: in which lane it goes on, and when it looks for a suspect.

A lane is a spec's jobs of one priority, in the order of ``run_at``. A suspect is a job with which a
worker died or a provider went down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgembed_django.core.adapting import doubled
from pgembed_django.models.job import LANES
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim, Lane, Lease

if TYPE_CHECKING:
    from pgembed_django.queue.handler import Handler, Ready, Setting

LOWEST_LANE_EVERY = 8
"""One claim in this many begins with the lowest lane, or a swap under load would never end."""

ANEW_SECONDS = 0.05
"""How long claims continue after the last one while there is more. Then one begins at the heads."""

SUSPECTS_EVERY = 8
"""One claim in this many looks for a suspect first. While there are some, each other one does."""

MAX_DRAIN_SECONDS = 120.0
"""The longest wait for the held jobs, and after that for a suspect."""


class Claiming:
    """Claims a handler's jobs: suspects alone, all others as a subclass finds them."""

    def __init__(self, handler: Handler, setting: Setting, lease: Lease) -> None:
        self._handler = handler
        self._setting = setting
        self._lease = lease
        self._table = handler.table
        self._using = setting.using
        self._clock = setting.clock
        self._claims = 0
        self._drain_ends_at: float | None = None
        self._drain_seconds = 0.0
        self._others_until = float("-inf")
        self._suspects_from = 0
        """The claim that looks for a suspect first."""

    def next_due_seconds(self) -> float | None:
        """Return in how many seconds the next claimable job is due."""
        raise NotImplementedError

    def others(self, ready: Ready, limit: int) -> list[Claim]:
        """Start up to ``limit`` due jobs that are no suspects."""
        raise NotImplementedError

    def up_to(self, limit: int) -> list[Claim]:
        """Start due jobs: one suspect, or up to ``limit`` others.

        A suspect and the others take turns, as there may be hundreds of suspects. It waits for the
        held jobs to end, and nothing is claimed beside one with which a worker died.
        """
        ready = self._handler.ready()
        # Jobs that an open writer blocks are with no handler, and may stay for a long time.
        working = [job.claim for job in self._setting.held.jobs.values() if not job.was_blocked]
        if [claim for claim in working if claim.crashes]:
            return []
        if self._claims >= self._suspects_from and self._clock() >= self._others_until:
            suspects = self._claim_suspect(ready.specs, is_working=bool(working))
            if suspects:
                self._suspects_from = self._claims + 1
                self._drain_ends_at, self._drain_seconds = None, 0.0
                return suspects
            if suspects is not None and self._drains():
                return []
            self._suspects_from = self._claims + SUSPECTS_EVERY
        self._claims += 1
        return (
            self.others(ready, limit)
            or self._claim_suspect(ready.specs, is_working=bool(working))
            or []
        )

    def _drains(self) -> bool:
        """Return whether to wait for the held jobs, so that a suspect can run alone.

        For a second at first, then twice as long each time. In between the others go on for as
        long: one long job must not stop them all.
        """
        now = self._clock()
        if self._drain_ends_at is None:
            self._drain_seconds = doubled(self._drain_seconds, first=1.0, most=MAX_DRAIN_SECONDS)
            self._drain_ends_at = now + self._drain_seconds
        if now < self._drain_ends_at:
            return True
        self._drain_ends_at = None
        self._others_until = now + self._drain_seconds
        return False

    def _claim_suspect(self, specs: Sequence[str], *, is_working: bool) -> list[Claim] | None:
        """Claim a suspect. Return None if there is none, and [] if held jobs must end first."""
        if not jobs.is_suspect_due(specs, using=self._using, table=self._table):
            return None
        if is_working:
            return []
        found = jobs.claim_suspect(specs, lease=self._lease, using=self._using, table=self._table)
        return found or None


class LaneClaiming(Claiming):
    """Claims along lanes: the highest priority first, then the oldest."""

    def __init__(self, handler: Handler, setting: Setting, lease: Lease) -> None:
        super().__init__(handler, setting, lease)
        self._ended: dict[tuple[str, int], Lane] = {}
        """Where the last claims ended, by lane. Jobs that were committed late or locked by a writer
        lie before that, or in lanes that no job kind of this code has. If it is empty, the next
        claim begins at every lane's head, and finds them."""
        self._anew_at = float("-inf")

    def next_due_seconds(self) -> float | None:
        """Return in how many seconds the next claimable job is due."""
        return jobs.next_due_seconds(self._handler.ready().specs, using=self._using)

    def others(self, ready: Ready, limit: int) -> list[Claim]:
        """Start up to ``limit`` due jobs that are no suspects."""
        claims = self._claim_in_lanes(ready.specs, limit)
        if not claims and ready.unstarted:
            claims = jobs.claim(
                ready.unstarted, limit=limit, lease=self._lease, only_new=True, using=self._using
            )
        return claims

    def _claim_in_lanes(self, specs: Sequence[str], limit: int) -> list[Claim]:
        """Claim from where the last claim ended, or if that fails, and at times, from the heads."""
        lowest_first = self._claims % LOWEST_LANE_EVERY == 0
        claims = []
        if self._ended and self._clock() < self._anew_at:
            priorities, of_kinds = self._handler.specs, {*LANES.values()}
            known = [(spec, priorities[spec] + of_kind) for spec in specs for of_kind in of_kinds]
            claims = jobs.claim(
                specs,
                lanes=[self._ended.get(lane) or Lane(*lane) for lane in known],
                limit=limit,
                lease=self._lease,
                lowest_first=lowest_first,
                using=self._using,
            )
        if not claims:
            self._ended = {}
            self._anew_at = self._clock() + ANEW_SECONDS
            claims = jobs.claim(
                specs, limit=limit, lease=self._lease, lowest_first=lowest_first, using=self._using
            )
        if len(claims) < limit:
            self._ended = {}  # there is nothing to go on with
        else:
            # In order: the last one of each lane is kept.
            last = {(one.spec, one.priority): one for one in claims}
            self._ended |= {lane: Lane(*lane, one.run_at, one.id) for lane, one in last.items()}
        return claims
