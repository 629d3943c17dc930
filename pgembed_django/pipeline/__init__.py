"""From a due job to stored vectors. ``Pipeline.step`` is the walk of one saved row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf
from pgembed_django.pipeline.ahead import Ahead
from pgembed_django.pipeline.aside import Aside
from pgembed_django.pipeline.claiming import Claiming
from pgembed_django.pipeline.embedding import Embedding
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.planning import Planning
from pgembed_django.pipeline.storing import Storing
from pgembed_django.pipeline.text_ahead import TextAhead
from pgembed_django.specs import Spec


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
        self.ahead = Ahead(holding=self.holding, aside=self.aside, clock=clock)
        self.text_ahead = TextAhead(holding=self.holding, ahead=self.ahead, clock=clock)
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
        self.ahead.stage()
        # Not before: what is given back resumes with what is staged.
        moved |= self.holding.end_jobs()
        if claim:
            moved |= self.claiming.claim()
            moved |= self.planning.step()
        moved |= self.embedding.send()
        if has_answer:
            self.text_ahead.answered()  # only now: all of this may have taken a while
        self._measure()
        self.text_ahead.step()
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
            self.ahead.stage()
        for unit in list(self.holding.units.values()):
            if not unit.is_being_stored:
                self.holding.give_back(unit)
        self.holding.end_jobs()

    def close(self) -> None:
        """Let the threads end."""
        self.storing.close()
        self.embedding.close()

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
