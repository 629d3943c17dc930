"""Where a model runs that no server serves: in this process, in its own, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from pgembed_django.core.threads import fork_safe_lock
from pgembed_django.executors.base import (
    Answer,
    Executor,
    Facts,
    Model,
    Place,
    Recipe,
    Status,
)
from pgembed_django.executors.in_process import InProcess
from pgembed_django.executors.own_process import OwnProcess

__all__ = [
    "Answer",
    "Executor",
    "Facts",
    "InProcess",
    "Model",
    "OwnProcess",
    "Place",
    "Recipe",
    "Status",
    "shared",
]

_shared: Final[WeakValueDictionary[str, Executor]] = WeakValueDictionary()
_lock: Final = fork_safe_lock()


def shared(kind: type[Executor], recipe: Recipe, options: Mapping[str, Any]) -> Executor:
    """Return this process's executor of a recipe. It ends once nothing refers to it any more.

    Two providers of one model, such as those of two spaces with other prefixes, share it.
    """
    key = repr((kind, recipe, sorted(options.items())))
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = kind(recipe, **options)
        return found
