"""From a due job to stored vectors. ``Pipeline.step`` is the walk of one saved row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from django.db import DatabaseError, InterfaceError

from pgembed_django import conf
from pgembed_django.pipeline.aside import Aside
from pgembed_django.pipeline.claiming import Claiming
from pgembed_django.pipeline.early_text import EarlyText
from pgembed_django.pipeline.embedding import Embedding
from pgembed_django.pipeline.holding import Holding
from pgembed_django.pipeline.live import Live
from pgembed_django.pipeline.planning import Planning
from pgembed_django.pipeline.staging import Staging
from pgembed_django.pipeline.storing import STOP_SECONDS, Storing
from pgembed_django.pipeline.units import Unit
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
        self.live = Live(specs, using=using, clock=clock)
        self.holding = Holding(using=using, settings=settings)
        self.embedding = Embedding(holding=self.holding, wake=wake, inline=inline, clock=clock)
        self.aside = Aside(holding=self.holding)
        self.staging = Staging(holding=self.holding, aside=self.aside, clock=clock)
        self.early_text = EarlyText(holding=self.holding, staging=self.staging, clock=clock)
        self.storing = Storing(
            holding=self.holding, aside=self.aside, live=self.live, wake=wake, inline=inline
        )
        self.planning = Planning(
            holding=self.holding, aside=self.aside, live=self.live, embedding=self.embedding
        )
        self.claiming = Claiming(
            holding=self.holding,
            aside=self.aside,
            live=self.live,
            embedding=self.embedding,
            planning=self.planning,
            storing=self.storing,
            worker_id=worker_id,
            clock=clock,
        )

    @property
    def completed(self) -> int:
        """How many units were stored."""
        return self.storing.completed

    def step(self, *, claim: bool = True) -> bool:
        """Do one round. Return whether anything moved.

        The work that is furthest along goes first, so that it does not wait for newer work. A
        row is claimed, its text is read and cut into chunks, and the new ones are sent in
        batches with other rows'. Later rounds collect the answers and finish it.
        """
        answered = self.embedding.collect()
        if answered:
            self.embedding.send()  # the provider goes on while the database is written to
        moved = self._finish() or answered
        if claim:
            moved |= self.claim()
            moved |= self.planning.step()
        moved |= self.embedding.send()
        self._look_after_the_late(answered=answered)
        return moved

    def claim(self) -> bool:
        """Claim as many live units as there is room for. Return whether there were any."""
        if self.live.read_if_old():
            self.embedding.follow(self.live)
            self.planning.look_again()
        return self.claiming.claim()

    def release_unsent(self) -> None:
        """Give back what no provider is working on, without spending an attempt."""
        in_flight = self.embedding.in_flight
        units = self.holding.units.values()
        self._release_units([one for one in units if one not in in_flight and not one.is_whole])
        self.staging.stage()
        self.holding.end_jobs()

    def release(self) -> None:
        """Store whole units, and give all other jobs back without spending an attempt."""
        with suppress(DatabaseError, InterfaceError):
            self.storing.finish()
            self.storing.step()
            self.storing.finish()
        units = self.holding.units.values()
        self._release_units([one for one in units if not one.is_being_stored])
        with suppress(DatabaseError, InterfaceError):
            self.staging.stage()
        self.holding.end_jobs(seconds=STOP_SECONDS)  # there is no next round

    def close(self) -> None:
        """Let the threads end."""
        self.storing.close()
        self.embedding.close()

    def _release_units(self, units: Iterable[Unit]) -> None:
        """Give units back without spending an attempt. Parts that are whole are kept."""
        for unit in units:
            self.embedding.failing.keep_whole(unit)
            self.holding.release(unit)

    def _finish(self) -> bool:
        """Store what came back, complete its jobs, and end the jobs that do not succeed."""
        moved = self.storing.step()
        self.staging.stage()
        # Only after staging: a unit that is given back resumes with what is staged.
        return self.holding.end_jobs() or moved

    def _look_after_the_late(self, *, answered: bool) -> None:
        """Store the text of units whose vectors take long. Give back units stranded by a pause."""
        # This round may have taken a while: do not blame the provider for it.
        if answered or self.embedding.is_answered:
            self.early_text.answered()
        self.early_text.step()
        stranded = self.embedding.stranded()
        if stranded:
            self.staging.store_text({one.unit for one in stranded})
            for one in stranded:
                self.embedding.failing.give_up(one)
