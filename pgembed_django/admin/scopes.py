"""What a run over all that match goes over, in batches: jobs, or a spec's source rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.http import Http404
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from pgembed_django import specs
from pgembed_django.admin import actions, filters
from pgembed_django.maintenance import backfill, reconcile
from pgembed_django.models import Job

BATCH = 1000
MAX_COUNT = 100_000
"""Counts stop here, and the page says "more than"."""

SPEC_ROWS = "rows"
"""The value of the parameter ``scope`` for a spec's source rows. Without it: jobs."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """The results of one batch, and where the next one begins."""

    counts: actions.Counts = field(default_factory=dict)
    taken: int = 0
    """How many jobs or rows it went over."""
    next_cursor: int | None = None
    """None: it was the last batch."""
    awaits: str = ""
    """Tells people why the next batch has to wait. Empty: it need not."""


class Jobs:
    """The jobs that match the list's parameters, in the order of their ids."""

    resumed_from = None

    def __init__(self, act: str, given: Mapping[str, str]) -> None:
        self.act = actions.ACTS[act]
        self.parameters = filters.asked(given)
        # Without a status act on the failures, never on the whole table.
        parameters = {"status": "failed", **self.parameters}
        if act == "release":
            parameters["status"] = "running"
        self._jobs = filters.matching(
            Job.objects.using(actions.using()).filter(self.act.condition), parameters
        )

    @property
    def name(self) -> str:
        shown = (Truncator(value).chars(80) for value in self.parameters.values())
        return _("All that match: %s") % ", ".join(shown or [_("failed")])

    def count(self) -> int:
        return self._jobs.order_by()[: MAX_COUNT + 1].count()

    def noun(self, count: int) -> str:
        return ngettext("%s job", "%s jobs", count)

    def end(self) -> str:
        """Return the highest id, so that the run leaves out jobs that are added later."""
        last = (
            Job.objects.using(actions.using()).order_by("-pk").values_list("pk", flat=True).first()
        )
        return str(last or 0)

    def is_end(self, said: str) -> bool:
        """Return whether ``end`` can have returned this value."""
        return filters.is_id(said)

    def run(self, cursor: int, end: str) -> Batch:
        found = self._jobs.filter(pk__gt=cursor, pk__lte=int(end)).order_by("pk")
        ids = list(found.values_list("pk", flat=True)[:BATCH])
        next_cursor = ids[-1] if len(ids) == BATCH else None
        return Batch(counts=self.act.run(ids), taken=len(ids), next_cursor=next_cursor)


class Rows:
    """The source rows of a spec. The run is a backfill, like ``embed_backfill --force``.

    The cursor only counts the tries in a row that found all skipped rows still locked.
    """

    def __init__(self, act: str, given: Mapping[str, str]) -> None:
        spec = specs.get(given.get("spec", ""))
        if spec is None or act != "reembed":
            raise Http404
        self.act = actions.ACTS[act]
        self.spec = spec
        self.parameters = {"spec": spec.key, "scope": SPEC_ROWS}
        self._backfill = backfill.Backfill(spec, using=actions.using(), where=(), force=True)
        self.resumed_from = self._backfill.resumed_from
        self._begins_anew = bool(given.get("restart"))

    @property
    def name(self) -> str:
        return _("All rows of %s") % self.spec.key

    def count(self) -> int:
        return self._after() + len(self._backfill.left)

    def _after(self) -> int:
        return self._backfill.keys_left.order_by()[: MAX_COUNT + 1].count()

    def noun(self, count: int) -> str:
        return ngettext("%s row", "%s rows", count)

    def end(self) -> str:
        """Return when the last run ended. Once this differs, the present run has ended too."""
        return self._backfill.ended

    def is_end(self, said: str) -> bool:
        """Return True: an unknown value counts as that of another run."""
        return True

    def run(self, cursor: int, end: str) -> Batch:
        if self._begins_anew:
            self._backfill.restart()
        elif self._backfill.ended not in {"", end}:
            return Batch()  # the command or another person has completed this run
        step = self._backfill.step(limit=BATCH)
        if step is None:
            wait = _("It goes on when fewer than %s rows wait to be embedded.")
            return Batch(next_cursor=0, awaits=wait % f"{reconcile.MAX_BACKLOG:,}")
        if step.is_in_vain:
            return self._locked(tries=cursor + 1)
        counts = {"reembedded": step.enqueued}
        return Batch(counts=counts, taken=step.rows, next_cursor=None if step.is_last else 0)

    def _locked(self, *, tries: int) -> Batch:
        """Return the batch after so many tries in a row that found all skipped rows locked."""
        left = len(self._backfill.left)
        if tries >= backfill.TRIES:
            return Batch(counts={"busy": left, "after": self._after()})
        locked = ngettext(
            "%d row is locked by an open write: it is asked for again.",
            "%d rows are locked by an open write: they are asked for again.",
            left,
        )
        return Batch(next_cursor=tries, awaits=locked % left)
