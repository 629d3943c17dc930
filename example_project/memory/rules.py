"""Extract memories and answer by plain rules, for a demo without a language model. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

LONGEST_MEMORY = 300
FEWEST_WORDS = 3

SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")
FIRST_PERSON = re.compile(r"\b(?:i|i'm|i've|my|mine|we|our)\b", re.IGNORECASE)


class Message(TypedDict):
    """A message as chat APIs take it. ``role``: system, user or assistant."""

    role: str
    content: str


class PlainRules:
    """Remembers what people say in the first person, word for word."""

    name = "plain rules"
    note = (
        "No language model is set up, so plain rules extract the memories: every sentence with "
        "“I”, “my” or “we” that is not a question."
    )

    def memories(self, messages: Sequence[Message]) -> list[str]:
        """Return the sentences of the user that state something in the first person."""
        said = (_sentences(one["content"]) for one in messages if one["role"] == "user")
        return list(dict.fromkeys(one for sentences in said for one in sentences if _is_fact(one)))

    def answer(self, messages: Sequence[Message], recalled: Sequence[str]) -> str:
        """Answer the last message with what is recalled."""
        if self.memories(messages[-1:]):
            return "I will remember that."
        if recalled:
            return f"You told me: {' '.join(recalled)}"
        return "You have told me nothing about that yet."


def _sentences(text: str) -> list[str]:
    with_plain_apostrophes = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").strip()
    return [" ".join(one.split()) for one in SENTENCE_ENDS.split(with_plain_apostrophes)]


def _is_fact(sentence: str) -> bool:
    return (
        len(sentence.split()) >= FEWEST_WORDS
        and len(sentence) <= LONGEST_MEMORY
        and not sentence.endswith("?")
        and FIRST_PERSON.search(sentence) is not None
    )
