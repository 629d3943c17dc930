"""Count the traffic of a played server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests import played


@dataclass(slots=True)
class Traffic:
    """The number of requests, and the bytes of their bodies."""

    requests: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class Counted:
    """The traffic of all requests, and of those that asked for vectors."""

    server: played.Server
    all: Traffic = field(default_factory=Traffic)
    embedding: Traffic = field(default_factory=Traffic)


class Terse(played.OpenAI):
    """Writes numbers as Go does, with only as many digits as distinguish float32 values."""

    def encoded(self, text: str, encoding: str) -> object:
        """Return a vector in the encoding that the request asks for."""
        if encoding == "base64":
            return super().encoded(text, encoding)
        return [float(str(number)) for number in played.vector_of(text, self.width)]


@contextmanager
def counting(server: played.Server) -> Iterator[Counted]:
    """Serve during the block, and count."""
    counted = Counted(server)
    answer = server.answer

    def count(seen: played.Seen) -> played.Reply:
        reply = answer(seen)
        sent = int(seen.headers.get("content-length", 0))
        for traffic in (counted.all, counted.embedding):
            if traffic is counted.all or seen.path in server.routes:
                traffic.requests += 1
                traffic.bytes_sent += sent
                traffic.bytes_received += len(reply.body)
        return reply

    server.answer = count  # type: ignore[method-assign]
    with played.serving(server):
        yield counted
