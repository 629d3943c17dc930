"""Activate, cancel and reopen spaces. One transaction changes which space is searched."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Now

from pgembed_django.database import locks
from pgembed_django.models import Space
from pgembed_django.spaces.opening import number

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
"""The columns that a new space copies from the pruned one it replaces."""

# Only one worker looks whether a space is full, as that may read the whole table. The lock only
# saves work: ``activate`` has row locks of its own.
LOCK = "pgembed_switch"


def turn(space: Space, *, using: str) -> AbstractContextManager[bool]:
    """Keep other workers from looking at the space. Yields False if one already is."""
    return locks.session_lock(LOCK, space.pk, using=using)


def activate(space: Space, *, using: str, is_partial: bool = False) -> bool:
    """Make a building space the active one, and retire the one before, in one transaction.

    Returns False where another process has activated or retired it meanwhile.
    """
    with transaction.atomic(using=using):
        # Lock all spaces of the spec, so that of two switches one waits for the other.
        spaces = Space.objects.using(using).select_for_update().filter(spec=space.spec)
        states = dict(spaces.order_by("pk").values_list("pk", "state"))
        if states.get(space.pk) != Space.State.BUILDING:
            return False
        _retire(space.spec, Space.State.ACTIVE, using=using)
        Space.objects.using(using).filter(pk=space.pk).update(
            state=Space.State.ACTIVE, activated_at=Now(), is_partial=is_partial
        )
    return True


def note_full(space: Space, *, using: str) -> None:
    """Note that a space which was switched to early has all its vectors now."""
    Space.objects.using(using).filter(pk=space.pk).update(is_partial=False)


def cancel(spec_key: str, *, using: str) -> bool:
    """Retire the building space of a spec. Its vectors are pruned later."""
    return bool(_retire(spec_key, Space.State.BUILDING, using=using))


def reopen(space: Space, *, using: str) -> Space | None:
    """Build a retired space again, as a person asked: its gaps are filled, then it is activated.

    One whose vectors are pruned is begun anew under another number, as some may still be there.
    Returns the space that is built. None where this one is not retired, or was begun anew before.
    """
    every = Space.objects.using(using)
    with transaction.atomic(using=using):
        retired = every.select_for_update().filter(pk=space.pk, state=Space.State.RETIRED).first()
        if retired is None or renewed(retired, using=using):
            return None
        cancel(space.spec, using=using)
        if retired.pruned_at is None:
            every.filter(pk=space.pk).update(state=Space.State.BUILDING, retired_at=None)
            return retired
        made = {name: getattr(retired, name) for name in MADE_BY}
        begun = Space(pk=number(using=using), state=Space.State.BUILDING, **made)
        # A spec's fingerprints are unique, so the pruned space's changes. It tells ``renewed`` the
        # other one's number, as that one's own fingerprint changes when its digest is learned.
        every.filter(pk=space.pk).update(fingerprint=f"{retired.fingerprint} {begun.pk}")
        every.bulk_create([begun])  # without signals, like all that is ours
        return begun


def renewed(space: Space, *, using: str) -> Space | None:
    """Return the space that was begun anew in place of a pruned one, the latest of them."""
    _, _, begun_as = space.fingerprint.partition(" ")
    begun = Space.objects.using(using).filter(pk=int(begun_as)).first() if begun_as else None
    return begun and (renewed(begun, using=using) or begun)


def prunable(*, retired_for_seconds: float, using: str) -> list[Space]:
    """Return the spaces that are retired for so long that their vectors can be deleted."""
    return list(
        Space.objects.using(using).filter(
            state=Space.State.RETIRED,
            pruned_at=None,
            retired_at__lt=Now() - Value(timedelta(seconds=retired_for_seconds)),
        )
    )


def mark_pruned(space: Space, *, using: str) -> bool:
    """Note that a retired space's vectors are deleted. Its row stays, so its number stays taken.

    Returns False if it has been reopened.
    """
    retired = Space.objects.using(using).filter(pk=space.pk, state=Space.State.RETIRED)
    return bool(retired.update(pruned_at=Now()))


def forget(spec_key: str, *, using: str) -> None:
    """Delete the spaces of a spec that is gone together with its table of vectors."""
    Space.objects.using(using).filter(spec=spec_key).delete()


def _retire(spec_key: str, state: str, *, using: str) -> int:
    return (
        Space.objects.using(using)
        .filter(spec=spec_key, state=state)
        .update(state=Space.State.RETIRED, retired_at=Now())
    )
