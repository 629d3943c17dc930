"""What a task is called with and what it returns, as JSON that the database can store.

Pure: no database.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pgembed_django.core.text import SURROGATE


def normalized(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as the function will get them: tuples become lists.

    Raises:
        TypeError: one has no form in JSON.
        ValueError: one is a number or text that the database cannot store.
    """
    return (
        [_normalized(value, f"argument {number}") for number, value in enumerate(args, 1)],
        {
            text(name, "a name of an argument"): _normalized(value, f"argument {name!r}")
            for name, value in kwargs.items()
        },
    )


def stored(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return normalized arguments as they are stored."""
    return json.dumps({"args": args, "kwargs": kwargs}, ensure_ascii=False)


def returned(value: Any) -> Any:
    """Return what a function has returned as it is kept.

    Raises:
        TypeError, ValueError: it cannot be stored as JSON.
    """
    return _normalized(value, "the return value")


def _normalized(value: Any, where: str) -> Any:
    match value:
        case str():
            return text(value, where)
        case float() if not math.isfinite(value):
            raise ValueError(f"{where} has {value}, which JSON has no number for.")
        case None | bool() | int() | float():
            return value
        case bytes():
            try:
                return text(value.decode(), where)
            except UnicodeDecodeError:
                raise ValueError(f"{where} has bytes that are not UTF-8. Encode them.") from None
        case Mapping():
            return {_key(key, where): _normalized(item, where) for key, item in value.items()}
        case Sequence():
            return [_normalized(item, where) for item in value]
    raise TypeError(
        f"Unsupported type: {type(value)} in {where}, which is stored as JSON. Use a string or a "
        "number, of a row its primary key."
    )


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return text(key, where)
    raise TypeError(f"{where} has a dict with the key {key!r}. The keys in JSON are strings.")


def text(given: str, where: str) -> str:
    """Return a text that the database can store.

    Raises:
        ValueError: it has a character that it cannot.
    """
    if "\0" in given:
        raise ValueError(f"{where} has a NUL character, which PostgreSQL cannot store. Remove it.")
    if not given.isascii() and SURROGATE.search(given):
        raise ValueError(f"{where} has half of a surrogate pair, which is no character. Remove it.")
    return given
