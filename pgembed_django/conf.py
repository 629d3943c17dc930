"""The settings: flat ``PGEMBED_*`` names with their unit, read when they are needed.

``current()`` gives all of them, ``problems()`` what a system check says of them.
Zero switches a loop off, where the setting's own words say so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import connections

PREFIX = "PGEMBED_"
LEAST = {"index_rows": 0, "index_workers": 0, "hnsw_m": 2, "hnsw_ef_construction": 4}
"""Whole numbers with another lower bound than one. HNSW's are those that pgvector takes."""

MOST = {"hnsw_m": 100, "hnsw_ef_construction": 1000}

ENDLESS = 10**9
"""The most of all other numbers. No lock is waited for longer, and Postgres adds no infinity."""

ABOVE_ZERO = {"lease_seconds"}
"""A lease of no time is over when it begins: jobs of healthy workers would count as crashed."""

CHOICES = {"index_type": ("auto", "vector", "halfvec", "binary")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting with its default. ``lease_seconds`` is ``PGEMBED_LEASE_SECONDS``."""

    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Alias -> BACKEND (dotted path), MODEL, DIMENSIONS and OPTIONS."""

    lease_seconds: float = 600
    """How long a claim holds without a heartbeat. Heartbeats come every third of it."""

    poll_seconds: float = 30
    """The longest a job waits when every notification is lost. Zero: until the next one."""

    reap_seconds: float = 30
    """How often expired leases are looked for. Zero: never."""

    reconcile_seconds: float = 300
    """How often rows without vectors and vectors without a row are looked for.

    Zero: never, and no stale ones either. Those are read a page every ten seconds otherwise.
    """

    max_attempts: int = 5
    """Failures after which a job is failed."""

    max_crashes: int = 3
    """Leases that may run out before a job is failed as ``worker lost``.

    Also how often its provider may go down at its text alone.
    """

    backoff_seconds: float = 5
    """The wait before the second attempt. It doubles with each one, with jitter."""

    batch_size: int = 32
    """Texts in one request, unless the provider's OPTIONS say otherwise."""

    concurrency: int = 2
    """Requests in flight at once, per provider."""

    claim_limit: int = 500
    """The most units that one claim takes."""

    notify: bool = True
    """Whether idle workers LISTEN. Without it a job waits up to ``poll_seconds``."""

    stop_grace_seconds: float = 20
    """How long a stopping worker waits for requests in flight."""

    stuck_seconds: float = 300
    """How long the worker's loop may be at one round before its process counts as stuck.

    Zero: never. Waiting for the database does not count.
    """

    keep_succeeded_seconds: float = 3600
    """How long succeeded jobs are kept. Zero deletes them on success."""

    text_search_config: str = "english"
    """The full-text configuration that passages are stored with."""

    query_seconds: float = 2.0
    """How long a search waits for its query's vector. Then it finds by words alone.

    Zero never asks for one.
    """

    index_rows: int = 20_000
    """With how many chunks a space gets its indexes. Zero builds none."""

    index_type: str = "auto"
    """What the index of vectors holds: ``vector``, ``halfvec`` or ``binary``, their signs.

    ``auto`` is the first of them that takes vectors of the space's width.
    """

    index_workers: int = 0
    """Processes that Postgres may add to the one that builds an index.

    They take CPU from searches.
    """

    hnsw_m: int = 16
    """HNSW: neighbours of each vector, 2 to 100."""

    hnsw_ef_construction: int = 128
    """HNSW: candidates looked at while an index is built, no fewer than twice ``hnsw_m``."""

    hnsw_ef_search: int = 200
    """HNSW: candidates that a search keeps in view, at the least. pgvector takes up to 1,000."""

    retired_seconds: float = 86_400
    """How long a retired space keeps its vectors, so that going back to it is quick."""

    switch_early: bool = False
    """Whether a space that is still being built is searched once the old model is out of reach.

    Otherwise searches that cannot embed their query fall back to full text until it is full.
    """

    tracing: bool = False
    """Whether writes leave their trace on their jobs, and workers make spans (OpenTelemetry)."""

    worker_database: str | None = None
    """The alias that workers use where the application's goes through a pooler."""

    def provider_name(self, alias: str, model: str) -> str:
        """Return what people call a provider: its alias.

        The model is added if the alias now declares another: they may be two servers.
        """
        is_declared = self.providers.get(alias, {}).get("MODEL") == model
        return alias if is_declared else f"{alias} ({model})"


_instead: dict[str, Any] = {}

NAMES = tuple(f"{PREFIX}{setting.name.upper()}" for setting in fields(Settings))


@functools.cache
def current() -> Settings:
    """Return the settings as they are now: a test's ``override_settings`` counts.

    What ``instead`` gives counts before them.
    """
    given = {
        setting.name: getattr(django_settings, name)
        for setting, name in zip(fields(Settings), NAMES, strict=True)
        if hasattr(django_settings, name)
    }
    return Settings(**{**given, **_instead})


@contextmanager
def instead(**given: Any) -> Iterator[None]:
    """Let a command's options count instead of the settings, in all threads of this process.

    What is built from a setting elsewhere, like a provider, follows the option then, too.
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
            yield f"{name} is no setting of pgembed_django.", f"There are: {', '.join(NAMES)}."
    for setting, name in zip(fields(Settings), NAMES, strict=True):
        value: Any = getattr(django_settings, name, setting.default)
        if remedy := _remedy(setting.name, str(setting.type), value):
            yield f"{name} is {value!r}.", remedy


def _remedy(name: str, kind: str, value: Any) -> str | None:
    if kind in ("float", "int"):
        least = LEAST.get(name, 1) if kind == "int" else 0
        most = MOST.get(name, ENDLESS)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (kind == "int" and value % 1):
            whole = "whole " if kind == "int" else ""
            return f"Set it to a {whole}number from {least} to {most:,}."
        if name in ABOVE_ZERO and not value:
            return "Set it to a number above zero."
        neighbours: object = current().hnsw_m
        if (
            name == "hnsw_ef_construction"
            and isinstance(neighbours, int)
            and value < 2 * neighbours
        ):
            return f"Set it to twice PGEMBED_HNSW_M or more, which is {neighbours}."
    elif kind == "bool" and not isinstance(value, bool):
        # From the environment it comes as a string.
        return "Set it to True or False. 'False' counts as True."
    elif name in CHOICES and value not in CHOICES[name]:
        return f"Choose one of: {', '.join(CHOICES[name])}."
    elif kind == "str" and not isinstance(value, str):
        return "Set it to a string."
    elif name == "worker_database" and value is not None and value not in connections:
        return f"Name an alias of DATABASES: {', '.join(connections)}. Or None."
    return None
