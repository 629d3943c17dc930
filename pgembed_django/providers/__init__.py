"""The providers of PGEMBED_PROVIDERS, built once per process and setting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from pgembed_django import conf
from pgembed_django.core.threads import fork_safe_lock
from pgembed_django.exceptions import ProviderMisconfigured, did_you_mean
from pgembed_django.providers import errors
from pgembed_django.providers.base import Embedded, Provider, Vectors
from pgembed_django.providers.probes import Probe, Report, report

__all__ = ["Embedded", "Probe", "Provider", "Report", "build", "get", "report"]

NEEDED: Final = ("BACKEND", "MODEL", "DIMENSIONS")
LIMITS: Final = ("REQUESTS_PER_MINUTE", "TOKENS_PER_MINUTE")
OPTIONAL: Final = ("OPTIONS", *LIMITS)
NEVER_SECRET: Final = ("api_key_env", "header_envs", "document_prefix", "query_prefix")
"""Options with names of environment variables, which may look like keys, and with sentences."""

_lock = fork_safe_lock()
_built: dict[str, tuple[object, Provider]] = {}


def get(alias: str = "default") -> Provider:
    """Return the provider with this alias in PGEMBED_PROVIDERS.

    Raises:
        ImproperlyConfigured: the setting is wrong. The message says how, and what to do.
    """
    settings = conf.current()
    if not isinstance(settings.providers, Mapping):
        raise ImproperlyConfigured(
            "PGEMBED_PROVIDERS is not a dict. "  # not quoted: it may hold a secret
            "Set it to a dict of aliases, in the shape of DATABASES."
        )
    if alias not in settings.providers:
        known = ", ".join(map(repr, settings.providers)) or "none: set PGEMBED_PROVIDERS"
        raise ImproperlyConfigured(
            f"No provider named {alias!r}. {did_you_mean(alias, settings.providers)}"
            f"Known are: {known}."
        )
    config = settings.providers[alias]
    # Compare by value: override_settings and reloaded settings have new dicts.
    key = repr((config, settings.batch_size))
    with _lock:
        if alias in _built and _built[alias][0] == key:
            return _built[alias][1]
        provider = _from_config(alias, config, batch_size=settings.batch_size)
        if alias in _built:
            _built[alias][1].close()
        _built[alias] = (key, provider)
        return provider


def build(
    *,
    alias: str,
    backend: str,
    model: str,
    dimensions: int,
    options: Mapping[str, Any],
    batch_size: int | None = None,
) -> Provider:
    """Build a new provider. The settings need not declare it: a space may outlive its declaration.

    ``batch_size`` is the default for the option of that name.

    Raises:
        ImproperlyConfigured: an argument is wrong. The message says which, and what to do. The
            caller adds where it was set.
    """
    provider_class = _imported(backend)
    known = provider_class.known_options()
    for option in options:
        if option not in known:
            raise ImproperlyConfigured(
                f"{provider_class.__name__} has no option {option!r}. "
                f"{did_you_mean(option, known)}Its OPTIONS are: {', '.join(sorted(known))}."
            )
    if "batch_size" not in options:
        options = {**options, "batch_size": batch_size or conf.current().batch_size}
    try:
        return provider_class(alias=alias, model=model, dimensions=dimensions, **options)
    except ImproperlyConfigured:
        raise
    except Exception as error:
        raise ImproperlyConfigured(
            f"{provider_class.__name__} cannot be built with these values: "
            f"{type(error).__name__}: {errors.quote(str(error))}"
        ) from error


def _imported(backend: Any) -> type[Provider]:
    problem = "which is not a subclass of pgembed_django.providers.Provider"
    provider_class = None
    try:
        provider_class = import_string(backend)
    except (ImportError, ValueError) as error:  # ValueError: the path begins with a dot
        problem = f"which cannot be imported: {error}"
    except (AttributeError, TypeError):
        problem = "which is not a string"
    if isinstance(provider_class, type) and issubclass(provider_class, Provider):
        return provider_class
    raise ImproperlyConfigured(
        f"BACKEND is {backend!r}, {problem}. It takes the dotted path of a provider class."
    )


def _from_config(alias: str, config: Mapping[str, Any], *, batch_size: int) -> Provider:
    where = f"PGEMBED_PROVIDERS[{alias!r}]"
    if not isinstance(alias, str):
        raise ImproperlyConfigured(f"{where}: the alias is not a string. Name it by one.")
    if not isinstance(config, Mapping):
        raise ImproperlyConfigured(
            f"{where} is not a dict. Set it to a dict of {', '.join(NEEDED)}."
        )
    if missing := [key for key in NEEDED if key not in config]:
        raise ImproperlyConfigured(f"{where} has no {missing[0]}. It needs {', '.join(NEEDED)}.")
    known = NEEDED + OPTIONAL
    if unknown := [key for key in config if key not in known]:
        raise ImproperlyConfigured(
            f"{where} has an unknown key {unknown[0]!r}. {did_you_mean(unknown[0], known)}Known "
            f"are: {', '.join(known)}; what the provider itself takes goes into OPTIONS."
        )
    for key in LIMITS:
        limit = config.get(key)
        if limit is not None and (type(limit) is not int or not 1 <= limit <= conf.ENDLESS):
            raise ImproperlyConfigured(
                f"{where}: {key} is {limit!r}. Set it to a whole number from 1 to "
                f"{conf.ENDLESS:,}, or leave it out."
            )
    options = config.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f"{where}: OPTIONS is not a dict. Set it to a dict.")
    _require_storable(where, str(config["MODEL"]), options)
    try:
        return build(
            alias=alias,
            backend=config["BACKEND"],
            model=config["MODEL"],
            dimensions=config["DIMENSIONS"],
            options=options,
            batch_size=batch_size,
        )
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(f"{where}: {error}") from error


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
