"""How far the lanes have been claimed, so that the next claim goes on from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgembed_django import jobs
from pgembed_django.jobs import Claim, Lane
from pgembed_django.specs import Spec


class Lanes:
    """Where the last claims have ended. Nowhere, at first: the next begins at every lane's head.

    What was committed late lies before that, and so does what a writer had locked, or what is in a
    lane that no kind of job of this code has. A claim that begins anew finds it.
    """

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], Lane] = {}

    def to_go_on(self, specs: Iterable[Spec]) -> list[Lane]:
        """Return the lanes of some specs, each from where it was claimed. Empty: begin anew."""
        if not self._ended:
            return []
        known = [(spec.key, one) for spec in specs for one in jobs.priorities(spec.priority)]
        return [self._ended.get(lane) or Lane(*lane) for lane in known]

    def note(self, claims: Sequence[Claim], *, has_more: bool) -> None:
        """Note where a claim has ended. Where there was no more, nothing is to be gone on with."""
        if not has_more:
            self.begin_anew()
            return
        # In their order: of each lane the last one is kept.
        last = {(claim.spec, claim.priority): claim for claim in claims}
        self._ended |= {lane: Lane(*lane, one.run_at, one.id) for lane, one in last.items()}

    def begin_anew(self) -> None:
        """Let the next claim begin at the heads."""
        self._ended = {}
