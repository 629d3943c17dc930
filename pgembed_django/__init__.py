"""Keeps pgvector embeddings of Django rows fresh, with nothing but Postgres.

Public names are imported on first use, because Django imports this package before models can be
imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgembed_django.chunking import Chunker as Chunker
    from pgembed_django.declaration.decorator import embeddable as embeddable
    from pgembed_django.embedding.now import aembed_now as aembed_now
    from pgembed_django.embedding.now import embed_now as embed_now
    from pgembed_django.retrieval import Results as Results
    from pgembed_django.retrieval import SearchManager as SearchManager
    from pgembed_django.retrieval import SearchQuerySet as SearchQuerySet
    from pgembed_django.retrieval import asearch as asearch
    from pgembed_django.retrieval import asimilar_to as asimilar_to
    from pgembed_django.retrieval import search as search
    from pgembed_django.retrieval import similar_to as similar_to
    from pgembed_django.retrieval import warm_up as warm_up
    from pgembed_django.spaces.reembedding import enqueue as enqueue

__version__ = "0.1.0.dev0"

__all__ = [
    "Chunker",
    "Results",
    "SearchManager",
    "SearchQuerySet",
    "aembed_now",
    "asearch",
    "asimilar_to",
    "embed_now",
    "embeddable",
    "enqueue",
    "search",
    "similar_to",
    "warm_up",
]

_HOMES = {
    "Chunker": "chunking",
    "aembed_now": "embedding.now",
    "embed_now": "embedding.now",
    "embeddable": "declaration.decorator",
    "enqueue": "spaces.reembedding",
    "Results": "retrieval",
    "SearchManager": "retrieval",
    "SearchQuerySet": "retrieval",
    "asearch": "retrieval",
    "asimilar_to": "retrieval",
    "search": "retrieval",
    "similar_to": "retrieval",
    "warm_up": "retrieval",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
