"""The handler of embeddings: from a claimed job to stored vectors.

``advance``, ``collect`` and ``writing`` are the walk of one saved row. Its text is read and cut
into chunks, and the new ones are sent in batches with other rows'. Later rounds collect the
answers. What is whole is written in the transaction that completes its job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.db import DatabaseError

from pgembed_django import capture, conf, events, spaces, store
from pgembed_django.core import faults
from pgembed_django.core.faults import Fault
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.embedding import outcomes, writer
from pgembed_django.embedding.embedder import Embedder
from pgembed_django.embedding.planner import Planner
from pgembed_django.embedding.pool import Pool
from pgembed_django.embedding.units import Live, State, Stored, Unit, Units, by_spec
from pgembed_django.embedding.writer import Writer
from pgembed_django.providers import NotInstalled
from pgembed_django.providers.local import LocalProvider
from pgembed_django.queue.completing import Completion
from pgembed_django.queue.handler import Handler, Hindrances, Ready, Setting, Write
from pgembed_django.queue.in_flight import HeldJob
from pgembed_django.queue.jobs import Claim
from pgembed_django.queue.maintenance import Chore
from pgembed_django.signals import embedded as embedded_signal
from pgembed_django.spaces import repairs
from pgembed_django.spaces.ripples import Expander
from pgembed_django.spaces.upkeep import Upkeep
from pgembed_django.triggers import installed

FOLLOW_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""How long, and how often, to try a renaming that another process or a lock puts off."""

RIPPLES_SECONDS = 0.1
"""How soon to look for ripples if each claim brings jobs."""


class EmbeddingHandler(Handler):
    """Embeds the chunks of units in batches across units, and stores what came back."""

    is_pipelined = True  # its statements are sent by ``database``

    def __init__(
        self, worked_on: Mapping[str, Spec], *, using: str, settings: conf.Settings | None = None
    ) -> None:
        self.worked_on = worked_on
        self.using = using
        self.specs = {key: spec.priority for key, spec in worked_on.items()}
        self.live = Live(worked_on, using=using)
        self.upkeep = Upkeep(worked_on, using=using, settings=settings or conf.current())

    def prepare(self) -> None:
        """Advance sequences, follow renamings, open spaces, and log drifted triggers."""
        using = self.using
        repairs.advance_sequences(using=using)
        # Before spaces are opened: one for the new name would take the place of the former one's.
        until = time.monotonic() + FOLLOW_SECONDS
        while not repairs.follow_renames(using=using) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        for spec in self.worked_on.values():
            spaces.ensure(spec, using=using)
            spaces.recognize(spec, using=using, only_exchanged=True)
        for key, states in installed.drifted(self.worked_on, using=using).items():
            events.tell(events.TRIGGERS_AMISS, spec=key, states=", ".join(states), database=using)

    def warm_up(self) -> None:
        """Load the models of live spaces."""
        spaces.warm_up(self.worked_on.values(), using=self.using)

    def begin(self, setting: Setting) -> None:
        """Make the rooms that units walk through."""
        super().begin(setting)
        using, clock = setting.using, setting.clock
        self.clock = clock
        self.settings = setting.settings
        self.live = Live(self.worked_on, using=using, clock=clock)
        self.ripples = Expander(self.worked_on.values(), using=using, clock=clock)
        self._ripples_at = float("-inf")
        self.units = Units(setting.held, using=using, settings=setting.settings)
        self.writer = Writer(units=self.units, clock=clock)
        self.embedder = Embedder(
            units=self.units,
            writer=self.writer,
            wake=setting.wake,
            inline=setting.inline,
            clock=clock,
        )
        self.planner = Planner(
            units=self.units, live=self.live, embedder=self.embedder, writer=self.writer
        )

    # Which jobs it wants

    @property
    def room(self) -> int:
        """How many units to claim now: two rounds of requests. Zero until the last are planned."""
        settings = self.settings
        pools = self.embedder.pools
        least = settings.batch_size * settings.concurrency
        # A model on a device takes larger batches, and a fleet of them more at once.
        busy = [
            pool.provider.batch_size * pool.concurrency
            for pool in pools
            if pool.provider.concurrency
        ]
        round_of_batches = max([least, *busy])
        is_full = sum([len(pool.queue) for pool in pools]) >= round_of_batches
        is_behind = self.held.waiting >= round_of_batches
        if is_full or self.planner.unread or is_behind:
            return 0
        if [pool for pool in pools if pool.pause_seconds and not pool.is_lost]:
            return settings.batch_size  # enough for the first one after an outage
        return min(settings.claim_limit, 2 * round_of_batches)

    def refresh(self) -> None:
        """Read the live spaces again after a while, and find quotas that are used up."""
        if self.live.read_if_old():
            self.embedder.follow(self.live)
            self.planner.look_again()
        self.embedder.look_at_quotas()

    def ready(self) -> Ready:
        """Return the specs with a provider that can be asked now.

        Of the others, the text of new rows can be stored for full-text search. Specs that a person
        has paused, or that were set aside, are in neither.
        """
        left_alone = {spec.key for spec in self.units.quarantined} | self.live.paused.specs.keys()
        specs = [key for key in self.worked_on if key not in left_alone]
        waiting = {pool for pool in self.embedder.pools if pool.is_waiting}
        if not waiting:
            return Ready(specs)
        pools = {key: self.embedder.pools_of(self.live.spaces.get(key, ())) for key in specs}
        down = [key for key in specs if pools[key] and pools[key] <= waiting]
        return Ready([key for key in specs if key not in down], down)

    def take(self, claims: Sequence[Claim]) -> None:
        """Take in claimed units. They are read in ``advance``."""
        # At once if it may fall asleep or was woken for a ripple, else soon: a look in each round
        # would cost all writes time.
        wait = RIPPLES_SECONDS if claims else 0.0
        self._ripples_at = min(self._ripples_at, self.clock() + wait)
        for claim in claims:
            unit = Unit(claim, self.worked_on[claim.spec])
            self.units.by_id[claim.id] = unit
            self.planner.unread.append(unit)

    # One round of the loop

    def collect(self) -> bool:
        """Hand answers to their units."""
        answered = self.embedder.collect()
        if self.units.failed:
            outcomes.end_failed(self.units, self.writer)
        return answered

    def save_progress(self) -> None:
        """Stage what batches brought for units that wait for more of them."""
        if self.writer.to_stage:
            self.writer.save_progress()

    def advance(self, *, may_begin: bool) -> bool:
        """Plan and send. Expand a page of ripples. Store the text of late units."""
        moved = may_begin and self.planner.step()
        if may_begin and self.clock() >= self._ripples_at:
            moved |= self._expand_ripples()
        moved |= self.embedder.send()
        if self.units.failed:
            outcomes.end_failed(self.units, self.writer)
        if self._text_due_seconds <= 0:
            self.writer.store_late_texts()
        return moved

    # How finished jobs end

    def writing(self, finished: Sequence[HeldJob]) -> Write:
        """Begin to store the chunks and vectors of whole units: see ``writer``."""
        write = writer.begin([job.result for job in finished], using=self.using)
        return lambda ours: {
            unit.claim.id: unit.chunks for unit in write([job.result for job in ours])
        }

    def can_write(self, spec: str) -> bool:
        """Return whether the spec's tables are as declared."""
        return store.is_fit(self.worked_on[spec], using=self.using)

    def completed(self, done: Completion) -> None:
        """Count and log stored units, and tell the project's code of them."""
        stored = Stored([job.result for job in done.completed], done.waited)
        kept = [unit for unit in stored.units if unit.state is not State.GONE]
        embedded = reused = 0
        for unit in stored.units:
            unit.state = State.STORED
            embedded += unit.embedded
            reused += unit.reused
            waited = done.waited.get(unit.claim.id)
            self.held.tally.completed(unit.spec.key, waited=waited)
        events.tell(
            events.JOBS_COMPLETED,
            about=stored,
            count=len(stored.units),
            embedded=embedded,
            reused=reused,
            milliseconds=done.seconds * 1000,
        )
        self._send_signal(kept)

    def given_back(self, jobs: Sequence[HeldJob]) -> None:
        """Read the live spaces again: one was opened after these units were planned."""
        for job in jobs:
            job.result.state = State.STORED
        self.live.outdate()

    def refused(self, job: HeldJob, error: Exception, *, can_write: bool) -> None:
        """Set the spec aside if its tables are not as declared, or else blame the unit."""
        unit: Unit = job.result
        if not can_write:
            self.units.quarantine(unit.spec, error)
            self.writer.set_aside(unit)
            self.units.give_back([unit])
            return
        if faults.is_nobodys(error):
            self.writer.set_aside(unit)  # it is put off, and goes on from there
        super().refused(job, error, can_write=can_write)

    # What is lost or given back

    def drop(self, job_ids: Iterable[int]) -> None:
        """Forget units that have ended, or are another worker's now."""
        dropped = [job_id for job_id in job_ids if self.units.by_id.pop(job_id, None)]
        self.writer.drop(dropped)

    def leave(self, job_ids: Iterable[int]) -> None:
        """Keep the whole parts of units that are about to be given back."""
        for job_id in job_ids:
            if unit := self.units.by_id.get(job_id):
                self.writer.keep_whole(unit)

    def awaited(self) -> Collection[int]:
        """Return the ids of units that are with a provider now."""
        return {unit.claim.id for unit in self.embedder.in_flight}

    # When it next wants to be called

    @property
    def wait_seconds(self) -> float:
        """The seconds until a provider may be asked again, a text is late, or a ripple is due."""
        waits = [pool.paused_seconds for pool in self.embedder.pools if pool.paused_seconds]
        return min([*waits, self._text_due_seconds, self.ripples.due_at - self.clock()])

    @property
    def _text_due_seconds(self) -> float:
        """The seconds until the text of a unit is to be stored without its vectors."""
        first = next(iter(self.writer.without_text.values()), None)
        return first.text_due - self.clock() if first else float("inf")

    @property
    def is_waiting(self) -> bool:
        """Whether a request is in flight."""
        return bool(self.embedder.batches)

    @property
    def has_unbegun(self) -> bool:
        """Whether some claimed units are not read yet."""
        return bool(self.planner.unread)

    # Around the loop

    @property
    def known(self) -> Collection[str]:
        """The keys of all specs, also those that this worker leaves to others."""
        return [spec.key for spec in specs.all()]

    @property
    def app_labels(self) -> Collection[str]:
        """The apps of the models, and of their tables of vectors."""
        return {
            model._meta.app_label
            for spec in self.worked_on.values()
            for model in (spec.model, spec.embedding_model)
        }

    def chores(self, is_stopping: Callable[[], bool]) -> tuple[Sequence[Chore], Sequence[Chore]]:
        """Return what looks for gaps, and what tends the spaces."""
        short, long = self.upkeep.chores(is_stopping)
        return short, [*long, capture.chore(using=self.using)]

    def endless_chores(self, is_stopping: Callable[[], bool]) -> Sequence[Chore]:
        """Return what reads the write-ahead log."""
        return capture.endless_chores(using=self.using, is_stopping=is_stopping)

    def chores_of_drain(self) -> Sequence[Callable[[], int]]:
        """Look for gaps, and build, switch and prune spaces."""
        streamer = capture.Streamer(using=self.using)
        return [streamer.catch_up, *self.upkeep.chores_of_drain(), self._outdate]

    def hindrances(self, *, for_people: bool = False) -> Hindrances:
        """Return the providers that are down or paused by a person, and the specs set aside."""
        name = conf.current().provider_name if for_people else conf.provider_key
        pools = list(self._named(name))
        down = {named: pool.reason for named, pool in pools if pool.is_down}
        by_hand = {
            named: f"Paused by {pool.paused_by}"
            for named, pool in pools
            if pool.paused_by is not None
        }
        return Hindrances(
            by_hand | down,
            {named: pool.paused_seconds for named, pool in pools if pool.is_down},
            {spec.key: why for spec, why in list(self.units.quarantined.items())},
        )

    def executors(self, *, for_people: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return what the executors of its providers are at, those that were used."""
        name = conf.current().provider_name if for_people else conf.provider_key
        found = {}
        for named, pool in self._named(name):
            provider = pool.provider
            if isinstance(provider, LocalProvider) and (status := provider.executor_status()):
                # Providers of one name share their executor, unless their options differ by more
                # than prefixes, as those of the former and of the next space may.
                found[named, repr(provider.recipe)] = {"provider": named, **asdict(status)}
        return [*found.values()]

    def close(self) -> None:
        """Let the providers' threads end."""
        self.embedder.close()

    def _named(self, name: Callable[[str, str, int], str]) -> Iterator[tuple[str, Pool]]:
        """Yield the pools with their providers' names.

        That of a lost one also names its space, if the same provider still serves another space.
        """
        pools = [
            (name(pool.provider.alias, pool.provider.model, pool.provider.dimensions), pool)
            for pool in self.embedder.pools
        ]
        serving = {named for named, pool in pools if not pool.is_lost}
        for named, pool in pools:
            if isinstance(pool.provider, NotInstalled) and named in serving:
                yield conf.lost_name(named, pool.provider.space_id), pool
            else:
                yield named, pool

    def _send_signal(self, stored: Iterable[Unit]) -> None:
        if not embedded_signal.receivers:
            return
        for spec, units in by_spec(stored).items():
            keys = [unit.claim.source_pk for unit in units]
            embedded_signal.send_robust(spec.model, spec=spec.key, keys=keys, using=self.using)

    def _expand_ripples(self) -> bool:
        """Enqueue a page of the units whose related rows have changed. Return whether any moved."""
        spec = self.ripples.next_spec(self.units.quarantined)
        if spec is None:
            self._ripples_at = float("inf")  # until the next claim
            return False
        try:
            return self.ripples.expand(spec)
        except DatabaseError as error:
            if faults.of(error) in {Fault.OUTAGE, Fault.OURS, Fault.TOO_SLOW, Fault.PASSING}:
                raise
            self.units.quarantine(spec, error)  # the other specs go on
            return False

    def _outdate(self) -> int:
        """Read the live spaces again: what a retired one's provider lacks is of no interest."""
        self.live.outdate()
        return 0
