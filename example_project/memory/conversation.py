"""Answer a message with what is remembered, and have its memories extracted later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from uuid import UUID

from django.db import transaction

from memory import assistant, recall
from memory.models import Exchange
from memory.rules import Message
from memory.tasks import extract
from pgembed_django.tasks.api import TaskResultDoesNotExist, TaskResultStatus

MOST_SHOWN = 20
MOST_ANSWERED_WITH = 6


def latest(tenant: str, *, most: int = MOST_SHOWN) -> list[Exchange]:
    """Return the tenant's last exchanges, oldest first."""
    found = Exchange.objects.filter(tenant=tenant).prefetch_related("recalled", "memories")
    return list(found.order_by("-pk")[:most])[::-1]


def say(tenant: str, request_id: UUID, message: str) -> Exchange:
    """Answer a message, and return the stored exchange.

    A request that is sent twice is stored once, with one extraction.

    Raises:
        LanguageModelError: there is no answer. Nothing is stored.
    """
    recalled = recall.recall(tenant, message)
    said: Message = {"role": "user", "content": message}
    before = spoken(latest(tenant, most=MOST_ANSWERED_WITH))
    texts = [memory.text for memory in recalled]
    answer = assistant.current().answer([*before, said], texts)
    with transaction.atomic():
        # The second time this returns the first result.
        result = extract.enqueue(
            tenant_id=tenant,
            request_id=str(request_id),
            messages=[said, {"role": "assistant", "content": answer}],
        )
        exchange, is_new = Exchange.objects.get_or_create(
            tenant=tenant,
            request_id=request_id,
            defaults={"message": message, "answer": answer, "result_id": result.id},
        )
        if is_new:
            exchange.recalled.set(recalled)
    return exchange


def progress(exchange: Exchange) -> Literal["extracted", "waiting", "failed"]:
    """Return what has become of the extraction."""
    if exchange.extracted_at:
        return "extracted"
    try:
        status = extract.get_result(exchange.result_id).status
    except TaskResultDoesNotExist:  # dismissed, or extracted since the exchange was read
        exchange.refresh_from_db()
        return "extracted" if exchange.extracted_at else "failed"
    return "failed" if status == TaskResultStatus.FAILED else "waiting"


def spoken(exchanges: Iterable[Exchange]) -> list[Message]:
    return [
        message
        for exchange in exchanges
        for message in (
            Message(role="user", content=exchange.message),
            Message(role="assistant", content=exchange.answer),
        )
    ]
