"""Claim due units, somewhat ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

from pgembed_django import events
from pgembed_django.pipeline.aside import Aside
from pgembed_django.pipeline.bookmarks import Bookmarks
from pgembed_django.pipeline.embedding import Embedding
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.live import Live
from pgembed_django.pipeline.patience import Patience
from pgembed_django.pipeline.planning import Planning
from pgembed_django.pipeline.storing import Storing
from pgembed_django.pipeline.units import Unit
from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim, Lease

LOWEST_LANE_EVERY = 8
"""One claim in this many begins with the lowest lane, or a swap under load would never end."""

ANEW_SECONDS = 0.05
"""How long claims continue after the last one while there is more. Then one begins at the heads."""

SUSPICIOUS_EVERY = 8
"""One claim in this many looks for suspicious jobs first; the others only if they find nothing."""

CLAIM_AHEAD_SECONDS = 0.4
"""How much work to claim ahead: enough for the provider, leaving the rest to other workers.

Less than ``early_text.MAX_LATE_SECONDS``, or claimed units would have to be written twice.
"""


class Claiming:
    """Hands ``planning`` as many units as there is room for."""

    def __init__(
        self,
        *,
        holding: Holding,
        aside: Aside,
        live: Live,
        embedding: Embedding,
        planning: Planning,
        storing: Storing,
        worker_id: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holding = holding
        self.aside = aside
        self.live = live
        self.embedding = embedding
        self.planning = planning
        self.storing = storing
        self._lease = Lease(worker_id, holding.settings.lease_seconds)
        self.has_more = False
        """Whether the last claim got as many as it wanted: other workers could help."""
        self._clock = clock
        self._measured_at = clock()
        self._measured_from = 0
        self._units_per_second = 0.0
        self._claims = 0
        self._bookmarks = Bookmarks()
        self._anew_at = float("-inf")
        self._is_suspects_turn = False
        self._patience = Patience()
        self._had_suspicious = False

    @property
    def wanted(self) -> int:
        """How many units to claim now. Zero until the last ones are planned.

        ``CLAIM_AHEAD_SECONDS`` of work, or two rounds of requests if that is more.
        """
        settings = self.holding.settings
        round_of_batches = settings.batch_size * settings.concurrency
        is_full = self.embedding.queued >= round_of_batches
        if is_full or self.planning.has_more or self.storing.is_behind:
            return 0
        if any(pool.is_down and not pool.is_lost for pool in self.embedding.pools):
            return settings.batch_size  # enough for the first one after an outage
        ahead = int(self._units_per_second * CLAIM_AHEAD_SECONDS)
        return min(settings.claim_limit, max(2 * round_of_batches, ahead))

    def claim(self) -> bool:
        """Claim jobs. Return whether there were any."""
        self._measure()
        limit = self.wanted
        if not limit:
            return False
        now = self._clock()
        self.embedding.look_at_quotas()
        started = time.perf_counter()
        claims = self.claim_up_to(limit)
        if claims:
            milliseconds = (time.perf_counter() - started) * 1000
            events.tell(
                events.JOBS_CLAIMED, about=claims, count=len(claims), milliseconds=milliseconds
            )
        self.has_more = len(claims) >= limit
        units = [Unit(claim, self.live.specs[claim.spec], now) for claim in claims]
        self.holding.add(units)
        self.planning.add(units)
        return bool(units)

    def next_due_seconds(self) -> float | None:
        """Return in how many seconds the next claimable job is due."""
        up, _ = self._reachable()
        return jobs.next_due_seconds(up, using=self.holding.using)

    def claim_up_to(self, limit: int) -> list[Claim]:
        """Start due jobs: one that must run alone, or up to ``limit`` others."""
        up, down = self._reachable()
        using = self.holding.using
        # Units that an open writer blocks are with no provider, and may stay for a long time.
        held = [unit for unit in self.holding.units.values() if not unit.is_blocked]
        if any(unit.claim.crashes for unit in held):
            return []
        if self._had_suspicious or self._claims % SUSPICIOUS_EVERY == 0:
            suspicious = self._claim_suspicious(up, held)
            if suspicious is not None:
                return suspicious
        claims = self._claim_in_lanes(up, limit)
        if not claims and down:
            # Their provider is paused, but their text can be stored for full-text search.
            claims = jobs.claim(
                down,
                limit=limit,
                lease=self._lease,
                only_new=True,
                using=using,
            )
        return claims or self._claim_suspicious(up, held) or []

    def _claim_in_lanes(self, specs: list[str], limit: int) -> list[Claim]:
        """Claim from where the last claim ended, or if that fails, and at times, from the heads."""
        using = self.holding.using
        self._claims += 1
        lowest_first = self._claims % LOWEST_LANE_EVERY == 0
        claims = []
        if self._clock() < self._anew_at and (
            lanes := self._bookmarks.to_go_on(self.live.specs[key] for key in specs)
        ):
            claims = jobs.claim_on(
                lanes, limit=limit, lease=self._lease, lowest_first=lowest_first, using=using
            )
        if not claims:
            self._bookmarks.begin_anew()
            self._anew_at = self._clock() + ANEW_SECONDS
            claims = jobs.claim(
                specs, limit=limit, lease=self._lease, lowest_first=lowest_first, using=using
            )
        self._bookmarks.note(claims, has_more=len(claims) >= limit)
        return claims

    def _measure(self) -> None:
        """Measure how fast units are completed, to know how far to claim ahead."""
        elapsed = self._clock() - self._measured_at
        if elapsed >= 1.0:
            self._units_per_second = (self.storing.completed - self._measured_from) / elapsed
            self._measured_at, self._measured_from = self._clock(), self.storing.completed

    def _claim_suspicious(self, specs: list[str], held: list[Unit]) -> list[Claim] | None:
        """Claim a job that must run alone. None: there is none. Empty: still waiting for it."""
        using = self.holding.using
        due = jobs.suspicious_due(specs, using=using)
        # A job that a worker held when it died is claimed alone, in turn with the others:
        # there may be hundreds of such jobs, and writes must not wait for all of them.
        self._is_suspects_turn = not self._is_suspects_turn
        self._had_suspicious = True
        if not due.suspect:
            self._patience.renew()
        elif self._is_suspects_turn and self._patience.lasts(self._clock()):
            if held:
                self._is_suspects_turn = False  # still theirs, once the others have ended
                return []
            suspects = jobs.claim_suspect(specs, lease=self._lease, using=using)
            if suspects:
                self._patience.renew()
                return suspects
            self._patience.end(self._clock())  # an open writer has it
        doubtful = []
        if due.doubtful:
            doubtful = jobs.claim_doubtful(specs, lease=self._lease, using=using)
        self._had_suspicious = bool(doubtful)
        return doubtful or None

    def _reachable(self) -> tuple[list[str], list[str]]:
        """Return the specs with a provider that can be asked now, and the others.

        Specs that a person has paused, or that were set aside, are in neither.
        """
        up: list[str] = []
        down: list[str] = []
        for key, spec in self.live.specs.items():
            if key in self.live.paused.specs or spec in self.aside:
                continue
            pools = [self.embedding.pool(space) for space in self.live.of(spec)]
            is_down = bool(pools) and all(pool.is_waiting for pool in pools)
            (down if is_down else up).append(key)
        return up, down
