"""The life of spaces: opened as ``building``, switched to as ``active``, ``retired``, and pruned.

A declaration never reopens a retired space: during a deploy, old and new workers disagree for a
while about what is declared. Only a person reopens one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import psycopg
from django.db import IntegrityError, ProgrammingError, transaction
from django.db.models import Max, Value
from django.db.models.functions import Now

from pgembed_django import conf, events, providers
from pgembed_django.core import locks
from pgembed_django.core.text import clean
from pgembed_django.declaration import specs
from pgembed_django.declaration.specs import Spec
from pgembed_django.events import LogOnce
from pgembed_django.exceptions import ProviderError
from pgembed_django.models import ScanCursor, Space
from pgembed_django.providers import answers
from pgembed_django.providers.base import Provider
from pgembed_django.spaces import indexes, stored
from pgembed_django.spaces.live import LIVE, is_of, live

STEP = 10_000_000
"""A new space's number exceeds the highest so far by at most this."""

CHUNKS = 2000
"""How many chunks to prune in one transaction."""

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
"""The columns that a new space copies from the one that it replaces."""

# Between the last look for gaps and the switch, no unit may be stored without the new space.
LAST_LOOK = "pgembed_last_look"

_told = LogOnce()

Identity = dict[str, Any]
"""What must be equal for vectors to be comparable: see ``Provider.identity``."""


def ensure(spec: Spec, *, using: str) -> list[Space]:
    """Return the live spaces, after opening one for the declared provider if it is new.

    Also notes how words are made before any are, so that a change can be told.
    """
    ScanCursor.begin(spec.key, ScanCursor.Scan.WORDS, spec.words_recipe, using=using)
    provider = providers.get(spec.provider)
    told = _identity(provider)
    identity = told or {**provider.declared_identity(), "digest": None}
    every = list(Space.objects.using(using).filter(spec=spec.key).order_by("state"))
    same = [space for space in every if is_of(space, provider)]
    for space in same:
        # An unknown digest matches any.
        may_be = not identity["digest"] or space.model_digest in ("", identity["digest"])
        if space.state in LIVE and may_be:
            _bring_up_to_date(space, spec, identity, using=using)
            return live(spec, using=using)
    # Without its digest, the model may be a retired space's: wait until that is known.
    if (told or not same) and not _is_misplaced(spec, using=using):
        if known := _retired_before(same, identity["digest"] or ""):
            _tell_of(known, same, using=using)  # we are an old worker, or a person rolled back
        else:
            _open(spec, provider, identity, every, using=using)
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


def _bring_up_to_date(space: Space, spec: Spec, identity: Identity, *, using: str) -> None:
    """Store the digest, if it was unknown when the space was opened, and the declared options.

    These make the same vectors, and the settings may later declare another model.
    """
    options = _options(spec)
    digest = space.model_digest or identity["digest"] or ""
    if (space.provider, space.options, space.model_digest) != (spec.provider, options, digest):
        same = Space.objects.using(using).filter(pk=space.pk, model_digest=space.model_digest)
        same.update(provider=spec.provider, options=options, model_digest=digest)


def _options(spec: Spec) -> dict[str, Any]:
    return dict(conf.current().providers[spec.provider].get("OPTIONS", {}))


def _is_misplaced(spec: Spec, *, using: str) -> bool:
    """Return whether the spec's table is missing, or has rows of spaces that it has yet to adopt.

    Newer code has renamed it, or nobody has migrated yet.
    """
    try:
        with transaction.atomic(using=using):
            return bool(adoptable(spec, using=using))
    except ProgrammingError as error:
        # A table that this role may not read has the spec set aside later.
        return isinstance(error.__cause__, psycopg.errors.UndefinedTable)


def adoptable(spec: Spec, *, using: str) -> list[Space]:
    """Return other specs' spaces whose rows are in this spec's table, if its own have no rows.

    After a model was renamed, its spaces still have the former key.
    """
    rows = spec.embedding_model._base_manager.using(using)
    every = Space.objects.using(using).filter(pruned_at=None)
    if rows.filter(space__in=every.filter(spec=spec.key)).exists():
        return []
    held = set(rows.order_by().values_list("space_id", flat=True).distinct())
    return [
        space
        for space in (every.filter(pk__in=held).exclude(spec=spec.key) if held else ())
        # Meanwhile another model may have taken the former name.
        if not (
            (former := specs.get(space.spec))
            and former.embedding_model._base_manager.using(using).filter(space=space).exists()
        )
    ]


def _retired_before(same: Sequence[Space], digest: str) -> Space | None:
    """Return the latest retired space of this digest. One that was never searched may have it."""
    known = [
        space
        for space in same
        if space.model_digest == digest or not (space.model_digest or space.activated_at)
    ]
    return max(known, key=lambda space: int(space.pk), default=None)


def _tell_of(retired: Space, same: Iterable[Space], *, using: str) -> None:
    """Log once that no space is opened, and how a person can reopen the retired one."""
    way = f"embed_spaces rollback {retired.pk}"
    # The server had other weights under this name. The space may contain vectors of those, from the
    # minutes before the change was noticed.
    if not retired.pruned_at and any(
        space.model_digest not in ("", retired.model_digest) for space in same
    ):
        way = (
            f"embed_spaces prune {retired.pk}, because some of its vectors may be of other "
            f"weights, then {way}"
        )
    if _told.is_new((using, retired.spec), str(retired.pk)):
        events.tell(
            events.SPACE_NOT_REOPENED,
            spec=retired.spec,
            space=f"{retired.model} ({retired.dimensions})",
            number=retired.pk,
            way=way,
        )


def _open(
    spec: Spec, provider: Provider, identity: Identity, every: Sequence[Space], *, using: str
) -> None:
    """Open a space, active if it is the spec's first. Retires one that is being built."""
    is_first = not any(space.state == Space.State.ACTIVE for space in every)
    space = Space(
        pk=_number(using=using),
        spec=spec.key,
        fingerprint=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        provider=spec.provider,
        **provider.declared(),
        model_digest=identity["digest"] or "",
        options=_options(spec),
        state=Space.State.ACTIVE if is_first else Space.State.BUILDING,
        **({"activated_at": Now()} if is_first else {}),
    )
    try:
        with transaction.atomic(using=using):
            if every:
                cancel(spec.key, using=using)
            Space.objects.using(using).bulk_create([space])  # sends no signals, like all our writes
    except IntegrityError:  # another worker has opened one at the same time
        events.tell(events.SPACE_OPENED_ELSEWHERE, spec=spec.key)


def _number(*, using: str) -> int:
    """Return a number that no space has had, in this database or another.

    Not from the sequence: TRUNCATE … RESTART IDENTITY and ``loaddata`` restart it, and vectors that
    still carry a former space's number would be mistaken for the new model's.
    """
    highest = Space.objects.using(using).aggregate(highest=Max("pk"))["highest"] or 0
    return int(highest) + 1 + secrets.randbelow(STEP)


# The switch


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
            # Some of its rows may have a former text: begin a scan that compares all of them.
            anew = {"recipe": "", "finished_recipe": "", "cursor": None}
            ScanCursor.put(anew, spec=space.spec, scan=ScanCursor.Scan.STALE, using=using)
    return True


def cancel(spec_key: str, *, using: str) -> bool:
    """Retire the building space of a spec. Its vectors are pruned later."""
    return _retire(spec_key, Space.State.BUILDING, using=using)


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
        begun = _successor(retired, using=using)
        # A spec's fingerprints are unique, so add the number of the new space to that of the pruned
        # one, for ``renewed``.
        every.filter(pk=space.pk).update(fingerprint=f"{retired.fingerprint} {begun.pk}")
        every.bulk_create([begun])
        return begun


def renew(space: Space, *, using: str) -> Space | None:
    """Begin a new space for the model that answers now in place of a live space's.

    It has the same declaration, so its fingerprint tells them apart. Searches use the former space
    until it is full. Returns None if the space is not live any more.
    """
    every = Space.objects.using(using)
    with transaction.atomic(using=using):
        states = dict(every.select_for_update().filter(spec=space.spec).values_list("pk", "state"))
        if states.get(space.pk) not in LIVE:
            return None
        cancel(space.spec, using=using)
        begun = _successor(space, using=using)
        another = f"{space.fingerprint} renewed as {begun.pk}"
        begun.fingerprint = hashlib.sha256(another.encode()).hexdigest()
        every.bulk_create([begun])
        return begun


def renewed(space: Space, *, using: str) -> Space | None:
    """Return the latest space that replaced a pruned one, or None."""
    _, _, begun_as = space.fingerprint.partition(" ")
    begun = Space.objects.using(using).filter(pk=int(begun_as)).first() if begun_as else None
    return begun and (renewed(begun, using=using) or begun)


def _successor(space: Space, *, using: str) -> Space:
    made = {name: getattr(space, name) for name in MADE_BY}
    return Space(pk=_number(using=using), state=Space.State.BUILDING, **made)


def _retire(spec_key: str, state: str, *, using: str) -> bool:
    spaces = Space.objects.using(using).filter(spec=spec_key, state=state)
    return bool(spaces.update(state=Space.State.RETIRED, retired_at=Now()))


# The end of retired spaces


def prunable(*, retired_for_seconds: float, using: str) -> list[Space]:
    """Return the spaces that have been retired for long enough to delete their vectors."""
    return list(
        Space.objects.using(using).filter(
            state=Space.State.RETIRED,
            pruned_at=None,
            retired_at__lt=Now() - Value(timedelta(seconds=retired_for_seconds)),
        )
    )


def prune(
    spec: Spec, space: Space, *, using: str, is_stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Delete the indexes and vectors of a retired space. Return whether all are deleted.

    They are not if another worker is building an index, somebody has reopened the space, or this
    worker is stopping.
    """
    if not indexes.drop(spec, space, using=using):
        return False
    # Delete first chunks first: if the space is reopened midway, these rows then count as gaps. A
    # unit planned before that cannot store its first chunk alone: see ``reopen``.
    for first_only in (True, False):
        last: int | None = 0
        while last is not None:
            if is_stopping():
                return False
            last = stored.prune(
                spec, space.pk, after=last, limit=CHUNKS, first_only=first_only, using=using
            )
    while stored.prune_staged(space.pk, limit=CHUNKS, using=using):
        if is_stopping():
            return False
    is_pruned = mark_pruned(space, using=using)
    if is_pruned:
        events.tell(events.SPACE_PRUNED, spec=spec.key, space=str(space))
    return is_pruned


def mark_pruned(space: Space, *, using: str) -> bool:
    """Note that a retired space's vectors are deleted. Its row stays, to keep its number in use.

    Returns False if it has been reopened, even if it was retired again since then.
    """
    same = Space.objects.using(using).filter(pk=space.pk, retired_at=space.retired_at)
    return bool(same.filter(state=Space.State.RETIRED).update(pruned_at=Now()))
