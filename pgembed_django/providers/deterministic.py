"""Make vectors for tests from hashes. They carry no meaning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from pgembed_django.providers.base import Provider, Vectors


class DeterministicProvider(Provider):
    """Makes vectors from hashed words, for tests only: they carry no meaning.

    The same text has the same vector in every process, and texts that share words are near
    each other; synonyms are as far apart as any two words. No network, no model.
    """

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self._vector(text) for text in texts])

    def count_tokens(self, text: str) -> int:
        return len(_words(text))

    def _vector(self, text: str) -> Vectors:
        # Hash the whole text too: words may cancel each other out, but no vector may be zero.
        vector = 0.01 * self._direction(text)
        for word in _words(text):
            vector += self._direction(word)
        return vector.astype(np.float32)

    def _direction(self, word: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        seed = f"{self.model}\0{word}".encode(errors="surrogatepass")
        blocks = -(-self.dimensions // 64)
        data = b"".join(blake2b(seed, salt=block.to_bytes(16)).digest() for block in range(blocks))
        numbers = np.frombuffer(data, dtype=np.uint8)[: self.dimensions].astype(np.float64)
        return (numbers - 127.5) / np.linalg.norm(numbers - 127.5)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
