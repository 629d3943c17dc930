"""How far the lanes have been claimed, so that the next claim goes on from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgembed_django.queue import jobs
from pgembed_django.queue.jobs import Claim, Lane
from pgembed_django.specs import Spec


class Bookmarks:
    """Where the last claims ended. At first nowhere: the next begins at every lane's head.

    Jobs that were committed late or locked by a writer lie before that, and jobs may be in lanes
    that no job kind of this code has. A claim that begins anew finds them.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], Lane] = {}

    def to_go_on(self, specs: Iterable[Spec]) -> list[Lane]:
        """Return the lanes of some specs, each from where its claims ended. Empty: begin anew."""
        if not self._ended:
            return []
        known = [(spec.key, one) for spec in specs for one in jobs.priorities(spec.priority)]
        return [self._ended.get(lane) or Lane(*lane) for lane in known]

    def note(self, claims: Sequence[Claim], *, has_more: bool) -> None:
        """Note where a claim ended. If there was no more, there is nothing to go on with."""
        if not has_more:
            self.begin_anew()
            return
        # In order: the last one of each lane is kept.
        last = {(claim.spec, claim.priority): claim for claim in claims}
        self._ended |= {lane: Lane(*lane, one.run_at, one.id) for lane, one in last.items()}

    def begin_anew(self) -> None:
        """Let the next claim begin at the heads."""
        self._ended = {}
