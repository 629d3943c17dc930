"""The chat page: what is remembered, recalled and superseded, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from memory import conversation
from memory.models import Exchange, Memory, MemoryEmbedding
from memory.tasks import extract

from pgembed_django.models import Task
from pgembed_django.testing import run_jobs, run_tasks
from tests.played.replies import plain

pytestmark = pytest.mark.django_db

EXTRACTS = "JSON array"
"""The instructions for an extraction have these words; those for an answer do not."""


@pytest.fixture
def say(client: Client) -> Callable[..., Any]:
    """Post a message, and return the page that is shown then."""

    def post(message: str, *, tenant: str = "ada", request_id: Any = None) -> Any:
        form = {"message": message, "request_id": request_id or uuid4()}
        return client.post(f"/chat/{tenant}/", form, follow=True)

    return post


@pytest.fixture
def remember(say: Callable[..., Any]) -> Callable[..., Any]:
    """Say something, and let the worker do all that follows from it."""

    def post(message: str, **options: Any) -> Any:
        page = say(message, **options)
        work()
        return page

    return post


def work() -> None:
    run_tasks()
    run_jobs()
    # A memory that was not embedded yet is looked at again after a while.
    Task.objects.update(run_at="2020-01-01T00:00:00Z")
    run_tasks()
    run_jobs()


def current() -> list[str]:
    rows = Memory.objects.filter(superseded_by=None).order_by("pk")
    return list(rows.values_list("text", flat=True))


def test_what_is_said_is_remembered_and_shown_with_the_answer_that_recalls_it(say, remember):
    assert "Looking for something to remember" in say("Hello.").content.decode()
    remember("I live in Berlin. My daughter is called Maya.")

    page = say("What is my daughter called?").content.decode()

    assert "You told me: My daughter is called Maya." in page
    assert "Recalled: <q>My daughter is called Maya.</q>" in page
    assert "Remembered: <q>I live in Berlin.</q> <q>My daughter is called Maya.</q>" in page
    assert "Nothing to remember." in page
    assert "plain rules extract the memories" in page
    assert not Task.objects.filter(status="pending").exclude(function="memory.tasks.extract")


def test_a_request_that_is_sent_twice_is_stored_and_extracted_once(say):
    request_id = uuid4()
    say("I live in Berlin.", request_id=request_id)
    say("I live in Berlin.", request_id=request_id)
    work()
    say("I live in Berlin.", request_id=request_id)
    work()

    assert Exchange.objects.count() == 1
    assert current() == ["I live in Berlin."]
    assert Memory.objects.count() == 1


def test_the_extraction_is_enqueued_once_even_by_others(say):
    request_id = uuid4()
    say("I live in Berlin.", request_id=request_id)
    arguments = {
        "tenant_id": "ada",
        "request_id": str(request_id),
        "messages": [{"role": "user", "content": "I live in Berlin."}],
    }

    again = extract.enqueue(**arguments)

    assert again.id == Exchange.objects.get().result_id
    assert Task.objects.count() == 1


def test_two_people_may_send_the_same_request_id(say):
    request_id = uuid4()
    say("I live in Berlin.", request_id=request_id)
    say("I live in Rome.", request_id=request_id, tenant="grace")
    work()

    assert current() == ["I live in Berlin.", "I live in Rome."]


def test_what_one_says_is_never_recalled_for_another(remember, say, client):
    remember("My daughter is called Maya.")

    page = say("What is my daughter called?", tenant="grace").content.decode()

    assert "Recalled" not in page
    assert "You have told me nothing about that yet." in page
    assert "Maya" in client.get("/chat/ada/").content.decode()


def test_a_memory_that_says_nearly_the_same_supersedes_the_former_one(remember, say, client):
    remember("I really like green tea. I live in Berlin.")
    remember("I like green tea.")
    remember("I like green tea.", tenant="grace")

    former, newer = Memory.objects.filter(tenant="ada", text__contains="tea").order_by("pk")
    assert former.superseded_by == newer
    assert not MemoryEmbedding.objects.filter(source=former).exists()
    assert newer.superseded_by is None
    page = client.get("/chat/ada/").content.decode()
    assert "replaces <q>I really like green tea.</q>" in page
    asked = say("Do I like green tea?")
    assert [one.text for one in Exchange.objects.latest("pk").recalled.all()] == [newer.text]
    assert "You told me: I like green tea." in asked.content.decode()


def test_memories_of_one_exchange_supersede_each_other_too(remember):
    remember("I live in Berlin. I live in Berlin now.")

    assert current() == ["I live in Berlin now."]


def test_a_memory_waits_for_its_vectors_without_spending_an_attempt(say):
    say("I live in Berlin.")
    run_tasks()

    [waiting] = Task.objects.all()
    assert (waiting.function, waiting.status) == ("memory.tasks.supersede", "pending")
    assert waiting.attempts == 0

    run_jobs()
    Task.objects.update(run_at="2020-01-01T00:00:00Z")
    run_tasks()
    assert not Task.objects.exists()


def test_a_forgotten_memory_needs_no_comparison(say):
    say("I live in Berlin.")
    run_tasks()
    Memory.objects.all().delete()
    Task.objects.update(run_at="2020-01-01T00:00:00Z")

    run_tasks()

    assert not Task.objects.exists()


def test_a_language_model_answers_and_extracts(chat, say, client):
    chat.says = lambda messages: (
        '["The user lives in Berlin."]' if EXTRACTS in messages[0]["content"] else "Lovely city!"
    )
    page = say("Berlin is where I live.").content.decode()
    work()

    assert "Lovely city!" in page
    assert "plain rules" not in page
    assert "Remembered: <q>The user lives in Berlin.</q>" in client.get("/chat/ada/").text
    assert Exchange.objects.get().extracted_by == "played"


def test_a_model_that_is_down_later_costs_the_extraction_no_attempt(chat, say):
    say("I live in Berlin.")
    chat.faults.append(plain(503, "loading"))
    run_tasks()

    [waiting] = Task.objects.all()
    assert (waiting.status, waiting.attempts) == ("pending", 0)

    chat.says = lambda messages: '["The user lives in Berlin."]'
    work()
    assert current() == ["The user lives in Berlin."]


def test_an_extraction_that_fails_for_good_is_told_on_the_page(chat, say, client):
    chat.says = lambda messages: "no list"
    say("I live in Berlin.")
    for _ in range(5):
        run_tasks()
        Task.objects.update(run_at="2020-01-01T00:00:00Z")

    assert Task.objects.get().status == "failed"
    assert "The extraction failed." in client.get("/chat/ada/").content.decode()
    assert current() == []


def test_an_extraction_that_ends_while_the_page_is_built_is_no_failure(say):
    say("I live in Berlin.")
    [read_before] = conversation.latest("ada")
    run_tasks()

    assert conversation.progress(read_before) == "extracted"
    assert [str(memory) for memory in read_before.memories.all()] == ["I live in Berlin."]


def test_a_message_without_an_answer_is_kept_in_its_field_and_not_stored(chat, say):
    chat.faults.append(plain(503, "loading"))
    request_id = uuid4()

    page = say("I live in Berlin.", request_id=request_id)

    assert page.status_code == 503
    assert 'value="I live in Berlin."' in page.content.decode()
    assert f'value="{request_id}"' in page.content.decode()
    assert "status 503" in page.content.decode()
    assert not Exchange.objects.exists()
    assert not Task.objects.exists()


@pytest.mark.parametrize("message", ["", "  ", "\0"])
def test_an_empty_message_is_not_stored(say, message):
    assert say(message).status_code == 200
    assert not Exchange.objects.exists()


def test_a_message_that_is_too_long_is_refused(say):
    page = say("x" * 1001)

    assert page.status_code == 400
    assert "1,001 characters" in page.content.decode()
    assert not Exchange.objects.exists()


@pytest.mark.parametrize("request_id", ["x", "x" * 5000, "\0"])
def test_an_odd_request_id_is_replaced(say, request_id):
    say("I live in Berlin.", request_id=request_id)

    assert Exchange.objects.count() == 1


def test_markup_is_shown_as_it_was_typed(say):
    page = say("I like <script>alert(1)</script>.").content.decode()

    assert "<script>alert" not in page


def test_nobody_else_is_there(client):
    assert client.get("/chat/nobody/").status_code == 404
    assert client.get("/chat/", follow=True).redirect_chain == [("/chat/ada/", 302)]
    assert client.put("/chat/ada/").status_code == 405


def test_other_pages_lead_to_the_chat(client):
    assert 'href="/chat/ada/"' in client.get("/").content.decode()
