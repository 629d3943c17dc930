"""A chat API as OpenAI's, played: Ollama and most other servers have it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.played.replies import NO_ROUTE, Reply, Seen, reply
from tests.played.server import Server


class Chat(Server):
    """Says what ``says`` returns for the messages."""

    routes = ("/v1/chat/completions",)

    def __init__(self, says: Callable[[list[dict[str, str]]], Any] = lambda messages: "[]") -> None:
        super().__init__()
        self.says = says

    def answer(self, seen: Seen) -> Reply:
        if seen.path not in self.routes:
            return NO_ROUTE
        if self.faults and (fault := self.faults.popleft()):
            return fault
        message = {"role": "assistant", "content": self.says(seen.payload["messages"])}
        return reply({"object": "chat.completion", "choices": [{"index": 0, "message": message}]})
