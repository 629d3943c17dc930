"""Ask a language model for answers and memories, by the chat API that most servers have.

Among them are Ollama, vLLM, llama.cpp, LM Studio and OpenAI.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

from memory.rules import Message

TIMEOUT_SECONDS = (5, 120)
BUSY = {429, 502, 503, 504}

ANSWER = """
    You are a friendly assistant. Answer in one or two sentences. What you remember of the user,
    in their own words or as notes about them:
"""
EXTRACT = """
    List what is worth remembering about the user for later conversations: lasting facts, wishes,
    plans and people, each as one short sentence in the third person that makes sense by itself.
    Take nothing from the assistant's messages, and invent nothing. Answer with a JSON array of
    strings alone, such as ["The user lives in Berlin."], or [] if there is nothing.
"""
THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


class LanguageModelError(Exception):
    """The language model's answer cannot be used."""


class LanguageModelUnavailable(LanguageModelError):
    """The server is down or busy. Not the message's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A model of the server at ``url``, which usually ends in /v1."""

    url: str
    name: str
    api_key: str = ""
    note = ""

    def memories(self, messages: Sequence[Message]) -> list[str]:
        """Return what the model finds worth remembering in a conversation.

        Raises:
            LanguageModelUnavailable: the server is down or busy.
            LanguageModelError: any other unusable answer.
        """
        spoken = "\n\n".join(f"{one['role']}: {one['content']}" for one in messages)
        said = self._ask([_system(EXTRACT), {"role": "user", "content": spoken}])
        found, end = said.find("["), said.rfind("]")
        try:
            value = json.loads(said[found : end + 1])
        except ValueError:
            value = None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise LanguageModelError(
                f"{self.name} did not answer with a JSON array of strings. Choose another model."
            )
        texts = (" ".join(one.replace("\0", " ").split()) for one in value)
        return list(dict.fromkeys(filter(None, texts)))

    def answer(self, messages: Sequence[Message], recalled: Sequence[str]) -> str:
        """Answer the last message. Raises what ``memories`` raises."""
        notes = "\n".join(f"- {text}" for text in recalled) or "- nothing yet"
        return self._ask([_system(f"{ANSWER}\n{notes}"), *messages])

    def _ask(self, messages: Sequence[Message]) -> str:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            answer = requests.post(
                f"{self.url.rstrip('/')}/chat/completions",
                json={"model": self.name, "messages": list(messages), "stream": False},
                headers=headers,
                timeout=TIMEOUT_SECONDS,
            )
        except requests.RequestException as error:
            raise LanguageModelUnavailable(
                f"{self.url} cannot be reached: {type(error).__name__}."
            ) from error
        if answer.status_code in BUSY:
            raise LanguageModelUnavailable(f"{self.url} is busy: status {answer.status_code}.")
        said = _content(answer) if answer.ok else None
        if said is None:
            raise LanguageModelError(
                f"{self.url} answered with status {answer.status_code}: {answer.text[:200]}"
            )
        return THOUGHTS.sub("", said).replace("\0", " ").strip()


def _system(text: str) -> Message:
    return {"role": "system", "content": "\n".join(line.strip() for line in text.splitlines())}


def _content(answer: requests.Response) -> str | None:
    """Return the text of an answer, or None if it has none."""
    try:
        value: Any = answer.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return None
    return value if isinstance(value, str) and value.strip() else None
