"""Options that a class takes as keywords: what they may be, and errors that say so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from pgembed_django.conf import ENDLESS

Value = TypeVar("Value")


class Options:
    """Describes and checks the options of a class, which are the keywords of its ``__init__``.

    Errors name the option and the remedy.
    """

    @classmethod
    def known_options(cls) -> set[str]:
        """Return the names that OPTIONS may hold."""
        return {
            name
            for ancestor in cls.__mro__
            if "__init__" in vars(ancestor)
            for name, parameter in inspect.signature(ancestor).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        } - {"alias", "model", "dimensions", "clock"}

    @staticmethod
    def wrong(option: str, value: object, remedy: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f"{option} is {value!r}. {remedy}.")

    @staticmethod
    def optional(
        check: Callable[[str, Value], Value], option: str, value: Value | None
    ) -> Value | None:
        """Return the value of an option that may be left out, which only None stands for."""
        try:
            return None if value is None else check(option, value)
        except ImproperlyConfigured as error:
            said = str(error).removesuffix(".")
            raise ImproperlyConfigured(f"{said}, or leave it out.") from None

    def whole(self, option: str, value: int) -> int:
        """Return the value of an option that must be a whole number of one or more."""
        if type(value) is not int or value < 1:
            raise self.wrong(option, value, "Set it to a whole number of one or more")
        return value

    def string(self, option: str, value: str) -> str:
        """Return the value of an option that must be a string."""
        if not isinstance(value, str):
            raise self.wrong(option, value, "Set it to a string")
        return value

    def name(self, option: str, value: str) -> str:
        """Return the value of an option that must be a string with something in it."""
        if not self.string(option, value).strip():
            raise self.wrong(option, value, "Give a name")
        return value

    def flag(self, option: str, value: bool) -> bool:
        """Return the value of an option: no "False" from the environment, which would be true."""
        if not isinstance(value, bool):
            raise self.wrong(option, value, "Set it to True or False")
        return value

    def mapping(self, option: str, value: Mapping[str, Value] | None) -> Mapping[str, Value]:
        """Return the value of an option that must be a dict. The error does not quote secrets."""
        if value is not None and not isinstance(value, Mapping):
            raise ImproperlyConfigured(f"{option} is not a dict. Give a dict of names and values.")
        return value or {}

    def seconds(self, option: str, value: float) -> float:
        """Return the value of an option that must be a positive number of seconds."""
        if type(value) not in (int, float) or not 0 < value <= ENDLESS:
            raise self.wrong(option, value, f"Set it to seconds above zero, up to {ENDLESS:,}")
        return value

    def close(self) -> None:
        """Close the connections. It may be used again."""
