"""Vectors out of hashes in place of every provider: nothing leaves the process."""

from __future__ import annotations

from typing import Any

from django.test.utils import override_settings

from pgembed_django import conf
from pgembed_django.providers.deterministic import DeterministicProvider

BACKEND = f"{DeterministicProvider.__module__}.{DeterministicProvider.__qualname__}"
KEPT = ("MODEL", "DIMENSIONS")


class fake_providers(override_settings):  # noqa: N801 - used like override_settings
    """Embed with ``DeterministicProvider``, whatever PGEMBED_PROVIDERS says.

    A context manager, and a decorator of functions and of Django's test classes. Aliases,
    models and dimensions stay; OPTIONS and quotas, which are those of another provider, do not.
    """

    def __init__(self) -> None:
        super().__init__(PGEMBED_PROVIDERS=_faked())

    def enable(self) -> None:
        """Put them in place of those that are set now."""
        self.options = {"PGEMBED_PROVIDERS": _faked()}
        super().enable()


def _faked() -> dict[str, dict[str, Any]]:
    return {
        alias: {"BACKEND": BACKEND} | {name: given[name] for name in KEPT if name in given}
        for alias, given in conf.current().providers.items()
    }
