"""Find the live spaces, the one that is searched, and each one's provider."""

from __future__ import annotations

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from pgembed_django import conf, database, events, providers
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.providers import NotInstalled, answers
from pgembed_django.providers.base import Provider
from pgembed_django.specs import Spec
from pgembed_django.text import clean

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


def warm_up(specs: Iterable[Spec], *, using: str) -> None:
    """Load the models of live spaces, and log those that cannot be loaded yet."""
    for space in itertools.chain.from_iterable(live_of(specs, using=using).values()):
        provider = provider_of(space)
        try:
            with answers.provider_errors(provider):
                provider.warm_up()
        except ProviderError as error:
            events.tell(events.MODEL_NOT_LOADED, space=str(space), error=clean(str(error)))


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


def active(spec: Spec, *, using: str) -> Space | None:
    """Return the space that is searched, or None if no worker has started yet."""
    return Space.objects.using(using).filter(spec=spec.key, state=Space.State.ACTIVE).first()


def provider_of(space: Space) -> Provider:
    """Return the provider of a space, even if the settings now name another model.

    It is the declared provider if that makes the same vectors, so that a corrected address or
    time-out takes effect at once. Otherwise one is built from what is stored in the space. If that
    fails, a ``NotInstalled`` takes its place, which is always down, so that other spaces go on.
    """
    try:
        if _may_be_declared(space):
            provider = providers.get(space.provider)
            if is_of(space, provider):
                return provider
        options = json.dumps(space.options, sort_keys=True)
        return _former(
            space.provider,
            space.backend,
            space.model,
            space.dimensions,
            options,
            conf.current().batch_size,
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
    return all(getattr(space, name) == value for name, value in provider.declared().items())


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


def _may_be_declared(space: Space) -> bool:
    """Return whether the declared provider may be the space's, without building it.

    If it declares another model, building it might raise an error that is not about this space.
    """
    declared = conf.current().declared.get(space.provider, {})
    wanted = declared.get("MODEL"), declared.get("DIMENSIONS")
    if wanted != (space.model, space.dimensions):
        return False
    try:
        backend = import_string(declared.get("BACKEND", ""))
    except (AttributeError, ImportError, ValueError):
        return False
    is_provider = isinstance(backend, type) and issubclass(backend, Provider)
    return is_provider and backend.backend_path() == space.backend


@functools.lru_cache(maxsize=32)
def _former(
    alias: str, backend: str, model: str, dimensions: int, options: str, batch_size: int
) -> Provider:
    """Build the provider of a space that the settings no longer declare."""
    return providers.build(
        alias=alias,
        backend=backend,
        model=model,
        dimensions=dimensions,
        options=json.loads(options),
        batch_size=batch_size,
    )
