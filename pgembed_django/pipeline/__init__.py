"""From a due job to stored vectors. ``Pipeline.step`` is the walk of one saved row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice, takewhile

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf
from pgembed_django.pipeline.ahead import Ahead
from pgembed_django.pipeline.aside import Aside
from pgembed_django.pipeline.claiming import Claiming
from pgembed_django.pipeline.embedding import Embedding
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.planning import Planning
from pgembed_django.pipeline.storing import Storing
from pgembed_django.pipeline.units import Unit
from pgembed_django.specs import Spec

TEXT_AHEAD_SECONDS = 0.1
"""A unit whose vectors take longer than this has its text stored ahead of them."""

MAX_TEXT_AHEAD_SECONDS = 1.0
"""It waits for so long at the most while answers keep coming: its own may be next, and what is
stored ahead is written twice."""

LOCKED_SECONDS = 1.0
"""How soon what can be done later is tried again where somebody has locked its table."""


class Pipeline:
    """Claims units, embeds their chunks in batches across units, stores what came back."""

    def __init__(
        self,
        specs: Mapping[str, Spec],
        *,
        using: str,
        worker_id: int,
        settings: conf.Settings,
        wake: Callable[[], None] = lambda: None,
        inline: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holding = Holding(using=using, settings=settings)
        self.embedding = Embedding(holding=self.holding, wake=wake, inline=inline, clock=clock)
        self.aside = Aside(holding=self.holding)
        self.ahead = Ahead(holding=self.holding, aside=self.aside)
        self.storing = Storing(holding=self.holding, aside=self.aside, wake=wake, inline=inline)
        self.planning = Planning(holding=self.holding, aside=self.aside, embedding=self.embedding)
        self.claiming = Claiming(
            specs,
            holding=self.holding,
            aside=self.aside,
            embedding=self.embedding,
            planning=self.planning,
            storing=self.storing,
            worker_id=worker_id,
            clock=clock,
        )
        self._clock = clock
        self._rate_since = clock()
        self._rate_from = 0
        self._answered_at = float("-inf")
        self._staged_at = float("-inf")
        self._locked_until: dict[Spec, float] = {}

    @property
    def completed(self) -> int:
        """How many units were stored."""
        return self.storing.completed

    def step(self, *, claim: bool = True) -> bool:
        """Do one round, and tell whether anything moved.

        What came back from the providers is stored, and its jobs are completed. Then free
        capacity is filled: units are claimed, their texts read and cut into chunks, the
        chunks compared with what is stored, and those that are new sent off in batches.
        """
        moved = has_answer = self.embedding.take()
        if has_answer:
            self.embedding.send()  # the provider goes on while the database is written to
        moved |= self.storing.step()
        self._stage()
        # Not before: what is given back resumes with what is staged.
        moved |= self.holding.end_jobs()
        if claim:
            moved |= self.claiming.claim()
            moved |= self.planning.step()
        moved |= self.embedding.send()
        if has_answer:
            self._answered_at = self._clock()  # only now: all of this may have taken a while
        self._measure()
        self._store_text_ahead()
        self._step_aside()
        return moved

    def release_unsent(self) -> None:
        """Give back what is not with a provider just now, with no attempt spent."""
        in_flight = self.embedding.in_flight
        for unit in list(self.holding.units.values()):
            if unit not in in_flight and not unit.is_whole:
                self.holding.give_back(unit)
        self.holding.end_jobs()

    def release(self) -> None:
        """Store what is whole, and give every other job back with no attempt spent."""
        with suppress(DatabaseError, InterfaceError):
            self.storing.finish()
            self.storing.step()
            self.storing.finish()
            self._stage()
        for unit in list(self.holding.units.values()):
            if not unit.is_being_stored:
                self.holding.give_back(unit)
        self.holding.end_jobs()

    def close(self) -> None:
        """Let the threads end."""
        self.storing.close()
        self.embedding.close()

    def _stage(self) -> None:
        to_stage = self.holding.to_stage
        if to_stage and self._clock() >= self._staged_at:
            busy = self.ahead.stage(to_stage)
            self.holding.to_stage = [one for one in to_stage if one[0].spec in busy]
            self._staged_at = self._clock() + LOCKED_SECONDS if busy else float("-inf")

    def text_due_seconds(self) -> float | None:
        """Return when the next unit's text is to be stored ahead of its vectors, from now."""
        waiting = iter(self.holding.without_text.values())
        # The first is the oldest. Only where a table is locked may another one come before it.
        first = waiting if self._locked_until else islice(waiting, 1)
        due = min(map(self._text_tried_at, first), default=None)
        return None if due is None else due - self._clock()

    def _text_tried_at(self, unit: Unit) -> float:
        return max(self._text_due_at(unit), self._locked_until.get(unit.spec, float("-inf")))

    def _text_due_at(self, unit: Unit) -> float:
        flows_until = self._answered_at + TEXT_AHEAD_SECONDS
        latest = unit.started + MAX_TEXT_AHEAD_SECONDS
        return max(unit.started + TEXT_AHEAD_SECONDS, min(flows_until, latest))

    def _store_text_ahead(self) -> None:
        now = self._clock()
        waiting = self.holding.without_text.values()
        late = takewhile(lambda unit: self._text_due_at(unit) <= now, waiting)
        units = [unit for unit in late if self._locked_until.get(unit.spec, now) <= now]
        if units:
            busy = self.ahead.store_text(units)
            self._locked_until = {
                spec: until for spec, until in self._locked_until.items() if until > now
            } | dict.fromkeys(busy, now + LOCKED_SECONDS)

    def _step_aside(self) -> None:
        """Give back what waits for a paused provider, its text stored."""
        stuck = self.embedding.stuck()
        if stuck:
            self.ahead.store_text({unit for unit, _ in stuck})
            for unit, pool in stuck:
                self.embedding.do_without(unit, pool)

    def _measure(self) -> None:
        """Tell the claiming how fast units are completed, so that it keeps just ahead."""
        elapsed = self._clock() - self._rate_since
        if elapsed >= 1.0:
            self.claiming.units_per_second = (self.completed - self._rate_from) / elapsed
            self._rate_since, self._rate_from = self._clock(), self.completed
