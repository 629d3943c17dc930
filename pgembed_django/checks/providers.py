"""Check that the providers answer. Runs only with ``check --deploy``, as it sends requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf, providers


def check_providers(**_: Any) -> list[CheckMessage]:
    """Return an error for each provider that does not answer as it should.

    If it does, but its server does not list its model, that is a warning.
    """
    found: list[CheckMessage] = []
    known: object = conf.current().providers
    for alias in known if isinstance(known, Mapping) else ():
        try:
            probe = providers.get(alias).probe()
        except ImproperlyConfigured:
            continue  # check_settings reports it
        hint = f"Look closer with: manage.py embed_probe {alias}"
        if not probe.ok:
            found.append(
                Error(
                    f"The provider {alias!r} is not well: {probe.message} {probe.doubt}".rstrip(),
                    hint=hint,
                    id="pgembed.E021" if probe.reachable else "pgembed.E020",
                )
            )
        elif probe.doubt:
            found.append(
                Warning(
                    f"The provider {alias!r} may be another model: {probe.doubt}",
                    hint=hint,
                    id="pgembed.W013",
                )
            )
    return found
