"""From a due job to stored vectors. ``Pipeline.step`` is the walk of one saved row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf
from pgembed_django.pipeline import transactions
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
"""While answers keep coming, its turn will soon come: it would only be written twice."""


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
        self.storing = Storing(holding=self.holding, wake=wake, inline=inline)
        self.planning = Planning(holding=self.holding, embedding=self.embedding)
        self.claiming = Claiming(
            specs,
            holding=self.holding,
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
        for unit in list(self.holding.units.values()):
            if not unit.is_being_stored:
                self.holding.give_back(unit)
        self.holding.end_jobs()

    def close(self) -> None:
        """Let the threads end."""
        self.storing.close()
        self.embedding.close()

    def _stage(self) -> None:
        if self.embedding.to_stage:
            transactions.stage(self.holding, self.embedding.to_stage)
            self.embedding.to_stage.clear()

    def text_due_seconds(self) -> float | None:
        """Return when the next unit's text is to be stored ahead of its vectors, from now."""
        oldest = next(iter(self.holding.without_text.values()), None)
        return None if oldest is None else self._text_due_at(oldest) - self._clock()

    def _text_due_at(self, unit: Unit) -> float:
        flows_until = self._answered_at + TEXT_AHEAD_SECONDS
        latest = unit.started + MAX_TEXT_AHEAD_SECONDS
        return max(unit.started + TEXT_AHEAD_SECONDS, min(flows_until, latest))

    def _store_text_ahead(self) -> None:
        now = self._clock()
        waiting = self.holding.without_text.values()
        late = list(takewhile(lambda unit: self._text_due_at(unit) <= now, waiting))
        if late:
            transactions.store_text(self.holding, late)

    def _step_aside(self) -> None:
        """Give back what waits for a paused provider, its text stored."""
        stuck = self.embedding.stuck()
        if stuck:
            transactions.store_text(self.holding, {unit for unit, _ in stuck})
            for unit, pool in stuck:
                self.embedding.do_without(unit, pool)

    def _measure(self) -> None:
        """Tell the claiming how fast units are completed, so that it keeps just ahead."""
        elapsed = self._clock() - self._rate_since
        if elapsed >= 1.0:
            self.claiming.units_per_second = (self.completed - self._rate_from) / elapsed
            self._rate_since, self._rate_from = self._clock(), self.completed
