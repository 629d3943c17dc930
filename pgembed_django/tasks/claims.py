"""Which tasks a worker claims: the highest priority first, and within it each tenant in turn.

How far the turns have come is in the worker's memory, so another worker may serve the same tenant.
What waits is looked up now and then. In between, claims go on where the last ones have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import IntegrityError

from pgembed_django.queue.handler import Ready, Setting
from pgembed_django.queue.jobs import Claim, Lease
from pgembed_django.queue.lanes import ANEW_SECONDS, LOWEST_LANE_EVERY, Claiming
from pgembed_django.tasks import limits, turns
from pgembed_django.tasks.limits import Exceeded, Room
from pgembed_django.tasks.turns import Lane, Started, Turn

if TYPE_CHECKING:
    from pgembed_django.tasks.handler import TaskHandler

LOOKED_AHEAD = 2
"""For how many claims the waiting tenants of a lane are looked up at once."""

MAX_ROUNDS = 4
"""How often a claim goes through a lane's tenants to fill the places that some have left free."""

MAX_KEYS = 10_000
"""How many tenants' last serial keys are remembered. Others begin with their first key again."""


@dataclass(slots=True)
class Waiting:
    """The tenants that wait in a lane, in the order of their turns."""

    tenants: dict[str, Turn]
    is_whole: bool
    """Whether these are all of them: then they share the places among themselves."""

    def share(self, places: int) -> list[Turn]:
        """Return whose turn it is, each with its share of some places."""
        share, rest = divmod(places, len(self.tenants)) if self.is_whole else (0, places)
        return [
            turn._replace(most=share + (number < rest))
            for number, turn in enumerate(self.tenants.values())
            if share or number < rest
        ]

    def after(self, given: Sequence[Turn], started: Sequence[Started]) -> str:
        """Note what has come of turns. Return the tenant behind whom the next turn is."""
        last = {one.tenant: one for one in started}
        counts = Counter(one.tenant for one in started)
        largest = max(turn.most for turn in given)
        for turn in sorted(given, key=lambda turn: turn.most):  # who got most is the last next time
            del self.tenants[turn.tenant]
            if self.is_whole and 0 < turn.most <= counts[turn.tenant]:
                self.tenants[turn.tenant] = _behind(turn, last[turn.tenant])
        return [turn.tenant for turn in given if turn.most == largest][-1]


def _behind(turn: Turn, last: Started) -> Turn:
    """Return a tenant's next turn, which begins behind the task that was started last."""
    return turn._replace(run_at=last.claim.run_at, id=last.claim.id, serial=last.serial or "")


@dataclass(slots=True)
class Place:
    """How far the turns of a lane have come. Unlike what waits, it is not looked up again."""

    tenant: str = ""
    """The one behind whom the next turn is."""
    claim: int = 0
    """The last claim that began here: queues take turns, too."""
    keys: dict[str, str] = field(default_factory=dict)
    """The last serial key of each tenant."""


class TaskClaiming(Claiming):
    """Claims tasks of the handler's queues."""

    _handler: TaskHandler

    def __init__(self, handler: TaskHandler, setting: Setting, lease: Lease) -> None:
        super().__init__(handler, setting, lease)
        self._limits = limits.declared()
        self._waiting: dict[Lane, Waiting | None] = {}
        """The lanes with tasks, as last looked up. None: their tenants not yet."""
        self._places: dict[Lane, Place] = {}
        self._anew_at = float("-inf")
        self._has_taken_all = False
        """Whether the last claim has looked for nothing but tasks without a key."""

    def next_due_seconds(self) -> float | None:
        """Return in how many seconds the next task is due."""
        return turns.next_due_seconds(self._handler.ready().specs, using=self._using)

    def others(self, ready: Ready, limit: int) -> list[Claim]:
        """Start up to ``limit`` due tasks that are no suspects."""
        if not (self._waiting or self._has_taken_all):
            claims = self._take_all(ready.specs, limit)
            self._has_taken_all = bool(claims)
            if claims:
                return claims
        self._has_taken_all = False
        claims = []
        if self._waiting and self._clock() < self._anew_at:
            claims = self._claim_in_lanes(ready.specs, limit)
        if not claims:
            self._waiting = dict.fromkeys(turns.lanes(ready.specs, using=self._using))
            self._anew_at = self._clock() + ANEW_SECONDS
            claims = self._claim_in_lanes(ready.specs, limit)
        if len(claims) < limit:
            self._waiting = {}  # there is nothing to go on with
        return claims

    def _take_all(self, queues: Sequence[str], limit: int) -> list[Claim]:
        """Start all that wait without a key, in one round trip, unless there are too many."""
        free = [one for one in queues if one not in self._limits]
        free = [one for one in free if self._handler.places(one) >= limit]
        if not free:
            return []
        started = turns.start_all(free, most=limit, lease=self._lease, using=self._using)
        return self._claims_of(started)

    def _claims_of(self, started: Sequence[Started]) -> list[Claim]:
        self._handler.take_calls(started)
        return [one.claim for one in started]

    def _claim_suspect(self, specs: Sequence[str], *, is_working: bool) -> list[Claim] | None:
        """Claim a suspect. That of a queue with limits counts there, too."""
        found = None
        for queues in self._by_limits(specs):
            try:
                with self._room(queues[0]) as room:
                    if room is not None and room.free <= 0:
                        continue
                    found = super()._claim_suspect(queues, is_working=is_working)
                    if room is not None and found:
                        room.take_suspect(found[0])
            except (IntegrityError, Exceeded):
                found = None  # its key has just begun to run, or its tenant is at its limit
            if found is not None:
                break
        return found

    def _by_limits(self, queues: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield the queues without limits together, and each of the others alone."""
        if free := [queue for queue in queues if queue not in self._limits]:
            yield free
        yield from ([queue] for queue in queues if queue in self._limits)

    def _room(self, queue: str) -> AbstractContextManager[Room | None]:
        """Return what tells how many tasks of a queue may start. None: it has no limits."""
        if (most := self._limits.get(queue)) is None:
            return nullcontext()
        return limits.room(queue, most, using=self._using)

    def _claim_in_lanes(self, queues: Sequence[str], limit: int) -> list[Claim]:
        direction = 1 if self._claims % LOWEST_LANE_EVERY == 0 else -1
        lanes = [lane for lane in self._waiting if lane.queue in queues]
        lanes.sort(key=lambda lane: (direction * lane.priority, self._place(lane).claim))
        claims: list[Claim] = []
        for lane in lanes:
            places = min(limit - len(claims), self._handler.places(lane.queue))
            if places > 0:
                self._place(lane).claim = self._claims
                with self._room(lane.queue) as room:
                    claims += self._take_turns(lane, places, room)
        return claims

    def _take_turns(self, lane: Lane, places: int, room: Room | None) -> list[Claim]:
        """Go through the tenants of a lane until all places are taken, or nobody is left."""
        claims: list[Claim] = []
        place = self._place(lane)
        for _ in range(MAX_ROUNDS):
            free = places - len(claims)
            if room is not None:
                free = min(free, room.free)
            if free <= 0:
                break
            waiting = self._waiting[lane]
            if waiting is None or not (waiting.tenants or waiting.is_whole):
                waiting = self._look(lane, most=LOOKED_AHEAD * free)
            if not waiting.tenants:
                break
            given = waiting.share(free)
            if room is not None:
                most = room.of_tenants([turn.tenant for turn in given])
                given = [turn._replace(most=min(turn.most, most[turn.tenant])) for turn in given]
            started = turns.start(lane, given, lease=self._lease, using=self._using)
            if room is not None:
                room.take([one.tenant for one in started])
            claims += self._claims_of(started)
            place.tenant = waiting.after(given, started)
            self._remember_keys(place, started)
        return claims

    def _look(self, lane: Lane, *, most: int) -> Waiting:
        """Look up who waits in a lane, from behind the tenant that was served last."""
        place = self._place(lane)
        tenants = turns.tenants(lane, served=place.tenant, most=most, using=self._using)
        found = {one: Turn(one, 0, serial=place.keys.get(one, "")) for one in tenants}
        waiting = self._waiting[lane] = Waiting(found, is_whole=len(tenants) < most)
        return waiting

    def _place(self, lane: Lane) -> Place:
        return self._places.setdefault(lane, Place())

    def _remember_keys(self, place: Place, started: Sequence[Started]) -> None:
        for one in started:
            if one.serial is not None:
                place.keys.pop(one.tenant, None)  # so that the one at the head is the oldest
                place.keys[one.tenant] = one.serial
        while len(place.keys) > MAX_KEYS:
            del place.keys[next(iter(place.keys))]
