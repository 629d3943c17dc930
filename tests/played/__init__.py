"""Servers played on a real socket, as they answer in the wild: Ollama, OpenAI's kin, rerankers.

Only the far side is played. Their vectors come from the text alone, so that a test sees
whether each text got its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from tests.played.ollama import Ollama
from tests.played.openai import Cutting, OpenAI
from tests.played.replies import (
    DRIP,
    EMPTY,
    HANG_UP,
    HTML,
    NO_ROUTE,
    SILENT,
    Reply,
    Seen,
    plain,
    reply,
    vector_of,
)
from tests.played.reranking import Reranking
from tests.played.server import Server, serving

__all__ = [
    "DRIP",
    "EMPTY",
    "HANG_UP",
    "HTML",
    "NO_ROUTE",
    "SILENT",
    "Clock",
    "Cutting",
    "Ollama",
    "OpenAI",
    "Reply",
    "Reranking",
    "Seen",
    "Server",
    "making",
    "plain",
    "reply",
    "serving",
    "vector_of",
]


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def making(
    provider_class: type[Any], server_class: type[Server], *, path: str = ""
) -> Iterator[Callable[..., Any]]:
    """The body of a fixture: yield a factory of providers, each with its server as ``played``."""
    with ExitStack() as stack:

        def make(server: Server | None = None, **options: object) -> Any:
            server = stack.enter_context(serving(server or server_class()))
            given = {"model": server.model, "dimensions": server.width}
            given |= {"base_url": server.url + path, **options}
            provider = provider_class(alias="tested", **given)
            stack.callback(provider.close)
            provider.played = server
            return provider

        yield make
