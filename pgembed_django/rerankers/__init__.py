"""The rerankers of PGEMBED_RERANKERS, built once per process and setting."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf
from pgembed_django.providers import declared
from pgembed_django.providers.declared import Registry
from pgembed_django.rerankers.base import Reranker

__all__ = ["Reranker", "get"]

NEEDED: Final = ("BACKEND", "MODEL")

_registry: Final[Registry[Reranker]] = Registry(setting="PGEMBED_RERANKERS", noun="reranker")


def get(alias: str) -> Reranker:
    """Return the reranker with this alias in PGEMBED_RERANKERS.

    Raises:
        ImproperlyConfigured: the setting is wrong. The message says how, and what to do.
    """
    return _registry.get(alias, conf.current().rerankers, build=_from_config)


def _from_config(alias: str, config: Any) -> Reranker:
    where = f"PGEMBED_RERANKERS[{alias!r}]"
    options = declared.options_of(where, alias, config, needed=NEEDED, optional=())
    try:
        kind = declared.class_of(config["BACKEND"], Reranker)  # type: ignore[type-abstract]
        declared.require_known(kind, options)
        return declared.construct(kind, alias=alias, model=config["MODEL"], **options)
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(f"{where}: {error}") from error
