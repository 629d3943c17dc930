"""Read and change the reconciler's laps: which have yet to end, and where each goes on."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from pgembed_django.models import Lap
from pgembed_django.specs import Spec

CHEAP_SWEEPS = (Lap.Sweep.MISSING, Lap.Sweep.ORPHANED)
ALL_SWEEPS = (*CHEAP_SWEEPS, Lap.Sweep.STALE)


def open_sweeps(spec: Spec, *, using: str) -> list[str]:
    """Return the sweeps that have to go on without waiting for their next turn.

    These are the sweeps in the middle of a table, and ``stale`` until it has compared all rows
    with a changed recipe.
    """
    return under_way([spec], using=using).get(spec, [])


def under_way(specs: Iterable[Spec], *, using: str) -> dict[Spec, list[str]]:
    """Return the ``open_sweeps`` of all specs that have any.

    In one statement, because this runs every second.
    """
    by_key = {spec.key: spec for spec in specs}
    may_be_open = Q(cursor__isnull=False) | Q(sweep=Lap.Sweep.STALE)
    laps = Lap.objects.using(using).filter(may_be_open, spec__in=by_key, sweep__in=ALL_SWEEPS)
    found: dict[Spec, list[str]] = {}
    for key, sweep, recipe in laps.order_by("pk").values_list("spec", "sweep", "finished_recipe"):
        spec = by_key[key]
        if sweep != Lap.Sweep.STALE or recipe != spec.recipe:
            found.setdefault(spec, []).append(sweep)
    return found


def begin(spec: Spec, sweep: str, *, using: str) -> None:
    """Ensure that there is a lap. A new one takes what is stored as made by the present recipe."""
    known = Lap.objects.using(using)
    if not known.filter(spec=spec.key, sweep=sweep).exists():
        recipes = {"recipe": spec.recipe, "finished_recipe": spec.recipe}
        known.bulk_create([Lap(spec=spec.key, sweep=sweep, **recipes)], ignore_conflicts=True)


def rename(old: str, new: str, *, using: str) -> None:
    """Rename the laps of a spec, so that they go on under its new name."""
    laps = Lap.objects.using(using)
    laps.filter(spec=new).delete()
    laps.filter(spec=old).update(spec=new)


def forget(spec: str, *, using: str) -> None:
    """Delete the laps of a spec that is gone."""
    Lap.objects.using(using).filter(spec=spec).delete()


def restart(spec: Spec, sweep: str, *, using: str) -> None:
    """Begin a new lap with the next page."""
    Lap.objects.using(using).filter(spec=spec.key, sweep=sweep).update(cursor=None)
