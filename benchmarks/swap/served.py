"""WordLlama with the delays of a server."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pgembed_django.providers.answers import Vectors
from pgembed_django.providers.wordllama import WordLlamaProvider

REQUEST_SECONDS = 0.02
TEXT_SECONDS = 0.0005


class ServedWordLlama(WordLlamaProvider):
    """Answers after the time that a request and each of its texts take."""

    def embed_batch(self, texts: Sequence[str]) -> Vectors:
        time.sleep(REQUEST_SECONDS + TEXT_SECONDS * len(texts))
        return super().embed_batch(texts)
