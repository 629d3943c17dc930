"""Delete the remaining rows in our tables of specs whose model or @embeddable is gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.db.models import Count

from pgembed_django import spaces, specs
from pgembed_django import spaces, specs, store
from pgembed_django.models import Attempt, Job, Lap, Pause, Rollup, Space, StagedVector
from pgembed_django.queue import jobs, rollups
from pgembed_django.spaces import laps

HOLDS: Mapping[str, Any] = {
    "jobs": Job,
    "attempts": Attempt,
    "spaces": Space,
    "staged vectors": StagedVector,
    "laps": Lap,
    "sums for charts": Rollup,
}


def left(*, using: str) -> Mapping[str, Mapping[str, int]]:
    """Count the rows of specs that are no longer declared, by spec key and kind of row.

    Reads each of our tables once.
    """
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for what, model in HOLDS.items():
        counts = model._base_manager.using(using).values("spec").annotate(rows=Count("pk"))
        for one in counts.order_by():
            found[one["spec"]][what] = one["rows"]
    paused = Pause.objects.using(using).filter(what=Pause.What.SPEC).values_list("name")
    for [key] in paused:
        found[key]["pauses"] = 1
    declared = {spec.key for spec in specs.all()}
    return {key: found[key] for key in sorted(found) if key not in declared}


def forget(spec: str, *, using: str) -> None:
    """Delete a spec's rows in our tables. Its vectors are deleted with the generated table."""
    jobs.forget(spec, using=using)
    stored.unstage_all(spec, using=using)
    laps.forget(spec, using=using)
    rollups.forget(spec, using=using)
    spaces.forget(spec, using=using)
