"""What happens after an answer: memories are extracted, embedded, and replace former wordings."""

from __future__ import annotations

from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from memory import assistant, recall
from memory.language_model import LanguageModelUnavailable
from memory.models import Exchange, Memory
from memory.rules import Message
from pgembed_django.exceptions import SearchError
from pgembed_django.tasks import task

OUTAGE_SECONDS = 10


@task(queue_name="llm", tenant="{tenant_id}", once="{request_id}", takes_context=True)
def extract(context: Any, tenant_id: str, request_id: str, messages: list[Message]) -> None:
    """Store what is worth remembering in an exchange."""
    asked = assistant.current()
    try:
        found = asked.memories(messages)  # takes seconds, so no transaction is open
    except LanguageModelUnavailable:
        context.retry(in_seconds=OUTAGE_SECONDS)
    # The memories, and what becomes of them, are committed with the completion, or not at all.
    with context.completing():
        exchange = Exchange.objects.get(tenant=tenant_id, request_id=request_id)
        Exchange.objects.filter(pk=exchange.pk).update(extracted_at=Now(), extracted_by=asked.name)
        memories = [Memory(tenant=tenant_id, exchange=exchange, text=text) for text in found]
        for memory in Memory.objects.bulk_create(memories):
            supersede.enqueue(tenant_id, memory.pk)


@task(tenant="{tenant_id}", takes_context=True)
def supersede(context: Any, tenant_id: str, memory_id: int) -> None:
    """Let a memory supersede the tenant's older ones that say nearly the same."""
    memory = recall.current(tenant_id).filter(pk=memory_id).first()
    if memory is None:
        return  # forgotten, or superseded itself
    try:
        former = recall.former_wordings(memory)
    except SearchError:
        # Not embedded yet. Wait for as long again as it has been waited for already.
        age = timezone.now() - memory.created_at
        context.retry(in_seconds=max(1, age.total_seconds()))
    with context.completing():
        recall.current(tenant_id).filter(pk__in=[one.pk for one in former]).update(
            superseded_by=memory
        )
