"""Open a space for a spec's declared provider, if it is new.

A declaration never reopens a retired space: during a deploy, old and new workers disagree for a
while about what is declared.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import IntegrityError, ProgrammingError, transaction
from django.db.models import Max
from django.db.models.functions import Now

from pgembed_django import conf, events, providers, specs
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import Space
from pgembed_django.once import Told
from pgembed_django.providers import answers
from pgembed_django.providers.base import Provider
from pgembed_django.spaces.live import is_of, live
from pgembed_django.specs import Spec
from pgembed_django.text import clean

STEP = 10_000_000
"""A new space's number exceeds the highest so far by at most this."""

_told = Told()

Identity = dict[str, Any]
"""What must be equal for vectors to be comparable: see ``Provider.identity``."""


def ensure(spec: Spec, *, using: str) -> list[Space]:
    """Return the live spaces, after opening one for the declared provider if it is new."""
    provider = providers.get(spec.provider)
    told = _identity(provider)
    identity = told or {**provider.declared(), "digest": None}
    for space in live(spec, using=using):
        if is_of(space, provider) and _may_be(space, identity["digest"]):
            _learn_digest(space, identity, using=using)
            _follow_options(space, spec, using=using)
            return live(spec, using=using)
    if specs.without_table([spec], using=using):
        return []  # newer code has renamed the table, or nobody has migrated yet
    if told is None and _has_had_one_of(spec, provider, using=using):
        return live(spec, using=using)  # the model may be a retired space's: wait for its digest
    if _is_renamed(spec, using=using):
        return live(spec, using=using)  # until that is followed: ``adopt``
    try:
        with transaction.atomic(using=using):
            _open(spec, provider, identity, using=using)
    except IntegrityError:
        events.tell(events.SPACE_OPENED_ELSEWHERE, spec=spec.key)
    return live(spec, using=using)


def _identity(provider: Provider) -> Identity | None:
    """Return the provider's identity, or None if its digest cannot be read at the moment."""
    try:
        with answers.provider_errors(provider):
            identity: Identity = provider.identity()
    except ProviderError as error:
        # The server is down. The digest is learned when it is back.
        said = clean(str(error))
        if _told.is_new(provider.alias, said):
            events.tell(events.DIGEST_UNKNOWN, provider=provider.alias, error=said)
        return None
    _told.clear(provider.alias)
    return identity


def _has_had_one_of(spec: Spec, provider: Provider, *, using: str) -> bool:
    """Return whether any space of the spec, live or retired, may be of this provider."""
    spaces = Space.objects.using(using).filter(spec=spec.key)
    return any(is_of(space, provider) for space in spaces)


def _fingerprint(identity: Identity) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _may_be(space: Space, digest: str | None) -> bool:
    """Return whether the space may have this digest. An unknown digest matches any."""
    return not digest or space.model_digest in ("", digest)


def _learn_digest(space: Space, identity: Identity, *, using: str) -> None:
    """Store the digest of a space that was opened while the server could not be asked."""
    if not identity["digest"] or space.model_digest:
        return
    unknown = Space.objects.using(using).filter(pk=space.pk, model_digest="")
    try:
        with transaction.atomic(using=using):
            unknown.update(model_digest=identity["digest"], fingerprint=_fingerprint(identity))
    except IntegrityError:
        # A retired space already has this digest, and no declaration reopens it. So retire this
        # space too if it is building. An active one is still searched.
        unknown.filter(state=Space.State.BUILDING).update(
            state=Space.State.RETIRED, retired_at=Now()
        )


def _follow_options(space: Space, spec: Spec, *, using: str) -> None:
    """Update the space's options, in case the settings later declare another model.

    The declared options make the same vectors.
    """
    options = dict(conf.current().providers[spec.provider].get("OPTIONS", {}))
    if (space.provider, space.options) != (spec.provider, options):
        Space.objects.using(using).filter(pk=space.pk).update(
            provider=spec.provider, options=options
        )


def adopt(known: Iterable[Spec], *, using: str) -> dict[Space, str]:
    """Assign spaces to the specs whose tables hold their rows. Return the new key of each.

    Call it in a transaction. After a model was renamed, its spaces still have the former key.
    Meanwhile another model may have taken the former name. A worker may also have opened a space
    under the new name, which stays empty and is deleted.
    """
    moved: dict[Space, str] = {}
    for spec in known:
        with suppress(ProgrammingError), transaction.atomic(using=using):
            moved |= dict.fromkeys(_strays(spec, using=using), spec.key)
    every = Space.objects.using(using)
    emptied = every.filter(spec__in=moved.values()).exclude(pk__in=[one.pk for one in moved])
    emptied.delete()
    # First change to a key that no spec has: two specs may have swapped names, and only one space
    # per spec may be active.
    for space in moved:
        every.filter(pk=space.pk).update(spec=f"pgembed:{space.pk}")
    for space, key in moved.items():
        every.filter(pk=space.pk).update(spec=key)
    return moved


def _is_renamed(spec: Spec, *, using: str) -> bool:
    """Return whether the spec's table has rows of spaces that it has yet to adopt."""
    try:
        with transaction.atomic(using=using):
            return bool(_strays(spec, using=using))
    except ProgrammingError:
        return False  # this role may not read it: the spec will be set aside


def _strays(spec: Spec, *, using: str) -> list[Space]:
    """Return other specs' spaces whose rows are in this spec's table, if its own have no rows."""
    rows = spec.embedding_model._base_manager.using(using)
    every = Space.objects.using(using).filter(pruned_at=None)
    own = list(every.filter(spec=spec.key).values_list("pk", flat=True))
    if own and rows.filter(space__in=own).exists():
        return []
    held = set(rows.order_by().values_list("space_id", flat=True).distinct())
    return [
        space
        for space in every.filter(pk__in=held).exclude(spec=spec.key)
        if not _is_held(specs.get(space.spec), space, using=using)
    ]


def _is_held(spec: Spec | None, space: Space, *, using: str) -> bool:
    """Return whether the spec's own table has rows of the space."""
    return (
        spec is not None
        and spec.embedding_model._base_manager.using(using).filter(space=space).exists()
    )


def _open(spec: Spec, provider: Provider, identity: Identity, *, using: str) -> None:
    """Open a space, active if it is the spec's first. Retires one that is being built.

    Raises:
        IntegrityError: another worker has opened one at the same time.
    """
    spaces = Space.objects.using(using).filter(spec=spec.key)
    fingerprint = _fingerprint(identity)
    # One that was cancelled before its digest was known stays so.
    unknown = spaces.filter(state=Space.State.RETIRED, activated_at=None, model_digest="")
    known = spaces.filter(fingerprint=fingerprint).first() or next(
        (space for space in unknown if is_of(space, provider)), None
    )
    if known:
        same = spaces.filter(model_digest=known.model_digest).order_by("-pk")
        known = next((space for space in same if is_of(space, provider)), known)  # if renewed
        if known.state == Space.State.RETIRED:
            _tell_of(known, provider, using=using)  # we are an old worker, or a person rolled back
        return  # else another worker has just opened it
    spaces.filter(state=Space.State.BUILDING).update(state=Space.State.RETIRED, retired_at=Now())
    is_first = not spaces.filter(state=Space.State.ACTIVE).exists()
    space = Space(
        pk=number(using=using),
        spec=spec.key,
        fingerprint=fingerprint,
        provider=spec.provider,
        **provider.declared(),
        model_digest=identity["digest"] or "",
        options=dict(conf.current().providers[spec.provider].get("OPTIONS", {})),
        state=Space.State.ACTIVE if is_first else Space.State.BUILDING,
        **({"activated_at": Now()} if is_first else {}),
    )
    Space.objects.using(using).bulk_create([space])  # sends no signals, like all our writes


def _tell_of(retired: Space, provider: Provider, *, using: str) -> None:
    """Log once that no space is opened, and how a person can reopen the retired one."""
    if _told.is_new((using, retired.spec), str(retired.pk)):
        events.tell(
            events.SPACE_NOT_REOPENED,
            spec=retired.spec,
            space=f"{retired.model} ({retired.dimensions})",
            number=retired.pk,
            way=_way_back(retired, provider, using=using),
        )


def _way_back(retired: Space, provider: Provider, *, using: str) -> str:
    """Return the command, or the two commands, to reopen a retired space.

    If the server had other weights under the same model name, the space may contain vectors of
    those, from the minutes before the change was noticed.
    """
    rollback = f"embed_spaces rollback {retired.pk}"
    every = Space.objects.using(using).filter(spec=retired.spec)
    others = every.exclude(model_digest__in=["", retired.model_digest])
    if retired.pruned_at or not any(is_of(one, provider) for one in others):
        return rollback
    return (
        f"embed_spaces prune {retired.pk}, because some of its vectors may be of other weights, "
        f"then {rollback}"
    )


def number(*, using: str) -> int:
    """Return a number that no space has had, in this database or another.

    Not from the sequence: TRUNCATE … RESTART IDENTITY and ``loaddata`` restart it, and vectors that
    still carry a former space's number would be mistaken for the new model's.
    """
    highest = Space.objects.using(using).aggregate(highest=Max("pk"))["highest"] or 0
    return int(highest) + 1 + secrets.randbelow(STEP)
