"""Rerankers of a server: ``POST …/rerank``, which many implement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from pgembed_django.exceptions import ProviderError, ProviderMisconfigured
from pgembed_django.providers import answers
from pgembed_django.providers.connections import Answer
from pgembed_django.providers.http import Server
from pgembed_django.rerankers.base import BATCH_SIZE, Reranker

UNLIMITED: Final = 1000
"""How many passages all servers but text-embeddings-inference take at once."""


class HttpReranker(Server, Reranker):
    """A model of any server that implements Jina's API, or that of text-embeddings-inference.

    Source: Jina and Cohere (v2) "Rerank"; vLLM "Re-rank API"; llama.cpp tools/server/README.md;
    text-embeddings-inference, router/src/http/types.rs, RerankRequest.
    """

    setting = "PGEMBED_RERANKERS"

    def __init__(
        self,
        *,
        base_url: str = "",
        api: Literal["jina", "tei"] = "jina",
        batch_size: int | None = None,
        **common: Any,
    ) -> None:
        if api not in ("jina", "tei"):
            raise self.wrong("api", api, 'Set it to "jina" or "tei"')
        if batch_size is None:
            batch_size = BATCH_SIZE if api == "tei" else UNLIMITED
        super().__init__(base_url=base_url, batch_size=batch_size, **common)
        self._is_tei = api == "tei"

    def rerank(
        self, query: str, passages: Sequence[str], *, timeout_seconds: float
    ) -> Sequence[float]:
        payload: dict[str, Any]
        if self._is_tei:
            payload = {"query": query, "texts": passages, "truncate": True}
        else:
            # Only what all take. Some return fewer passages unless told, or refuse other names.
            payload = {"query": query, "documents": passages, "top_n": len(passages)}
            payload["model"] = self.model
        answer = self.ask("POST", "/rerank", payload, timeout_seconds=timeout_seconds)
        rows = answer.json() if answer.status == 200 else None
        if not isinstance(rows, list):  # of TEI it is one
            rows = self.value_of(answer, texts=[query, *passages]).get("results")
        return self._in_order(rows, count=len(passages))

    def error_of(self, answer: Answer, *, texts: Iterable[str] = ()) -> ProviderError:
        error = super().error_of(answer, texts=texts)
        if not self._is_tei and "missing field `texts`" in str(error):
            return ProviderMisconfigured(f'{error} Set api to "tei".')
        return error

    def remedy(self, status: int) -> str:
        remedy = super().remedy(status)
        return f"{remedy} It is followed by /rerank." if status == 404 else remedy

    def _in_order(self, rows: object, *, count: int) -> list[float]:
        """Return the scores in the order of the passages: servers sort them, best first."""
        name = "score" if self._is_tei else "relevance_score"
        scores: dict[int, float] = {}
        for row in rows if isinstance(rows, list) else ():
            known: Any = row if isinstance(row, dict) else {}
            index, score = known.get("index"), known.get(name)
            if type(index) is int and type(score) in answers.NUMBERS and math.isfinite(score):
                scores[index] = float(score)
        is_whole = isinstance(rows, list) and len(rows) == count
        if not is_whole or scores.keys() != set(range(count)):
            raise ProviderError(
                f"{self.base_url} did not answer a finite {name} for each of {count} passages."
            )
        return [scores[index] for index in range(count)]
