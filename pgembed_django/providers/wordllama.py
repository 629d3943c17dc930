"""Make real embeddings in this process, without a server, with the package ``wordllama``."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from pgembed_django.core.threads import fork_safe_lock
from pgembed_django.providers.base import Provider, Vectors
from pgembed_django.providers.local import require_package

WIDTHS: Final = (64, 128, 256)
"""The wheel contains 256 dimensions; the first 64 or 128 are usable as vectors on their own."""

TOKENS_AT_ONCE: Final = 8192
"""How many token vectors to hold in memory at once: 8 MB."""

_loading = fork_safe_lock()


class WordLlamaProvider(Provider):
    """WordLlama's averaged token vectors: 256 dimensions, or their first 64 or 128.

    Small, fast, and for English. The wheel contains the weights: nothing is downloaded.
    """

    def __init__(self, *, model: str = "l2_supercat", **common: Any) -> None:
        super().__init__(model=model, **common)
        if self.dimensions not in WIDTHS:
            raise self.wrong("DIMENSIONS", self.dimensions, f"WordLlama has {WIDTHS}")
        require_package("wordllama", "wordllama", extra="wordllama")
        if not _weights(self.model).exists():
            shipped = sorted(
                path.stem.removesuffix("_256") for path in _weights("").parent.iterdir()
            )
            raise self.wrong("MODEL", self.model, f"The wheel ships {', '.join(shipped)}")

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        # Not wordllama's own embed(), which pads every text to the longest of its batch:
        # 32 texts, one of 100,000 tokens, would take 3 GB.
        loaded = _load(self.model)
        vectors = np.zeros((len(texts), loaded.embedding.shape[1]), dtype=np.float32)
        for position, text in enumerate(texts):
            tokens = loaded.tokenizer.encode(text, add_special_tokens=False).ids
            for start in range(0, len(tokens), TOKENS_AT_ONCE):
                piece = tokens[start : start + TOKENS_AT_ONCE]
                vectors[position] += loaded.embedding[piece].sum(axis=0)
        return vectors[:, : self.dimensions]

    def count_tokens(self, text: str) -> int:
        return len(_load(self.model).tokenizer.encode(text, add_special_tokens=False).ids)

    def weigh(self, text: str) -> int:
        # Tokenizing is most of the work here, so it is not done twice.
        return len(text) // 4 + 1

    def warm_up(self) -> None:
        _load(self.model)

    def model_digest(self) -> str:
        """Return the SHA-256 of the weights: another wheel may contain others."""
        return _digest(self.model)


def _weights(model: str) -> Path:
    spec = importlib.util.find_spec("wordllama")
    return Path(str(spec and spec.origin)).parent / "weights" / f"{model}_256.safetensors"


@cache
def _digest(model: str) -> str:
    with _weights(model).open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()


def _load(model: str) -> Any:
    """Return the model, loaded once per process."""
    with _loading:
        return _load_once(model)


@cache
def _load_once(model: str) -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # Importing wordllama calls logging.basicConfig(level=INFO), for the whole application.
    from wordllama import WordLlama

    root.handlers[:] = handlers
    root.setLevel(level)
    return WordLlama.load(model, cache_dir=_weights(model).parent.parent, disable_download=True)
