"""The providers of PGEMBED_PROVIDERS, built once per process and setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from pgembed_django import conf
from pgembed_django.exceptions import ProviderMisconfigured
from pgembed_django.providers import declared, errors
from pgembed_django.providers.base import Embedded, Provider, Vectors
from pgembed_django.providers.declared import Registry
from pgembed_django.providers.local import LocalProvider
from pgembed_django.providers.probes import Probe, Report, report

__all__ = ["Embedded", "Probe", "Provider", "Report", "build", "get", "report"]

NEEDED: Final = ("BACKEND", "MODEL", "DIMENSIONS")
LIMITS: Final = ("REQUESTS_PER_MINUTE", "TOKENS_PER_MINUTE")
OPTIONAL: Final = (*LIMITS, "EXECUTOR")
NEVER_SECRET: Final = ("api_key_env", "header_envs", "document_prefix", "query_prefix")
"""Options with names of environment variables, which may look like keys, and with sentences."""

_registry: Final[Registry[Provider]] = Registry(setting="PGEMBED_PROVIDERS", noun="provider")


def get(alias: str = "default") -> Provider:
    """Return the provider with this alias in PGEMBED_PROVIDERS.

    Raises:
        ImproperlyConfigured: the setting is wrong. The message says how, and what to do.
    """
    settings = conf.current()
    batch_size = settings.batch_size
    return _registry.get(
        alias,
        settings.providers,
        build=partial(_from_config, batch_size=batch_size),
        depends_on=batch_size,
    )


def build(
    *,
    alias: str,
    backend: str,
    model: str,
    dimensions: int,
    options: Mapping[str, Any],
    batch_size: int | None = None,
    executor: Mapping[str, Any] | None = None,
) -> Provider:
    """Build a new provider. The settings need not declare it: a space may outlive its declaration.

    ``batch_size`` is the default for the option of that name, where a server is asked. ``executor``
    is EXECUTOR, for a model that one can run.

    Raises:
        ImproperlyConfigured: an argument is wrong. The message says which, and what to do. The
            caller adds where it was set.
    """
    kind: type[Provider] = declared.class_of(backend, Provider)  # type: ignore[type-abstract]
    declared.require_known(kind, options)
    is_local = issubclass(kind, LocalProvider)
    if "batch_size" not in options and not is_local:
        options = {**options, "batch_size": batch_size or conf.current().batch_size}
    made = declared.construct(kind, alias=alias, model=model, dimensions=dimensions, **options)
    if executor is not None and isinstance(made, LocalProvider):
        made.run_by(executor)
    return made


def _from_config(alias: str, config: Mapping[str, Any], *, batch_size: int) -> Provider:
    where = f"PGEMBED_PROVIDERS[{alias!r}]"
    options = declared.options_of(where, alias, config, needed=NEEDED, optional=OPTIONAL)
    for key in LIMITS:
        limit = config.get(key)
        if limit is not None and (type(limit) is not int or not 1 <= limit <= conf.ENDLESS):
            raise ImproperlyConfigured(
                f"{where}: {key} is {limit!r}. Set it to a whole number from 1 to "
                f"{conf.ENDLESS:,}, or leave it out."
            )
    _require_storable(where, str(config["MODEL"]), options)
    executor = config.get("EXECUTOR")
    try:
        made = build(
            alias=alias,
            backend=config["BACKEND"],
            model=config["MODEL"],
            dimensions=config["DIMENSIONS"],
            options=options,
            batch_size=batch_size,
            executor=executor,
        )
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(f"{where}: {error}") from error
    if executor is not None and not isinstance(made, LocalProvider):
        raise ImproperlyConfigured(
            f"{where}: EXECUTOR is set, and no model of {type(made).__name__} can be run by one. "
            "Leave it out."
        )
    return made


def _require_storable(where: str, model: str, options: Mapping[str, Any]) -> None:
    """Refuse what Postgres cannot store as JSON, and what must not be stored."""
    try:
        text = json.dumps([model, options], allow_nan=False, ensure_ascii=False)
        text.encode()  # a lone surrogate fails here
    except (TypeError, ValueError) as error:
        problem = str(error)
    else:
        problem = "a text has a NUL in it" if r"\u0000" in text else ""
    if problem:
        raise ImproperlyConfigured(
            f"{where}: MODEL or OPTIONS cannot be stored as JSON: {problem}. "
            "It is kept in the database: use only strings, numbers, lists and dicts."
        )
    checked = {name: value for name, value in options.items() if name not in NEVER_SECRET}
    if errors.has_secret(json.dumps(checked)):
        raise ImproperlyConfigured(
            f"{where}: OPTIONS holds a key or a password, and is kept in the database. Let an "
            "option name an environment variable, as api_key_env and header_envs do."
        )


class NotInstalled(Provider):
    """Stands for a provider that this process cannot build: its class, package or option is gone.

    Every request raises the reason.
    """

    def __init__(self, *, reason: str, space_id: int, **common: Any) -> None:
        super().__init__(**common)
        self.space_id = space_id
        self._reason = reason

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        raise ProviderMisconfigured(self._reason)

    def warm_up(self) -> None:
        raise ProviderMisconfigured(self._reason)
