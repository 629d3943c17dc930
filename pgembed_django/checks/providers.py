"""Check that the providers answer. Runs only with ``check --deploy``, as it sends requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf, providers


def check_providers(**_: Any) -> list[CheckMessage]:
    """Return an error for each provider that does not answer as it should."""
    found: list[CheckMessage] = []
    known: object = conf.current().providers
    for alias in known if isinstance(known, Mapping) else ():
        try:
            probe = providers.get(alias).probe()
        except ImproperlyConfigured:
            continue  # check_settings reports it
        if not probe.ok:
            found.append(
                Error(
                    f"The provider {alias!r} is not well: {probe.message}",
                    hint=f"Look closer with: manage.py embed_probe {alias}",
                    id="pgembed.E021" if probe.reachable else "pgembed.E020",
                )
            )
    return found
