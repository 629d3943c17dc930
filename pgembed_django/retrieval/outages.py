"""Remember for a moment who did not answer, so that searches do not wait for it again."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

from pgembed_django.exceptions import ProviderError, ProviderUnavailable

REST_SECONDS = 5.0
"""How long not to ask a provider or reranker that did not answer."""


class Outages:
    """Which servers, named by any value, are down. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[Hashable, float] = {}

    def is_resting(self, server: Hashable) -> bool:
        """Return whether not to ask the server now."""
        return self._until.get(server, 0.0) > time.monotonic()

    def is_news(self, server: Hashable, error: ProviderError) -> bool:
        """Let a server rest if it is down. Return whether to log the error: once per outage."""
        if not isinstance(error, ProviderUnavailable):
            return True
        with self._lock:
            is_known = self.is_resting(server)
            self._until[server] = time.monotonic() + REST_SECONDS
        return not is_known

    def ended(self, server: Hashable) -> None:
        """Note that the server has answered."""
        with self._lock:
            self._until.pop(server, None)

    def clear(self) -> None:
        with self._lock:
            self._until.clear()
