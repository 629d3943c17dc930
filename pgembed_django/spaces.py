"""The verbs of spaces: which are live, which is searched, which provider each one needs.

``building`` -> ``active`` -> ``retired``. A retired declaration never reopens a space
by itself: during a deploy, old and new workers disagree for a while.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from pgembed_django import conf, providers
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.providers.base import Provider
from pgembed_django.specs import Spec

Identity = dict[str, Any]
"""What makes vectors comparable, as ``Provider.identity`` returns it."""

logger = logging.getLogger("pgembed_django")

LIVE = (Space.State.ACTIVE, Space.State.BUILDING)


def live(spec: Spec, *, using: str) -> list[Space]:
    """Return the spaces that are kept fresh, the active one first."""
    return list(Space.objects.using(using).filter(spec=spec.key, state__in=LIVE).order_by("state"))


def active(spec: Spec, *, using: str) -> Space | None:
    """Return the space that is searched, or None before the first worker has started."""
    return Space.objects.using(using).filter(spec=spec.key, state=Space.State.ACTIVE).first()


def ensure(spec: Spec, *, using: str) -> list[Space]:
    """Return the live spaces, after opening one for the declared provider where it is new."""
    provider = providers.get(spec.provider)
    identity = _identity(provider)
    for space in live(spec, using=using):
        if _matches(space, identity):
            _learn_digest(space, identity, using=using)
            return live(spec, using=using)
    try:
        with transaction.atomic(using=using):
            _open(spec, provider, identity, using=using)
    except IntegrityError:
        logger.debug("Another worker opened the space of %s first", spec.key)
    return live(spec, using=using)


def provider_of(space: Space) -> Provider:
    """Return the provider of a space, also where the settings have moved on."""
    declared = conf.current().providers.get(space.provider, {})
    if space.options == declared.get("OPTIONS", {}) and (
        space.backend,
        space.model,
        space.dimensions,
    ) == (declared.get("BACKEND"), declared.get("MODEL"), declared.get("DIMENSIONS")):
        return providers.get(space.provider)
    return providers.build(
        alias=space.provider,
        backend=space.backend,
        model=space.model,
        dimensions=space.dimensions,
        options=space.options,
    )


def activate(space: Space, *, using: str) -> None:
    """Make a building space the one that is searched, and retire the one before, at once."""
    with transaction.atomic(using=using):
        spaces = Space.objects.using(using).select_for_update().filter(spec=space.spec)
        if not [other for other in spaces if other.pk == space.pk and other.state == "building"]:
            return
        spaces.filter(state=Space.State.ACTIVE).update(state=Space.State.RETIRED, retired_at=Now())
        spaces.filter(pk=space.pk).update(state=Space.State.ACTIVE, activated_at=Now())


def _identity(provider: Provider) -> Identity:
    try:
        return provider.identity()
    except ProviderError as error:
        # The server is down. What it cannot tell now is learned when it is back.
        logger.warning("%s cannot tell its model's digest: %s", provider.alias, error)
        return {
            "backend": f"{type(provider).__module__}.{type(provider).__qualname__}",
            "model": provider.model,
            "digest": None,
            "dimensions": provider.dimensions,
            "document_prefix": provider.document_prefix,
            "query_prefix": provider.query_prefix,
        }


def _fingerprint(identity: Identity) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _matches(space: Space, identity: Identity) -> bool:
    mine = {
        "backend": space.backend,
        "model": space.model,
        "dimensions": space.dimensions,
        "document_prefix": space.document_prefix,
        "query_prefix": space.query_prefix,
    }
    digests = {space.model_digest, identity["digest"] or ""}
    return mine == {name: identity[name] for name in mine} and (len(digests) == 1 or "" in digests)


def _learn_digest(space: Space, identity: Identity, *, using: str) -> None:
    if identity["digest"] and not space.model_digest:
        Space.objects.using(using).filter(pk=space.pk, model_digest="").update(
            model_digest=identity["digest"], fingerprint=_fingerprint(identity)
        )


def _open(spec: Spec, provider: Provider, identity: Identity, *, using: str) -> None:
    spaces = Space.objects.using(using).filter(spec=spec.key)
    fingerprint = _fingerprint(identity)
    if spaces.filter(fingerprint=fingerprint).exists():
        return  # retired: an old worker's declaration
    spaces.filter(state=Space.State.BUILDING).update(state=Space.State.RETIRED, retired_at=Now())
    is_first = not spaces.filter(state=Space.State.ACTIVE).exists()
    Space.objects.using(using).create(
        spec=spec.key,
        fingerprint=fingerprint,
        provider=spec.provider,
        backend=identity["backend"],
        model=identity["model"],
        model_digest=identity["digest"] or "",
        dimensions=identity["dimensions"],
        document_prefix=identity["document_prefix"],
        query_prefix=identity["query_prefix"],
        options=dict(conf.current().providers[spec.provider].get("OPTIONS", {})),
        state=Space.State.ACTIVE if is_first else Space.State.BUILDING,
        **({"activated_at": Now()} if is_first else {}),
    )
