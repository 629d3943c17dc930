"""OpenAI and its kin, played."""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import Any

import numpy as np

from tests.played.replies import NO_ROUTE, Reply, Seen, reply, vector_of
from tests.played.server import Server


class OpenAI(Server):
    """Any server that speaks /v1/embeddings. ``kin`` decides the shape of its errors."""

    routes = ("/v1/embeddings",)

    def __init__(self, *, kin: str = "openai", takes_base64: bool = True, **common: Any) -> None:
        super().__init__(**common)
        self.kin = kin
        self.takes_base64 = takes_base64
        self.most = 32 if kin == "tei" else 2048

    def embed(self, seen: Seen) -> Reply:
        texts, encoding = seen.payload["input"], seen.payload.get("encoding_format", "float")
        if encoding == "base64" and not self.takes_base64:
            return self.error(400, "encoding_format: only 'float' is supported")
        if seen.payload["model"] != self.model:
            return self.error(404, f"The model `{seen.payload['model']}` does not exist.")
        if len(texts) > self.most:
            said = f"batch size {len(texts)} > maximum allowed batch size {self.most}"
            return self.error(422, said)
        longest = max(map(len, texts))
        if longest > self.context:
            return self.error(*self.too_long(longest))
        rows = [
            {"object": "embedding", "index": index, "embedding": self.encoded(text, encoding)}
            for index, text in enumerate(texts)
        ]
        return reply({"object": "list", "model": self.model, "data": rows[::-1]})

    def encoded(self, text: str, encoding: str) -> object:
        vector = self.vector_of(text)
        if encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    def other(self, seen: Seen) -> Reply:
        if seen.path != "/v1/models":
            return NO_ROUTE
        meta = {"n_params": len(self.weights), "n_embd": self.width}
        return reply({"data": [{"id": self.model, "created": len(self.seen), "meta": meta}]})

    def too_long(self, given: int) -> tuple[int, str]:
        said = f"maximum context length is {self.context} tokens, however you requested {given}"
        return {
            "tei": (413, f"`inputs` must have less than {self.context} tokens. Given: {given}"),
            "infinity": (422, f"String should have at most {self.context} characters"),
            "llama.cpp": (500, "input is too large to process. increase the physical batch size"),
            "litellm": (400, f"litellm.ContextWindowExceededError: {said} tokens"),
        }.get(self.kin, (400, f"This model's {said} tokens."))

    def error(self, status: int, message: str) -> Reply:
        shapes: dict[str, object] = {
            "tei": {"message": message, "code": status, "type": "Validation"},
            "vllm": {"object": "error", "message": message, "type": "BadRequest", "code": status},
            "lm studio": {"error": message},
        }
        one = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return reply(shapes.get(self.kin, {"error": one}), status)


class Cutting(OpenAI):
    """Cuts what is longer than ``limit`` tokens, and answers all the same, as infinity does.

    Its vectors are means of those of its tokens, so that the end of a long text weighs little.
    """

    def __init__(self, *, limit: int, token: str, **common: Any) -> None:
        super().__init__(**common)
        self.limit = limit
        self.token = re.compile(token)

    def tokens(self, text: str) -> list[str]:
        return self.token.findall(text)

    def vector_of(self, text: str) -> np.ndarray:
        counts = Counter(self.tokens(text)[: self.limit])
        total = sum(count * vector_of(token, self.width) for token, count in counts.items())
        return np.asarray(total / np.linalg.norm(total), dtype=np.float32)
