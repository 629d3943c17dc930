"""Replace every provider by one that makes vectors from hashes of the texts, without a network."""

from __future__ import annotations

from typing import Any

from django.test.utils import override_settings

from pgembed_django import conf
from pgembed_django.providers.deterministic import DeterministicProvider

BACKEND = f"{DeterministicProvider.__module__}.{DeterministicProvider.__qualname__}"
KEPT = ("MODEL", "DIMENSIONS")


class fake_providers(override_settings):  # noqa: N801 - used like override_settings
    """Embeds with ``DeterministicProvider`` instead of each BACKEND in PGEMBED_PROVIDERS.

    A context manager, and a decorator for functions and Django's test classes. It keeps aliases,
    models and dimensions, and drops OPTIONS and quotas, which are made for the real provider.
    """

    def __init__(self) -> None:
        super().__init__(PGEMBED_PROVIDERS=_faked())

    def enable(self) -> None:
        """Replace the providers that are set now."""
        self.options = {"PGEMBED_PROVIDERS": _faked()}
        super().enable()


def _faked() -> dict[str, dict[str, Any]]:
    return {
        alias: {"BACKEND": BACKEND} | {name: given[name] for name in KEPT if name in given}
        for alias, given in conf.current().providers.items()
    }
