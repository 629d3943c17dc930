"""How far the reconciler's laps have come, and which of them are to go on."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from pgembed_django.models import Lap
from pgembed_django.specs import Spec

CHEAP_SWEEPS = (Lap.Sweep.MISSING, Lap.Sweep.ORPHANED)
ALL_SWEEPS = (*CHEAP_SWEEPS, Lap.Sweep.STALE)


def open_sweeps(spec: Spec, *, using: str) -> list[str]:
    """Return the sweeps that are to go on at once.

    These are the ones in the middle of the table, and the one that reads texts as long as not
    all rows are compared with a changed recipe.
    """
    return under_way([spec], using=using).get(spec, [])


def under_way(specs: Iterable[Spec], *, using: str) -> dict[Spec, list[str]]:
    """Return ``open_sweeps`` of the specs that have some. One statement, as it runs each second."""
    by_key = {spec.key: spec for spec in specs}
    may_be_open = Q(cursor__isnull=False) | Q(sweep=Lap.Sweep.STALE)
    laps = Lap.objects.using(using).filter(may_be_open, spec__in=by_key, sweep__in=ALL_SWEEPS)
    found: dict[Spec, list[str]] = {}
    for key, sweep, recipe in laps.order_by("pk").values_list("spec", "sweep", "finished_recipe"):
        spec = by_key[key]
        if sweep != Lap.Sweep.STALE or recipe != spec.recipe:
            found.setdefault(spec, []).append(sweep)
    return found


def rename(old: str, new: str, *, using: str) -> None:
    """Rename the laps of a spec, so that they go on under its new name."""
    laps = Lap.objects.using(using)
    laps.filter(spec=new).delete()
    laps.filter(spec=old).update(spec=new)


def forget(spec: str, *, using: str) -> None:
    """Delete the laps of a spec that is gone."""
    Lap.objects.using(using).filter(spec=spec).delete()


def restart(spec: Spec, sweep: str, *, using: str) -> None:
    """Let the next page be the first of a new lap."""
    Lap.objects.using(using).filter(spec=spec.key, sweep=sweep).update(cursor=None)
