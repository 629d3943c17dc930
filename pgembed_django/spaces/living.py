"""Find the live spaces, the one that is searched, and the provider that each one needs."""

from __future__ import annotations

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from pgembed_django import conf, database, events, providers
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.providers import raising
from pgembed_django.providers.base import Provider
from pgembed_django.providers.lost import LostProvider
from pgembed_django.specs import Spec
from pgembed_django.text import clean

REMEDY = (
    "Install what is missing until another space is searched, or switch to that one now: "
    "manage.py embed_spaces."
)

OTHER_WEIGHTS = (
    "The server has other weights by now under the name of its model. Wait until a space of "
    "these is full, or switch to that one now: manage.py embed_spaces. Where theirs is retired, "
    "it is gone back to by hand only: embed_spaces prune, then rollback. Or pull the former ones."
)

LIVE = (Space.State.ACTIVE, Space.State.BUILDING)

# It runs for each batch that is stored, and the ORM takes longer to compile it than it runs.
LIVE_IDS = """
    SELECT spec, id
    FROM pgembed_space
    WHERE spec = ANY(%(specs)s)
      AND state = ANY(%(states)s)
"""


def live(spec: Spec, *, using: str) -> list[Space]:
    """Return the spaces that are kept fresh, the active one first."""
    return live_of([spec], using=using)[spec.key]


def live_of(specs: Iterable[Spec], *, using: str) -> dict[str, list[Space]]:
    """Return the live spaces of several specs, by the specs' keys, in one query."""
    found: dict[str, list[Space]] = {spec.key: [] for spec in specs}
    spaces = Space.objects.using(using).filter(spec__in=found, state__in=LIVE)
    for space in spaces.order_by("state"):
        found[space.spec].append(space)
    return found


def warm_up(specs: Iterable[Spec], *, using: str) -> None:
    """Load the models of live spaces, and log the ones that cannot be loaded yet."""
    for space in itertools.chain.from_iterable(live_of(specs, using=using).values()):
        provider = provider_of(space)
        try:
            with raising.provider_errors(provider):
                provider.warm_up()
        except ProviderError as error:
            events.tell(events.MODEL_NOT_LOADED, space=str(space), error=clean(str(error)))


def ask_live_ids(specs: Iterable[Spec], *, using: str) -> database.Read[defaultdict[str, set[int]]]:
    """Query the ids of the live spaces, and return what reads them, by the keys of the specs."""
    wanted = {"specs": [spec.key for spec in specs], "states": [state.value for state in LIVE]}
    read = database.send_prepared(using, LIVE_IDS, **wanted)

    def read_ids() -> defaultdict[str, set[int]]:
        found: defaultdict[str, set[int]] = defaultdict(set)
        for key, space_id in read():
            found[key].add(space_id)
        return found

    return read_ids


def active(spec: Spec, *, using: str) -> Space | None:
    """Return the space that is searched, or None before the first worker has started."""
    return Space.objects.using(using).filter(spec=spec.key, state=Space.State.ACTIVE).first()


def provider_of(space: Space) -> Provider:
    """Return the provider of a space, even if the settings now name another model.

    The declared provider, if it makes the same vectors: so a corrected address or time-out
    counts at once. Otherwise one is built from what the space has stored. Where that fails, a
    ``LostProvider`` takes its place, which is always down, so that other spaces go on.
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
        return _lost(space, f"{error} {REMEDY}")


def provider_of_texts(space: Space) -> Provider:
    """Return the provider to embed texts with: ``provider_of``, while it has the space's weights.

    Otherwise a ``LostProvider``. ``ask_for_weights`` has to be called first to know the weights.
    """
    provider = provider_of(space)
    told = provider.told_digest
    if told and space.model_digest and told != space.model_digest:
        return _lost(space, OTHER_WEIGHTS)
    return provider


def is_of(space: Space, provider: Provider) -> bool:
    """Return whether a provider makes the vectors of a space, as far as it knows of itself."""
    return all(getattr(space, name) == value for name, value in provider.declared().items())


def ask_for_weights(spaces: Iterable[Space]) -> None:
    """Ask the providers of spaces for their models' digests: a tag may have been pulled again."""
    for provider in {provider_of(space) for space in spaces if space.model_digest}:
        with suppress(ProviderError), raising.provider_errors(provider):
            raising.digest(provider)


def _lost(space: Space, why: str) -> LostProvider:
    return LostProvider(
        alias=space.provider,
        model=space.model,
        dimensions=space.dimensions,
        reason=f"Space {space.pk} ({space}) has lost its provider. {why}",
    )


def _may_be_declared(space: Space) -> bool:
    """Return whether the declared provider may be the space's, without building it.

    Building a declaration of another model might raise, which is not this space's fault.
    """
    declared = conf.current().providers.get(space.provider, {})
    wanted = declared.get("MODEL"), declared.get("DIMENSIONS")
    if wanted != (space.model, space.dimensions):
        return False
    try:
        backend = import_string(declared.get("BACKEND", ""))
    except ImportError:
        return False
    is_provider = isinstance(backend, type) and issubclass(backend, Provider)
    return is_provider and backend.backend_path() == space.backend


@functools.lru_cache(maxsize=32)
def _former(
    alias: str, backend: str, model: str, dimensions: int, options: str, batch_size: int
) -> Provider:
    """Return the provider of a space that the settings have left behind."""
    return providers.build(
        alias=alias,
        backend=backend,
        model=model,
        dimensions=dimensions,
        options=json.loads(options),
        batch_size=batch_size,
    )
