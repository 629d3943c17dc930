"""Acts on jobs: run them, report the results in words, write the admin's log. No pages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DataError
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pgembed_django import conf, reembedding, specs
from pgembed_django.models import Job
from pgembed_django.models.job import OPEN_FAILURE, PENDING, RUNNING, UNSETTLED
from pgembed_django.models.shown import shown_database
from pgembed_django.queue import jobs

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Counts = Mapping[str, int]
"""How many jobs had which result, by the keys of ``PARTS``."""

PARTS: dict[str, _StrPromise] = {
    "retried": gettext_lazy("retried %d"),
    "dismissed": gettext_lazy("dismissed %d"),
    "reembedded": gettext_lazy("to be embedded again %d"),
    "released": gettext_lazy("released %d"),
    "forward": gettext_lazy("brought forward %d"),
    "failed": gettext_lazy("failed by it %d"),
    "superseded": gettext_lazy("superseded by newer work %d"),
    "gone": gettext_lazy("gone %d"),
    "busy": gettext_lazy("locked by an open write %d (try again)"),
    "after": gettext_lazy("not looked at yet %d"),
    "others": gettext_lazy("left alone %d"),
}
NOTHING_DONE = ("gone", "busy", "after", "others")


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a person can do to jobs. ``run`` takes ids of jobs that meet ``condition``."""

    permission: str
    title: _StrPromise
    question: _StrPromise
    counted_as: str
    condition: Q
    run: Callable[[Sequence[int]], Counts]
    explained: _StrPromise

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the viewer may do this."""
        return request.user.has_perm(f"pgembed.{self.permission}_job")


def using() -> str:
    """Return the alias of the database that the admin pages read from and write to."""
    return shown_database()


def retry(ids: Sequence[int], *, using: str) -> Counts:
    """Retry failed units, and return how many jobs had which result."""
    return asdict(jobs.retry_failed(ids, using=using, priorities=specs.priorities()))


def _retry(ids: Sequence[int]) -> Counts:
    return retry(ids, using=using())


def _dismiss(ids: Sequence[int]) -> Counts:
    return asdict(jobs.dismiss(ids, using=using()))


def _release(ids: Sequence[int]) -> Counts:
    settings = conf.current()
    return asdict(jobs.reap_held(ids, max_crashes=settings.max_crashes, using=using()))


def _reembed(ids: Sequence[int]) -> Counts:
    counts: Counter[str] = Counter()
    units: dict[str, list[str]] = defaultdict(list)
    found = Job.objects.using(using()).filter(pk__in=ids).values_list("spec", "source_pk")
    for key, source_pk in found:
        units[key].append(source_pk)
    for key, source_pks in units.items():
        spec = specs.get(key)
        if spec is None:
            counts["others"] += len(source_pks)
            continue
        counts += _reembed_units(spec, source_pks)
    counts["gone"] += len(ids) - sum(counts.values())
    return counts


def _reembed_units(spec: specs.Spec, source_pks: Sequence[str]) -> Counter[str]:
    try:
        busy = set(reembedding.reembed(spec, source_pks, using=using()).busy)
    except DataError:
        # A key is not of the key's type: it was typed by hand, or another field was the key
        # before. Halve the list until the bad keys are alone.
        middle = len(source_pks) // 2
        if not middle:
            return Counter(others=1)
        first, second = source_pks[:middle], source_pks[middle:]
        return _reembed_units(spec, first) + _reembed_units(spec, second)
    # Count jobs, not units: jobs were selected, and a unit may have several.
    return Counter("busy" if one in busy else "reembedded" for one in source_pks)


ACTS = {
    "retry": Act(
        permission="retry",
        title=gettext_lazy("Retry"),
        question=gettext_lazy("Retry %(count)s?"),
        counted_as="retried",
        condition=UNSETTLED | (PENDING & Q(run_at__gt=Now())),
        run=_retry,
        explained=gettext_lazy(
            "Each gets a new job with no attempts spent. Where newer work of a unit is waiting "
            "already, that is brought forward instead."
        ),
    ),
    "dismiss": Act(
        permission="dismiss",
        title=gettext_lazy("Dismiss"),
        question=gettext_lazy("Dismiss %(count)s?"),
        counted_as="dismissed",
        condition=OPEN_FAILURE,
        run=_dismiss,
        explained=gettext_lazy(
            "They are taken off the list and left alone for a week, unless somebody writes to the "
            "row or retries it."
        ),
    ),
    "reembed": Act(
        permission="operate",
        title=gettext_lazy("Re-embed"),
        question=gettext_lazy("Re-embed %(count)s?"),
        counted_as="reembedded",
        condition=Q(),
        run=_reembed,
        explained=gettext_lazy(
            "Their text is sent to the provider again, though it has not changed. Searches find "
            "what is stored until the new vectors are there."
        ),
    ),
    "release": Act(
        permission="operate",
        title=gettext_lazy("Release"),
        question=gettext_lazy("Take %(count)s from the worker?"),
        counted_as="released",
        condition=RUNNING,
        run=_release,
        explained=gettext_lazy(
            "For a worker that is dead. A crash is counted, and each job is next claimed alone. "
            "If the worker lives on after all, what it brings is discarded."
        ),
    ),
}


def told(act: str, counts: Counts) -> str:
    """Return the results in words: first the act's own count, then all others above zero."""
    first = ACTS[act].counted_as
    parts = [first, *(key for key in PARTS if key != first and counts.get(key))]
    text = ", ".join(str(PARTS[key]) % counts.get(key, 0) for key in parts)
    return f"{text[0].upper()}{text[1:]}."


def level(counts: Counts) -> int:
    """Return the message level for the results: a warning if nothing was done."""
    is_done = any(count for key, count in counts.items() if key not in NOTHING_DONE)
    return messages.SUCCESS if is_done else messages.WARNING


def log(request: HttpRequest, message: str, *, about: Iterable[Job] | str) -> None:
    """Write to the admin's log: one entry per job, or a single entry if ``about`` is a name."""
    content_type = ContentType.objects.get_for_model(Job)
    entries = (
        [(None, about)] if isinstance(about, str) else [(str(job.pk), str(job)) for job in about]
    )
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=request.user.pk or 0,
            content_type=content_type,
            object_id=object_id,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=message,
        )
        for object_id, name in entries
    )


def numbered(count: int, *, is_bounded: bool = False) -> str:
    """Return a count as text, with "more than" if counting stopped at a bound."""
    text = f"{count:,}"
    return _("more than %s") % text if is_bounded else text
