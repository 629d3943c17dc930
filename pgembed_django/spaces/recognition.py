"""Ask again for the models of spaces, and take back what another model may have made."""

from __future__ import annotations

from pgembed_django import conf, spaces
from pgembed_django.maintenance import stored
from pgembed_django.models import Space
from pgembed_django.specs import Spec

CHUNKS = 2000

_taken_back: set[tuple[int, object]] = set()
"""The spaces, and when their models were exchanged, whose doubtful vectors were taken back."""


def recognize(spec: Spec, *, using: str, only_exchanged: bool) -> None:
    """Ask the models of a spec's live spaces whether they are the same.

    ``only_exchanged``: only those that were seen to be others, which may be back by now.
    """
    if not conf.current().canary_seconds:
        return
    for space in spaces.live(spec, using=using):
        if space.exchanged or not only_exchanged:
            _recognize(spec, space, using=using)


def _recognize(spec: Spec, space: Space, *, using: str) -> None:
    once = space.pk, space.exchanged_at
    if space.exchanged and once not in _taken_back and take_back(spec, space, using=using):
        _taken_back.add(once)
    if not spaces.is_recognized(space, using=using) or not space.exchanged:
        return
    # Once more: what was embedded before the exchange was seen may have been stored after it.
    if take_back(spec, space, using=using):
        spaces.note_back(space, using=using)


def take_back(spec: Spec, space: Space, *, using: str) -> bool:
    """Delete the vectors that were stored after the model was last recognized. Keep their texts.

    Returns whether that is done: rows that others have locked are left.
    """
    if space.canary_at is None:
        return True
    while stored.take_back(spec, space.pk, since=space.canary_at, limit=CHUNKS, using=using):
        pass
    return not stored.is_to_be_taken_back(spec, space.pk, since=space.canary_at, using=using)
