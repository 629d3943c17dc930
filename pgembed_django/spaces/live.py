"""The live spaces of a spec, the provider of each, and whether its model is still the same."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Value
from django.db.models.functions import Greatest, Now

from pgembed_django import conf, events, providers
from pgembed_django.core import database
from pgembed_django.core.text import clean
from pgembed_django.declaration.specs import Spec
from pgembed_django.exceptions import ProviderError, ProviderUnavailable
from pgembed_django.models import Space
from pgembed_django.providers import NotInstalled, answers
from pgembed_django.providers.base import Provider, Vectors
from pgembed_django.providers.recognition import AnotherModel, Known
from pgembed_django.spaces import stored

REMEDY = (
    "Install what is missing until another space is searched, or switch to that one now: "
    "manage.py embed_spaces."
)

OTHER_WEIGHTS = (
    "The server now has other weights under the name of its model. Wait until a space of the new "
    "weights is full, or switch to it now: manage.py embed_spaces. If their space is retired, "
    "reopen it: embed_spaces prune, then rollback. Or pull the former weights again."
)

LIVE = (Space.State.ACTIVE, Space.State.BUILDING)

# Runs for each batch that is stored, and the ORM would take longer to compile it than to run it.
LIVE_STATES = """
    SELECT spec, id, state, retired_at
    FROM pgembed_space
    WHERE spec = ANY(%(specs)s)
      AND state = ANY(%(states)s)
"""

CHUNKS = 2000
"""How many vectors to take back in one transaction."""

_taken_back: set[tuple[int, object]] = set()
"""The spaces, and when their models were exchanged, whose doubtful vectors were taken back."""


class LiveState(NamedTuple):
    """Whether a live space is searched, and when it was last retired, if it was ever reopened."""

    state: str
    retired_at: datetime | None


def live(spec: Spec, *, using: str) -> list[Space]:
    """Return the spaces that are kept fresh, the active one first."""
    return live_of([spec], using=using)[spec.key]


def live_of(specs: Iterable[Spec], *, using: str) -> dict[str, list[Space]]:
    """Return the live spaces of several specs by spec key, with one query."""
    found: dict[str, list[Space]] = {spec.key: [] for spec in specs}
    spaces = Space.objects.using(using).filter(spec__in=found, state__in=LIVE)
    for space in spaces.order_by("state"):
        found[space.spec].append(space)
    return found


def active(spec: Spec, *, using: str) -> Space | None:
    """Return the space that is searched, or None if no worker has started yet."""
    return Space.objects.using(using).filter(spec=spec.key, state=Space.State.ACTIVE).first()


def ask_live_states(
    specs: Iterable[Spec], *, using: str
) -> database.Read[defaultdict[str, dict[int, LiveState]]]:
    """Send the query for the states of live spaces, and return a function that reads the answer.

    It returns the states by spec key and space id.
    """
    wanted = {"specs": [spec.key for spec in specs], "states": [state.value for state in LIVE]}
    read = database.send_prepared(using, LIVE_STATES, **wanted)

    def read_states() -> defaultdict[str, dict[int, LiveState]]:
        found: defaultdict[str, dict[int, LiveState]] = defaultdict(dict)
        for key, space_id, *state in read():
            found[key][space_id] = LiveState(*state)
        return found

    return read_states


# Its provider


def provider_of(space: Space) -> Provider:
    """Return the provider of a space, even if the settings now name another model.

    It is the declared provider if that makes the same vectors, so that a corrected address or
    time-out takes effect at once. Otherwise one is built from what is stored in the space. If that
    fails, a ``NotInstalled`` takes its place, which is always down, so that other spaces go on.
    """
    with suppress(ImproperlyConfigured):  # which may not be about this space
        declared = providers.get(space.provider)
        if is_of(space, declared):
            return declared
    settings = conf.current()
    executor = settings.declared.get(space.provider, {}).get("EXECUTOR")
    try:
        return _build(
            space.provider,
            space.backend,
            space.model,
            space.dimensions,
            json.dumps(space.options, sort_keys=True),
            settings.batch_size,
            json.dumps(executor, sort_keys=True, default=str),
        )
    except ImproperlyConfigured as error:
        return _lost(space, f"Space {space.pk} ({space}) has lost its provider. {error} {REMEDY}")


def provider_of_texts(space: Space) -> Provider:
    """Return the provider to embed texts with: ``provider_of``, if it has the space's weights.

    Otherwise a ``NotInstalled``. Call ``ask_for_weights`` first, or the weights are unknown, unless
    a worker has seen by what they make that they are others.
    """
    if space.exchanged and conf.current().canary_seconds:
        return _lost(space, space.exchanged)
    provider = provider_of(space)
    told = provider.told_digest
    if told and space.model_digest and told != space.model_digest:
        return _lost(space, f"Space {space.pk} ({space}) has lost its provider. {OTHER_WEIGHTS}")
    return provider


def is_of(space: Space, provider: Provider) -> bool:
    """Return whether a provider makes a space's vectors, going by its declaration alone."""
    columns = all(getattr(space, name) == value for name, value in provider.declared().items())
    return columns and provider.space_options_in(space.options) == provider.space_options_in(
        vars(provider)
    )


def warm_up(specs: Iterable[Spec], *, using: str) -> None:
    """Load the models of live spaces, and log those that cannot be loaded yet."""
    for spaces in live_of(specs, using=using).values():
        for space in spaces:
            provider = provider_of(space)
            try:
                with answers.provider_errors(provider):
                    provider.warm_up()
            except ProviderError as error:
                events.tell(events.MODEL_NOT_LOADED, space=str(space), error=clean(str(error)))


def ask_for_weights(spaces: Iterable[Space]) -> None:
    """Have the providers of spaces read their models' digests: a tag may have been pulled again."""
    for provider in {provider_of(space) for space in spaces if space.model_digest}:
        with suppress(ProviderError), answers.provider_errors(provider):
            answers.digest(provider)


def _lost(space: Space, why: str) -> NotInstalled:
    return NotInstalled(
        alias=space.provider,
        model=space.model,
        dimensions=space.dimensions,
        reason=why,
        space_id=space.pk,
    )


@functools.lru_cache(maxsize=32)
def _build(
    alias: str,
    backend: str,
    model: str,
    dimensions: int,
    options: str,
    batch_size: int,
    executor: str,
) -> Provider:
    return providers.build(
        alias=alias,
        backend=backend,
        model=model,
        dimensions=dimensions,
        options=json.loads(options),
        batch_size=batch_size,
        executor=json.loads(executor),
    )


# Its model, recognized by what it makes of a few fixed texts: see ``providers.recognition``


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


def recognize(spec: Spec, *, using: str, only_exchanged: bool) -> None:
    """Ask the models of a spec's live spaces whether they are the same.

    ``only_exchanged``: only those that were seen to be others, which may be back by now.
    """
    for space in live(spec, using=using):
        known = known_of(space)
        if known and (space.exchanged or not only_exchanged):
            _recognize(spec, space, known, using=using)


def _recognize(spec: Spec, space: Space, known: Known, *, using: str) -> None:
    once = space.pk, space.exchanged_at
    if space.exchanged and once not in _taken_back and _take_back(spec, space, using=using):
        _taken_back.add(once)
    try:
        strangers = provider_of(space).canary.look([known], seconds=0).strangers
    except ProviderUnavailable:
        return  # nothing is known now
    if strangers:
        note_exchange(space, strangers[known], using=using)
    # Once more: what was embedded before the exchange was seen may have been stored after it.
    elif space.exchanged and _take_back(spec, space, using=using):
        same = Space.objects.using(using).filter(pk=space.pk).exclude(exchanged="")
        if same.update(exchanged="", canary_at=Now()):
            events.tell(events.MODEL_BACK, spec=space.spec, space=str(space))


def _take_back(spec: Spec, space: Space, *, using: str) -> bool:
    """Delete the vectors that were stored after the model was last recognized. Keep their texts.

    Returns whether that is done: rows that others have locked are left.
    """
    since = space.canary_at
    if since is None:
        return True
    while stored.take_back(spec, space.pk, since=since, limit=CHUNKS, using=using):
        pass
    return not stored.is_to_be_taken_back(spec, space.pk, since=since, using=using)
