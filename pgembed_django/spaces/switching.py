"""Activate, cancel and reopen spaces. The switch of the searched space is one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import timedelta

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Now

from pgembed_django import locks
from pgembed_django.models import Lap, Space
from pgembed_django.spaces.lifecycle import number

MADE_BY = (
    "spec",
    "fingerprint",
    "provider",
    "backend",
    "model",
    "model_digest",
    "dimensions",
    "document_prefix",
    "query_prefix",
    "options",
)
"""The columns that a new space copies from the pruned one that it replaces."""

# Only one worker at a time checks whether a space is full, because that may read the whole table.
# The lock only saves work: ``activate`` takes row locks.
LOCK = "pgembed_switch"

# Between the last look for gaps and the switch, no unit may be stored without the new space.
LAST_LOOK = "pgembed_last_look"


def turn(space: Space, *, using: str) -> AbstractContextManager[bool]:
    """Keep other workers from checking the space. Yields False if one already is."""
    return locks.session_lock(LOCK, space.pk, using=using)


def last_look(space: Space, *, using: str) -> AbstractContextManager[bool]:
    """Keep units from being stored without the space, to see that it is full, and switch to it.

    Yields False if one is being stored without it now.
    """
    return locks.transaction_lock(LAST_LOOK, space.pk, using=using)


def put_off_switch(space_ids: Iterable[int], *, using: str) -> None:
    """Keep these spaces from becoming active by a last look, until the transaction ends.

    Then look whether one of them is active by now.
    """
    for space_id in sorted(space_ids):
        locks.share(LAST_LOOK, space_id, using=using)


def activate(space: Space, *, using: str, is_partial: bool = False) -> bool:
    """Make a building space the active one, and retire the former one, in one transaction.

    Returns False if another process has activated or retired it meanwhile.
    """
    with transaction.atomic(using=using):
        # Lock all spaces of the spec, so that one of two concurrent switches waits for the other.
        spaces = Space.objects.using(using).select_for_update().filter(spec=space.spec)
        states = dict(spaces.order_by("pk").values_list("pk", "state"))
        if states.get(space.pk) != Space.State.BUILDING:
            return False
        _retire(space.spec, Space.State.ACTIVE, using=using)
        Space.objects.using(using).filter(pk=space.pk).update(
            state=Space.State.ACTIVE, activated_at=Now(), is_partial=is_partial
        )
        if is_partial:
            # Some of its rows may have a former text: begin a lap that compares all of them.
            anew = {"recipe": "", "finished_recipe": "", "cursor": None}
            laps = Lap.objects.using(using)
            stale = Lap.Sweep.STALE
            if not laps.filter(spec=space.spec, sweep=stale).update(**anew):
                laps.bulk_create([Lap(spec=space.spec, sweep=stale, **anew)], ignore_conflicts=True)
    return True


def note_full(space: Space, *, using: str) -> None:
    """Note that a space which was activated early now has all its vectors."""
    Space.objects.using(using).filter(pk=space.pk).update(is_partial=False)


def cancel(spec_key: str, *, using: str) -> bool:
    """Retire the building space of a spec. Its vectors are pruned later."""
    return bool(_retire(spec_key, Space.State.BUILDING, using=using))


def reopen(space: Space, *, using: str) -> Space | None:
    """Reopen a retired space at a person's request: its gaps are filled, then it is activated.

    If its vectors are pruned, a new space with another number replaces it, because some vectors
    may still be there. Returns the space that is building. None: this one is not retired, or was
    replaced before.

    It keeps the time at which it was retired, so that units that were planned before then are
    planned again: chunks that they count on may have been pruned meanwhile.
    """
    every = Space.objects.using(using)
    with transaction.atomic(using=using):
        retired = every.select_for_update().filter(pk=space.pk, state=Space.State.RETIRED).first()
        if retired is None or renewed(retired, using=using):
            return None
        cancel(space.spec, using=using)
        if retired.pruned_at is None:
            every.filter(pk=space.pk).update(state=Space.State.BUILDING)
            return retired
        made = {name: getattr(retired, name) for name in MADE_BY}
        begun = Space(pk=number(using=using), state=Space.State.BUILDING, **made)
        # A spec's fingerprints are unique, so change the pruned space's. It gets the number of the
        # new space, for ``renewed``: that one's own fingerprint changes once its digest is known.
        every.filter(pk=space.pk).update(fingerprint=f"{retired.fingerprint} {begun.pk}")
        every.bulk_create([begun])  # sends no signals, like all our writes
        return begun


def renew(space: Space, *, using: str) -> Space | None:
    """Begin a new space for the model that answers now in place of a live space's.

    It has the same declaration, so its fingerprint tells them apart. Searches use the former space
    until it is full. Returns None if the space is not live any more.
    """
    every = Space.objects.using(using)
    with transaction.atomic(using=using):
        states = dict(every.select_for_update().filter(spec=space.spec).values_list("pk", "state"))
        if states.get(space.pk) not in (Space.State.ACTIVE, Space.State.BUILDING):
            return None
        cancel(space.spec, using=using)
        made = {name: getattr(space, name) for name in MADE_BY}
        begun = Space(pk=number(using=using), state=Space.State.BUILDING, **made)
        another = f"{space.fingerprint} renewed as {begun.pk}"
        begun.fingerprint = hashlib.sha256(another.encode()).hexdigest()
        every.bulk_create([begun])  # sends no signals, like all our writes
        return begun


def renewed(space: Space, *, using: str) -> Space | None:
    """Return the latest space that replaced a pruned one, or None."""
    _, _, begun_as = space.fingerprint.partition(" ")
    begun = Space.objects.using(using).filter(pk=int(begun_as)).first() if begun_as else None
    return begun and (renewed(begun, using=using) or begun)


def prunable(*, retired_for_seconds: float, using: str) -> list[Space]:
    """Return the spaces that have been retired for long enough to delete their vectors."""
    return list(
        Space.objects.using(using).filter(
            state=Space.State.RETIRED,
            pruned_at=None,
            retired_at__lt=Now() - Value(timedelta(seconds=retired_for_seconds)),
        )
    )


def mark_pruned(space: Space, *, using: str) -> bool:
    """Note that a retired space's vectors are deleted. Its row stays, to keep its number in use.

    Returns False if it has been reopened, even if it was retired again since then.
    """
    retired = Space.objects.using(using).filter(pk=space.pk, state=Space.State.RETIRED)
    with transaction.atomic(using=using):
        found = retired.select_for_update().first()
        if found is None or found.retired_at != space.retired_at:
            return False
        retired.update(pruned_at=Now())
        return True


def forget(spec_key: str, *, using: str) -> None:
    """Delete the spaces of a spec that is gone. Its table of vectors must be gone too."""
    Space.objects.using(using).filter(spec=spec_key).delete()


def _retire(spec_key: str, state: str, *, using: str) -> int:
    return (
        Space.objects.using(using)
        .filter(spec=spec_key, state=state)
        .update(state=Space.State.RETIRED, retired_at=Now())
    )
