"""The example's two assistants: plain rules, and a language model behind a chat API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "example_project"))

from memory.language_model import LanguageModel, LanguageModelError, LanguageModelUnavailable
from memory.rules import LONGEST_MEMORY, PlainRules

from tests.played.chat import Chat
from tests.played.replies import HANG_UP, HTML, plain, reply
from tests.played.server import serving


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "I like you."}]


@pytest.fixture
def chat() -> Iterator[Chat]:
    with serving(Chat()) as played:
        yield played


@pytest.fixture
def model(chat: Chat) -> LanguageModel:
    return LanguageModel(url=f"{chat.url}/v1/", name="small", api_key="key")


@pytest.mark.parametrize(
    ("text", "memories"),
    [
        ("I live in Berlin. It rains! My cat is old.", ["I live in Berlin.", "My cat is old."]),
        ("Where do I live? I forgot my keys\nI'm tired now", ["I forgot my keys", "I'm tired now"]),
        ("I\u2019m allergic  to nuts. I'm allergic to nuts.", ["I'm allergic to nuts."]),
        ("I see. The weather in Berlin is fine. Thanks", []),
        (f"I am {'very ' * LONGEST_MEMORY} tired", []),
        ("", []),
    ],
)
def test_plain_rules_remember_what_is_said_in_the_first_person(text, memories):
    assert PlainRules().memories(said(text)) == memories


def test_plain_rules_answer_with_what_is_recalled():
    rules = PlainRules()
    assert rules.answer(said("Where do I live?")[:1], ["I live in Rome."]) == (
        "You told me: I live in Rome."
    )
    assert rules.answer(said("Where do I live?")[:1], []) == (
        "You have told me nothing about that yet."
    )
    assert rules.answer(said("I live in Rome.")[:1], []) == "I will remember that."


def test_a_model_is_told_what_was_said_and_what_is_recalled(chat, model):
    chat.says = lambda messages: "In Rome.\0"

    assert model.answer(said("Where?")[:1], ["I live in Rome."]) == "In Rome."

    [seen] = chat.seen
    assert seen.headers["authorization"] == "Bearer key"
    assert seen.payload["model"] == "small"
    instructions, question = seen.payload["messages"]
    assert "- I live in Rome." in instructions["content"]
    assert question == {"role": "user", "content": "Where?"}


@pytest.mark.parametrize(
    "answer",
    ['["a b", "c"]', '```json\n["a b", " a  b", "c", ""]\n```', '<think>[no]</think>["a b","c"]'],
)
def test_memories_are_read_from_whatever_a_model_puts_around_them(chat, model, answer):
    chat.says = lambda messages: answer

    assert model.memories(said("x")) == ["a b", "c"]


@pytest.mark.parametrize("answer", ["nothing", "[1, 2]", '["a", ["b"]]', "", None, ["a"]])
def test_memories_that_cannot_be_read_are_an_error(chat, model, answer):
    chat.says = lambda messages: answer

    with pytest.raises(LanguageModelError) as caught:
        model.memories(said("x"))
    assert not isinstance(caught.value, LanguageModelUnavailable)


@pytest.mark.parametrize("fault", [HANG_UP, plain(503, "loading"), plain(429, "slow down")])
def test_a_server_that_is_down_or_busy_is_no_fault_of_the_message(chat, model, fault):
    chat.faults.append(fault)

    with pytest.raises(LanguageModelUnavailable):
        model.memories(said("x"))


@pytest.mark.parametrize("fault", [HTML, reply({"error": "no such model"}, 404), reply([])])
def test_other_answers_are_told_with_their_beginning(chat, model, fault):
    chat.faults.append(fault)

    with pytest.raises(LanguageModelError, match=f"status {fault.status}: .{{2}}"):
        model.answer(said("x"), [])
