"""Keep in each space what its model makes of a few fixed texts, and whether it is still there.

Whoever embeds texts compares; what comes of it is noted here, for all processes. See
``providers.recognition``.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Value
from django.db.models.functions import Greatest, Now

from pgembed_django import conf, events
from pgembed_django.exceptions import ProviderUnavailable
from pgembed_django.models import Space
from pgembed_django.providers.base import Vectors
from pgembed_django.providers.recognition import AnotherModel, Known
from pgembed_django.spaces.live import provider_of
from pgembed_django.text import clean


def known_of(space: Space) -> Known | None:
    """Return what a space's model is recognized by. None: nothing yet, or it is not wanted."""
    if not conf.current().canary_seconds or space.canary is None:
        return None
    return Known(bytes(space.canary), f"space {space.pk} ({space})", space.model_facts)


def learn(space: Space, vectors: Vectors, *, facts: str, using: str) -> Known | None:
    """Let a space know its model, if no other worker has: call it before vectors are stored.

    Returns what the space knows then. None: the space is gone.
    """
    same = Space.objects.using(using).filter(pk=space.pk)
    same.filter(canary=None).update(
        canary=vectors.astype("<f4").tobytes(), canary_at=Now(), model_facts=clean(facts)
    )
    return next(map(known_of, same), None)


def is_recognized(space: Space, *, using: str) -> bool:
    """Ask a space's model now whether it is the same. Notes it if it is another one."""
    known = known_of(space)
    if known is None:
        return False
    try:
        strangers = provider_of(space).canary.look([known], seconds=0).strangers
    except ProviderUnavailable:
        return False  # nothing is known now
    if strangers:
        note_exchange(space, strangers[known], using=using)
    return not strangers


def note_exchange(space: Space, error: AnotherModel, *, using: str) -> None:
    """Note that a space's model is another one now: its provider is lost until it is back.

    Updates the instance too.
    """
    space.exchanged = clean(str(error))
    same = Space.objects.using(using).filter(pk=space.pk, exchanged="")
    if same.update(exchanged=space.exchanged, exchanged_at=Now()):
        events.tell(events.MODEL_EXCHANGED, spec=space.spec, space=str(space), error=str(error))


def note_recognized(space: Space, *, seconds_ago: float, using: str) -> None:
    """Note when a space's model was last seen to be the same."""
    Space.objects.using(using).filter(pk=space.pk, exchanged="").update(
        canary_at=Greatest("canary_at", Now() - Value(timedelta(seconds=seconds_ago)))
    )


def note_back(space: Space, *, using: str) -> None:
    """Note that a space's model is back after an exchange."""
    same = Space.objects.using(using).filter(pk=space.pk).exclude(exchanged="")
    if same.update(exchanged="", canary_at=Now()):
        events.tell(events.MODEL_BACK, spec=space.spec, space=str(space))
