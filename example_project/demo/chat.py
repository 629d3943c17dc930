"""Say something on the chat page, wait until it is remembered, and ask about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import UUID

from django.db.models import QuerySet
from memory import conversation, recall
from memory.language_model import LanguageModelError
from memory.models import Exchange, Memory, MemoryEmbedding

from demo.exceptions import DemoFailed
from demo.processes import Process

TENANT = "ada"
# Their own ids: a second run of the demo sends the same requests again, and stores nothing.
SAID = {
    UUID(int=1): "I live in Berlin. My daughter is called Maya.",
    UUID(int=2): "I really like green tea.",
}
QUESTION = "What is my daughter called?"
LOOK_SECONDS = 0.05


def lines(worker: Process, *, timeout_seconds: float) -> Iterator[str]:
    """Yield what was remembered, and what is recalled.

    Raises:
        DemoFailed: nothing is remembered within ``timeout_seconds``, or nobody answers.
    """
    try:
        for request_id, message in SAID.items():
            conversation.say(TENANT, request_id, message)
    except LanguageModelError as error:
        raise DemoFailed(f"{error} Mend that, or unset PGEMBED_CHAT_URL.") from error
    _wait(worker, timeout_seconds=timeout_seconds)
    exchanges = Exchange.objects.filter(tenant=TENANT, request_id__in=SAID)
    for exchange in exchanges.order_by("pk").prefetch_related("memories"):
        found = ", ".join(map(repr, map(str, exchange.memories.all()))) or "nothing"
        yield f"  {exchange.message!r}: {exchange.extracted_by} remembered {found}"
    recalled = ", ".join(map(repr, map(str, recall.recall(TENANT, QUESTION)))) or "nothing"
    yield f"  {QUESTION!r} recalls {recalled}"


def _wait(worker: Process, *, timeout_seconds: float) -> None:
    """Wait until all that was said is extracted and embedded."""
    deadline = time.monotonic() + timeout_seconds
    exchanges = Exchange.objects.filter(tenant=TENANT, request_id__in=SAID)
    while exchanges.filter(extracted_at=None).exists() or _not_embedded().exists():
        worker.require_alive()
        if time.monotonic() > deadline:
            raise DemoFailed(
                f"Nothing was remembered within {timeout_seconds:.0f} s.{worker.last_lines()}"
            )
        time.sleep(LOOK_SECONDS)


def _not_embedded() -> QuerySet[Memory]:
    embedded = MemoryEmbedding.objects.filter(embedding__isnull=False)
    return recall.current(TENANT).exclude(pk__in=embedded.values("source_id"))
