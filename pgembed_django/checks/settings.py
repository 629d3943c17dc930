"""Check the settings, and with ``check --deploy`` whether the providers answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pgtrigger.features
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf, providers, rerankers
from pgembed_django.contrib import tracing
from pgembed_django.declaration import specs

NEEDED_APPS = ("pgtrigger", "django.contrib.postgres")


def check_settings(**_: Any) -> list[CheckMessage]:
    """Return the faults of INSTALLED_APPS, of our settings and of those of other apps."""
    declared = conf.current()
    return [
        *_settings(),
        *_declared("PGEMBED_PROVIDERS", declared.providers, providers.get, id="pgembed.E003"),
        *_declared("PGEMBED_RERANKERS", declared.rerankers, rerankers.get, id="pgembed.E027"),
        *_caches(),
    ]


def _settings() -> Iterator[CheckMessage]:
    for app in NEEDED_APPS:
        if not apps.is_installed(app):
            yield Error(
                f"{app!r} is not in INSTALLED_APPS.",
                hint=f"pgembed_django needs it: add {app!r}.",
                id="pgembed.E001",
            )
    for what, remedy in conf.problems():
        yield Error(what, hint=remedy, id="pgembed.E002")
    if conf.current().tracing is True and not tracing.is_installed():
        yield Error(tracing.MISSING, hint=tracing.REMEDY, id="pgembed.E009")
    features: Any = pgtrigger.features
    if not features.migrations():
        yield Warning(
            "makemigrations will not write the triggers that keep embeddings fresh.",
            hint="Leave PGTRIGGER_MIGRATIONS and PGTRIGGER_MODEL_META at their defaults, or run "
            "'manage.py pgtrigger install' after each migrate.",
            id="pgembed.W002",
        )


def _declared(
    name: str,
    setting: object,
    get: Callable[[str], object],
    *,
    id: str,  # noqa: A002
) -> Iterator[CheckMessage]:
    if not isinstance(setting, Mapping):
        yield Error(
            f"{name} is not a dict.",
            hint="Set it to a dict of aliases, in the shape of DATABASES.",
            id=id,
        )
        return
    for alias in setting:
        try:
            get(alias)
        except ImproperlyConfigured as error:
            # The last sentence of such a message says what to do.
            what, _, remedy = str(error).rpartition(". ")
            message, hint = (f"{what}.", remedy) if what else (remedy, None)
            yield Error(message, hint=hint, id=id)


def _caches() -> Iterator[CheckMessage]:
    is_on = getattr(django_settings, "CACHALOT_ENABLED", True)
    if not (apps.is_installed("cachalot") and is_on):
        return
    spared_apps = getattr(django_settings, "CACHALOT_UNCACHABLE_APPS", ())
    spared = getattr(django_settings, "CACHALOT_UNCACHABLE_TABLES", ())
    models = {*apps.get_app_config("pgembed").get_models()}
    models |= {spec.embedding_model for spec in specs.all()}
    tables = {model._meta.db_table for model in models if model._meta.app_label not in spared_apps}
    if cached := sorted(tables.difference(spared)):
        yield Warning(
            "django-cachalot caches queries of tables that triggers and workers write without its "
            f"knowledge: {', '.join(cached)}.",
            hint="Add 'pgembed' to CACHALOT_UNCACHABLE_APPS and the tables of vectors to "
            "CACHALOT_UNCACHABLE_TABLES, and run the embed_ commands with CACHALOT_ENABLED = "
            "False: with old answers a change of model never ends.",
            id="pgembed.W011",
        )


def check_providers(**_: Any) -> list[CheckMessage]:
    """Ask each provider to embed a word. Return an error for each that fails.

    If one answers, but its server does not list its model, that is a warning. So is a model in a
    process of its own that takes longer to start than half a lease.
    """
    found: list[CheckMessage] = []
    lease_seconds = conf.current().lease_seconds
    for alias in conf.current().declared:
        try:
            provider = providers.get(alias)
            probe = provider.probe()
        except ImproperlyConfigured:
            continue  # check_settings reports it
        hint = f"For details, run manage.py embed_probe {alias}"
        if not probe.ok:
            message = f"The provider {alias!r} failed: {probe.message} {probe.doubt}".rstrip()
            kind = "pgembed.E021" if probe.reachable else "pgembed.E020"
            found.append(Error(message, hint=hint, id=kind))
        elif probe.doubt:
            message = f"The provider {alias!r} may have another model: {probe.doubt}"
            found.append(Warning(message, hint=hint, id="pgembed.W013"))
        seconds = provider.start_seconds
        if seconds * 2 > lease_seconds:
            found.append(
                Warning(
                    f"The model of the provider {alias!r} takes {seconds:.0f} s to start, and a "
                    f"lease lasts {lease_seconds:g} s.",
                    hint=f"Set PGEMBED_LEASE_SECONDS to {math.ceil(seconds * 2)} or more: jobs "
                    "wait for a model that has to start again.",
                    id="pgembed.W022",
                )
            )
    return found
