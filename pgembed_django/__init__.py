"""Keeps pgvector embeddings of Django rows fresh, with nothing but Postgres.

What is public is imported when it is asked for: Django imports this package before
any model may be.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgembed_django.chunkers import Chunker as Chunker
    from pgembed_django.decorator import embeddable as embeddable
    from pgembed_django.search import search as search
    from pgembed_django.search import similar_to as similar_to

__all__ = ["Chunker", "embeddable", "search", "similar_to"]

_HOMES = {
    "Chunker": "chunkers",
    "embeddable": "decorator",
    "similar_to": "search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Package(ModuleType):
    """Loading the module ``search`` would put it in the place of the function."""

    @property
    def search(self) -> Any:
        """Return the function."""
        return import_module(f"{__name__}.search").search

    @search.setter
    def search(self, module: ModuleType) -> None:
        """Leave the function in its place."""


sys.modules[__name__].__class__ = _Package
