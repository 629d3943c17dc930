"""The settings: flat ``PGEMBED_*`` names that include their unit, read when they are needed.

``current()`` returns all of them, ``problems()`` what the system check reports about them.
Zero switches a loop off if the setting's description says so.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections

PREFIX = "PGEMBED_"
LEAST = {"index_rows": 0, "index_workers": 0, "hnsw_m": 2, "hnsw_ef_construction": 4}
"""Lower bounds of whole numbers, other than one. HNSW's are those of pgvector."""

MOST = {"hnsw_m": 100, "hnsw_ef_construction": 1000, "bm25_b": 1}

ENDLESS = 10**9
"""The upper bound of other numbers: locks wait no longer, and Postgres cannot add infinity."""

ABOVE_ZERO = {"lease_seconds", "bm25_k1"}
"""A lease of zero seconds ends when it begins: jobs of healthy workers would count as crashed.

BM25 divides by a multiple of k1 where a passage lacks a word.
"""

CHOICES = {"index_type": ("auto", "vector", "halfvec", "binary")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings with their defaults. ``lease_seconds`` is ``PGEMBED_LEASE_SECONDS``."""

    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By alias: a dict of BACKEND (dotted path), MODEL, DIMENSIONS, OPTIONS and quotas."""

    rerankers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By alias, for ``search(rerank=)``: a dict of BACKEND (dotted path), MODEL and OPTIONS."""

    lease_seconds: float = 600
    """How long a claim is valid without a heartbeat. Heartbeats are sent every third of it."""

    poll_seconds: float = 30
    """The longest wait of a job if notifications are lost. Zero, or more than 5, counts as 5."""

    reap_seconds: float = 30
    """How often to look for expired leases. Zero: never."""

    reconcile_seconds: float = 300
    """How often to look for rows without vectors and vectors without a row.

    Stale rows are looked for all the time, a page every ten seconds. Zero: nothing is looked for,
    so rows older than the decorator are not embedded.
    """

    max_attempts: int = 5
    """After how many failed attempts a job fails."""

    max_crashes: int = 3
    """How many leases of a job may run out before it fails as ``worker lost``.

    Also how many times its provider may go down with its text alone.
    """

    backoff_seconds: float = 5
    """The wait before the second attempt. It doubles with each one, with jitter, up to an hour."""

    batch_size: int = 32
    """How many texts to send a server at once, unless the provider's OPTIONS say otherwise."""

    concurrency: int = 2
    """How many requests may be in flight at once, per provider with a server."""

    tasks_concurrency: int = 8
    """How many tasks a worker runs at once, in threads."""

    claim_limit: int = 500
    """How many units one claim takes at most."""

    notify: bool = True
    """Whether idle workers LISTEN. If not, a job waits up to ``poll_seconds``, at most 5."""

    stop_grace_seconds: float = 20
    """How long a stopping worker waits for requests in flight."""

    stuck_seconds: float = 300
    """How long a round of the worker's loop may take before the process counts as stuck, and ends.

    Zero: never. Waiting for a database that is away does not count.
    """

    keep_succeeded_seconds: float = 3600
    """How long to keep succeeded jobs and settled failures. Zero: delete jobs on success."""

    text_search_config: str = "english"
    """The full-text search configuration for passages and queries, without ``language=``."""

    bm25_k1: float = 1.2
    """BM25: how much it counts that a passage has a word again and again. Usually 1.2 to 2."""

    bm25_b: float = 0.75
    """BM25: how much longer passages are held back, from 0 (not at all) to 1."""

    query_seconds: float = 2.0
    """How long a search waits for its query's vector. After that it searches by words only.

    Loading a model into this process does not count. Zero: never ask for one.
    """

    index_rows: int = 20_000
    """The number of chunks from which on a space gets its indexes. Zero: build none."""

    index_type: str = "auto"
    """What the vector index stores: ``vector``, ``halfvec``, or ``binary`` (only the signs).

    ``auto`` is the first of these that supports the space's number of dimensions.
    """

    index_workers: int = 0
    """How many parallel processes Postgres may add to build an index.

    They take CPU from searches.
    """

    hnsw_m: int = 16
    """HNSW: connections of each vector to neighbours, 2 to 100."""

    hnsw_ef_construction: int = 128
    """HNSW: candidates examined while building an index. At least twice ``hnsw_m``."""

    hnsw_ef_search: int = 200
    """HNSW: candidates that a search examines, at least. pgvector allows up to 1,000."""

    canary_seconds: float = 300
    """How long a provider's model counts as recognized, while its connections last. Zero: for ever.

    A few fixed texts are embedded to recognize it.
    """

    retired_seconds: float = 86_400
    """How long a retired space keeps its vectors, so that a rollback to it is quick."""

    tracing: bool = False
    """Whether jobs record the trace of their write, and workers make OpenTelemetry spans."""

    publication: str | None = None
    """The publication that workers read, made by the owner of its tables. None: migrations make it.

    For ``capture="wal"`` and ``"message"``. ``embed_publication`` prints the SQL that makes one.
    """

    worker_database: str | None = None
    """The database alias for workers, if the application's goes through a pooler."""

    @property
    def declared(self) -> dict[str, Mapping[str, Any]]:
        """The providers that are dicts: a web process may run without the check of the others."""
        given: object = self.providers
        aliases = given.items() if isinstance(given, Mapping) else ()
        return {
            alias: one
            for alias, one in aliases
            if isinstance(alias, str) and isinstance(one, Mapping)
        }

    def provider_name(self, alias: str, model: str, dimensions: int) -> str:
        """Return a provider's name to show to people: its alias.

        What the alias no longer declares is added: these may be two servers.
        """
        declared = self.declared.get(alias, {})
        if declared.get("MODEL") != model:
            return f"{alias} ({model})"
        return alias if declared.get("DIMENSIONS") == dimensions else f"{alias} ({dimensions})"


def provider_key(alias: str, model: str, dimensions: int) -> str:
    """Return what processes with other settings also call this provider, in a worker's row."""
    return f"{alias} ({model}, {dimensions})"


def lost_name(name: str, space_id: int) -> str:
    """Return what the lost provider of one space is called, if that of another space is not."""
    return f"{name} of space {space_id}"


_instead: dict[str, Any] = {}

NAMES = tuple(f"{PREFIX}{setting.name.upper()}" for setting in fields(Settings))


@functools.cache
def current() -> Settings:
    """Return the current settings. Respects ``override_settings``.

    Values given to ``instead`` take precedence.
    """
    given = {
        setting.name: getattr(django_settings, name)
        for setting, name in zip(fields(Settings), NAMES, strict=True)
        if hasattr(django_settings, name)
    }
    return Settings(**{**given, **_instead})


def usable(name: str) -> Any:
    """Return a setting that searches read: web processes may run without the checks.

    Raises:
        ImproperlyConfigured: the check would report it.
    """
    value = getattr(current(), name)
    if remedy := _remedy(name, str(Settings.__dataclass_fields__[name].type), value):
        raise ImproperlyConfigured(f"{PREFIX}{name.upper()} is {value!r}. {remedy}")
    return value


@contextmanager
def instead(**given: Any) -> Iterator[None]:
    """Override settings with a command's options, in all threads of this process.

    Objects built from a setting elsewhere, such as providers, follow the option too.
    """
    before = dict(_instead)
    _instead.update(given)
    current.cache_clear()
    try:
        yield
    finally:
        _instead.clear()
        _instead.update(before)
        current.cache_clear()


def _forget(*, setting: str, **_: object) -> None:
    if setting in NAMES:
        current.cache_clear()


setting_changed.connect(_forget, dispatch_uid="pgembed_django.conf")


def problems() -> Iterator[tuple[str, str]]:
    """Yield ``(what is wrong, what to do)`` for each unusable setting."""
    for name in sorted(dir(django_settings)):
        if name.startswith(PREFIX) and name not in NAMES:
            known = {one.removeprefix(PREFIX): one for one in NAMES}
            like = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            hint = f"Did you mean {known[like[0]]}?" if like else f"There are: {', '.join(NAMES)}."
            yield f"{name} is not a setting of pgembed_django.", hint
    for setting, name in zip(fields(Settings), NAMES, strict=True):
        value: Any = getattr(django_settings, name, setting.default)
        if remedy := _remedy(setting.name, str(setting.type), value):
            yield f"{name} is {value!r}.", remedy


def _remedy(name: str, kind: str, value: Any) -> str | None:
    if kind in ("float", "int"):
        return _remedy_of_number(name, value, is_whole=kind == "int")
    if kind == "bool" and not isinstance(value, bool):
        # A value from the environment is a string.
        return "Set it to True or False. 'False' counts as True."
    if name in CHOICES and not (isinstance(value, str) and value in CHOICES[name]):
        return f"Choose one of: {', '.join(CHOICES[name])}."
    if kind == "str" and not (isinstance(value, str) and value and value.isprintable()):
        return "Set it to a string."
    is_name = isinstance(value, str) and value and value.isprintable()
    if name == "publication" and value is not None and not is_name:
        return "Name a publication of the database. Or None."
    is_alias = isinstance(value, str) and value in connections
    if name == "worker_database" and value is not None and not is_alias:
        return f"Name an alias of DATABASES: {', '.join(connections)}. Or None."
    return None


def _remedy_of_number(name: str, value: Any, *, is_whole: bool) -> str | None:
    least = LEAST.get(name, 1) if is_whole else 0
    most = MOST.get(name, ENDLESS)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not (is_number and least <= value <= most)
        or (is_whole and value % 1)
        or (name in ABOVE_ZERO and not value)
    ):
        span = f"above 0, up to {most:,}" if name in ABOVE_ZERO else f"from {least} to {most:,}"
        return f"Set it to a {'whole ' if is_whole else ''}number {span}."
    if name == "hnsw_ef_construction":
        neighbours: object = current().hnsw_m
        if isinstance(neighbours, int) and value < 2 * neighbours:
            return f"Set it to twice PGEMBED_HNSW_M or more, which is {neighbours}."
    return None
