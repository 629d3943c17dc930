"""Build what a setting declares by alias: the providers, and the rerankers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from pgembed_django.core.options import Options
from pgembed_django.core.threads import fork_safe_lock
from pgembed_django.exceptions import did_you_mean
from pgembed_django.providers import errors

Kind = TypeVar("Kind", bound=Options)


class Registry(Generic[Kind]):
    """What one setting declares, built once per process and value of the setting."""

    def __init__(self, *, setting: str, noun: str) -> None:
        self._setting = setting
        self._noun = noun
        self._lock = fork_safe_lock()
        self._built: dict[str, tuple[str, Kind]] = {}

    def get(
        self,
        alias: str,
        declared: object,
        *,
        build: Callable[[str, Any], Kind],
        depends_on: object = None,
    ) -> Kind:
        """Return what has this alias in the setting, whose value is ``declared``.

        ``depends_on``: what else ``build`` reads.

        Raises:
            ImproperlyConfigured: the setting is wrong. The message says how, and what to do.
        """
        if not isinstance(declared, Mapping):
            raise ImproperlyConfigured(
                f"{self._setting} is not a dict. "  # not quoted: it may hold a secret
                "Set it to a dict of aliases, in the shape of DATABASES."
            )
        if alias not in declared:
            known = ", ".join(map(repr, declared)) or f"none: set {self._setting}"
            raise ImproperlyConfigured(
                f"No {self._noun} named {alias!r}. {did_you_mean(alias, declared)}"
                f"Known are: {known}."
            )
        config = declared[alias]
        # Compare by value: override_settings and reloaded settings have new dicts.
        key = repr((config, depends_on))
        with self._lock:
            if alias in self._built and self._built[alias][0] == key:
                return self._built[alias][1]
            made = build(alias, config)
            if alias in self._built:
                self._built[alias][1].close()
            self._built[alias] = (key, made)
            return made


def options_of(
    where: str, alias: object, config: object, *, needed: Sequence[str], optional: Sequence[str]
) -> Mapping[str, Any]:
    """Return the OPTIONS of what is declared. ``where`` it is declared begins each message.

    Raises:
        ImproperlyConfigured: it is no dict with all that is needed, or has something else.
    """
    if not isinstance(alias, str):
        raise ImproperlyConfigured(f"{where}: the alias is not a string. Name it by one.")
    if not isinstance(config, Mapping):
        raise ImproperlyConfigured(
            f"{where} is not a dict. Set it to a dict of {', '.join(needed)}."
        )
    if missing := [key for key in needed if key not in config]:
        raise ImproperlyConfigured(f"{where} has no {missing[0]}. It needs {', '.join(needed)}.")
    known = (*needed, *optional, "OPTIONS")
    if unknown := [key for key in config if key not in known]:
        raise ImproperlyConfigured(
            f"{where} has an unknown key {unknown[0]!r}. {did_you_mean(unknown[0], known)}Known "
            f"are: {', '.join(known)}; what the class itself takes goes into OPTIONS."
        )
    options = config.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f"{where}: OPTIONS is not a dict. Set it to a dict.")
    return options


def class_of(backend: Any, base: type[Kind]) -> type[Kind]:
    """Return the class with a dotted path, a subclass of ``base``.

    Raises:
        ImproperlyConfigured: there is none.
    """
    name = base.__name__.lower()
    problem = f"which is not a subclass of pgembed_django.{name}s.{base.__name__}"
    found = None
    try:
        found = import_string(backend)
    except (ImportError, ValueError) as error:  # ValueError: the path begins with a dot
        problem = f"which cannot be imported: {error}"
    except (AttributeError, TypeError):
        problem = "which is not a string"
    if isinstance(found, type) and issubclass(found, base):
        return found
    raise ImproperlyConfigured(
        f"BACKEND is {backend!r}, {problem}. It takes the dotted path of a {name} class."
    )


def require_known(kind: type[Options], options: Mapping[str, Any]) -> None:
    """Raise ``ImproperlyConfigured`` if a class has no option of that name."""
    known = kind.known_options()
    for option in options:
        if option not in known:
            raise ImproperlyConfigured(
                f"{kind.__name__} has no option {option!r}. "
                f"{did_you_mean(option, known)}Its OPTIONS are: {', '.join(sorted(known))}."
            )


def construct(kind: type[Kind], **values: Any) -> Kind:
    """Call a class. Any error becomes ``ImproperlyConfigured``."""
    try:
        return kind(**values)
    except ImproperlyConfigured:
        raise
    except Exception as error:
        raise ImproperlyConfigured(
            f"{kind.__name__} cannot be built with these values: "
            f"{type(error).__name__}: {errors.quote(str(error))}"
        ) from error
