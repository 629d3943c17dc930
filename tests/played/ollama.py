"""Ollama, played."""

from __future__ import annotations

from typing import Any

from tests.played.replies import NO_ROUTE, Reply, Seen, reply, vector_of
from tests.played.server import Server


class Ollama(Server):
    """Ollama at a version, which decides its routes, its order and its answers."""

    routes = ("/api/embed", "/api/embeddings")

    def __init__(self, *, version: str | None = "0.33.0", **common: Any) -> None:
        super().__init__(**common)
        self.version = version
        self.models = {f"{self.model}:latest": "sha-one"}

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(map(int, (self.version or "0.33.0").split(".")))

    def embed(self, seen: Seen) -> Reply:
        if seen.path == "/api/embed" and self.number < (0, 2, 6):
            return NO_ROUTE
        name = seen.payload["model"]
        if f"{name}:latest" not in self.models and name not in self.models:
            return reply({"error": f'model "{name}" not found, try pulling it first'}, 404)
        if seen.path == "/api/embeddings":
            # Not of length one, here.
            vector = 13.6 * vector_of(seen.payload["prompt"], self.width).astype(float)
            return reply({"embedding": vector.tolist()})
        texts = seen.payload["input"]
        if any(len(text) > self.context for text in texts):
            if not seen.payload.get("truncate", True):
                return reply({"error": "the input length exceeds the context length"}, 400)
            texts = [text[: self.context] for text in texts]
        width = min(self.width, seen.payload.get("dimensions") or self.width)
        rows = [vector_of(text, width).tolist() for text in texts]
        if (0, 2, 6) <= self.number < (0, 3, 5):
            rows.reverse()
        return reply({"model": name, "embeddings": rows, "total_duration": 1})

    def other(self, seen: Seen) -> Reply:
        if seen.path == "/api/version" and self.version:
            return reply({"version": self.version})
        if seen.path == "/api/tags":
            models = [{"name": name, "digest": digest} for name, digest in self.models.items()]
            return reply({"models": models})
        return NO_ROUTE
