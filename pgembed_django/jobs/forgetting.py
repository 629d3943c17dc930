"""Delete the jobs of a spec that is gone for good, with their history and its pause."""

from __future__ import annotations

from pgembed_django import database
from pgembed_django.models import Attempt, Job, Pause

BATCH = 5000


def forget(spec: str, *, using: str) -> None:
    """Delete all jobs of a spec, their history and its pause, in small batches.

    Raises:
        database.Busy: an open transaction has locked some of them.
    """
    for model in (Job, Attempt):
        rows, after = model._base_manager.using(using).filter(spec=spec), 0
        # By the primary key, as no index covers the specs of all jobs: it would not pay.
        while found := list(
            rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:BATCH]
        ):
            with database.giving_way(using):
                rows.filter(pk__in=found).delete()
            after = found[-1]
    Pause.objects.using(using).filter(what=Pause.What.SPEC, name=spec).delete()
