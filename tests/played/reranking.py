"""Servers that rerank, played: Jina's kin, and text-embeddings-inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.played.replies import Reply, Seen, plain, reply
from tests.played.server import Server


def shared_words(query: str, passage: str) -> float:
    return float(len(set(query.casefold().split()) & set(passage.casefold().split())))


class Reranking(Server):
    """Any server with /rerank. ``score`` is its model. ``kin`` decides what it takes and answers.

    Jina's kin: Jina, Cohere, vLLM, infinity, llama.cpp. Cohere refuses names that it does not know.
    """

    routes = ("/rerank", "/v1/rerank", "/v2/rerank")
    takes = frozenset(("model", "query", "documents", "top_n"))

    def __init__(self, *, kin: str = "jina", **common: Any) -> None:
        super().__init__(**common)
        self.kin = kin
        self.score: Callable[[str, str], float] = shared_words

    def embed(self, seen: Seen) -> Reply:
        if self.kin == "tei":
            return self.as_tei(seen.payload)
        if unknown := seen.payload.keys() - self.takes:
            said = f"unknown field: parameter '{min(unknown)}' is not a valid field."
            return reply({"id": "1", "message": said}, 422)
        query, texts = seen.payload["query"], seen.payload["documents"]
        # The best come first, and no more of them than was asked for.
        rows = [
            {"index": index, "relevance_score": score, "document": {"text": texts[index]}}
            for index, score in self.ranked(query, texts)
        ]
        return reply({"model": self.model, "results": rows[: seen.payload["top_n"]]})

    def as_tei(self, payload: dict[str, Any]) -> Reply:
        if "texts" not in payload:
            said = "missing field `texts` at line 1 column 90"
            return plain(422, f"Failed to deserialize the JSON body into the target type: {said}")
        texts = payload["texts"]
        if len(texts) > 32:
            said = f"batch size {len(texts)} > maximum allowed batch size 32"
            return reply({"error": said, "error_type": "Validation"}, 413)
        ranked = self.ranked(payload["query"], texts)
        return reply([{"index": index, "score": score} for index, score in ranked])

    def ranked(self, query: str, texts: list[str]) -> list[tuple[int, float]]:
        scores = [self.score(query, text) for text in texts]
        return sorted(enumerate(scores), key=lambda one: -one[1])
