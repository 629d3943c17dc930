"""Run any cross-encoder of sentence-transformers in this process."""

from __future__ import annotations

from collections.abc import Sequence

from pgembed_django.providers.sentence_transformers import SentenceTransformersModel
from pgembed_django.rerankers.base import Reranker


class CrossEncoderReranker(SentenceTransformersModel, Reranker):
    """A model that reads query and passage together. It cuts what is too long for it."""

    kind = "CrossEncoder"

    def rerank(
        self, query: str, passages: Sequence[str], *, timeout_seconds: float
    ) -> Sequence[float]:
        pairs = [(query, passage) for passage in passages]
        scores: list[float] = self.executor.compute(pairs, is_query=True).values.tolist()
        return scores

    def warm_up(self) -> None:
        # The first batch takes longer than others, too.
        self.rerank("hello", ["hello"], timeout_seconds=self.timeout_seconds)
