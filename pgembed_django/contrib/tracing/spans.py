"""Store the trace of a write in its job, and turn a worker's events into spans.

A write hands its trace over through a setting that lasts for the transaction and that the
trigger's function reads. Setting it costs another round trip, but only within a recording span,
and for statements that may write a watched row.

A worker makes a span per claim, batch, store transaction and job. A job's span is in the trace of
the write that enqueued it. The other spans are about many jobs, so each begins a trace of its own,
with links to the spans of its jobs.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from django.db import transaction
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgembed_django import __version__, events
from pgembed_django.core import database
from pgembed_django.declaration import specs
from pgembed_django.embedding.units import Batch, Stored
from pgembed_django.models import Ending
from pgembed_django.queue.jobs import Claim

SET = "SELECT set_config('pgembed.traceparent', %s, true)"
WRITES = r"\s*(?:/\*.*?\*/\s*)*(?:insert|update|merge|with)\b"


def carry(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement. If it may enqueue jobs, first set the trace for these.

    A wrapper for Django's ``connection.execute_wrapper``.
    """
    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        TraceContextTextMapPropagator().inject(carrier)
    if not carrier or not isinstance(sql, str) or not _pattern().match(sql):
        return execute(sql, params, many, context)
    connection = context["connection"]
    # In autocommit the setting would be gone before the statement runs.
    is_alone = connection.get_autocommit()
    with transaction.atomic(using=connection.alias) if is_alone else nullcontext():
        with connection.cursor() as cursor:
            cursor.execute(SET, [carrier["traceparent"]])
        return execute(sql, params, many, context)


database.ONE_AT_A_TIME.append(carry)


@functools.cache
def _pattern() -> re.Pattern[str]:
    names = {spec.model._meta.db_table.rpartition(".")[2].strip('"') for spec in specs.all()}
    tables = "|".join(re.escape(name) for name in sorted(names)) or "$."
    return re.compile(rf"{WRITES}.*(?<!\w)(?:{tables})(?!\w)", re.IGNORECASE | re.DOTALL)


class Spans:
    """Makes spans inside a ``with`` block, at whose end it ends the spans of jobs still held."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("pgembed_django", __version__, provider)
        self._jobs: dict[int, Span] = {}
        self._receivers: dict[events.Event, Callable[..., None]] = {
            events.JOBS_CLAIMED: self._on_claimed,
            events.JOBS_COMPLETED: self._on_completed,
            events.JOB_RETRIED: self._on_error,
            events.JOB_FAILED: self._on_error,
            events.JOB_RELEASED: self._on_released,
            events.LEASES_LOST: self._on_lost,
            events.BATCH_EMBEDDED: self._on_batch,
            events.BATCH_FAILED: self._on_batch,
            events.PROVIDER_PAUSED: self._on_batch,
        }

    def __enter__(self) -> Spans:
        for event, receiver in self._receivers.items():
            events.happened.connect(receiver, sender=event)
        return self

    def __exit__(self, *_: object) -> None:
        for event, receiver in self._receivers.items():
            events.happened.disconnect(receiver, sender=event)
        for job_id in list(self._jobs):
            self._end(job_id, "released")

    def _on_claimed(self, about: list[Claim], fields: dict[str, Any], **_: object) -> None:
        for claim in about:
            if claim.traceparent:
                self._start(claim)
        self._span("claim", fields, about, jobs=fields["count"]).end()

    def _on_batch(
        self, sender: events.Event, about: Batch, fields: dict[str, Any], **_: object
    ) -> None:
        is_partly = sender is events.BATCH_FAILED and fields["refused"] < fields["chunks"]
        if not about.wanted or is_partly:
            return  # a probe, or a partly refused batch, whose span BATCH_EMBEDDED makes
        claims = {one.unit.claim for one in about.wanted}
        span = self._span(
            "embed",
            fields,
            claims,
            kind=SpanKind.CLIENT,
            provider=fields["provider"],
            chunks=len(about.wanted),
            rows=len(claims),
        )
        span.set_attribute("gen_ai.operation.name", "embeddings")
        span.set_attribute("gen_ai.request.model", about.pool.provider.model)
        if sender is not events.BATCH_EMBEDDED:
            span.set_status(Status(StatusCode.ERROR, sender.name))
        span.end()

    def _on_completed(self, about: Stored, fields: dict[str, Any], **_: object) -> None:
        claims = [unit.claim for unit in about.units]
        counts = {key: fields[key] for key in ("embedded", "reused")}
        self._span("store", fields, claims, jobs=fields["count"], **counts).end()
        for unit in about.units:
            values: dict[str, float] = {"embedded": unit.embedded, "reused": unit.reused}
            if unit.claim.id in about.waited:
                values["waited_seconds"] = about.waited[unit.claim.id]
            self._end(unit.claim.id, "completed", **values)

    def _on_error(
        self, sender: events.Event, about: Claim, fields: dict[str, Any], **_: object
    ) -> None:
        if about.id in self._jobs:
            self._jobs[about.id].set_status(Status(StatusCode.ERROR, fields["signature"]))
        self._end(about.id, "failed" if sender is events.JOB_FAILED else "retried")

    def _on_released(self, about: Claim, fields: dict[str, Any], **_: object) -> None:
        ending: Ending = fields["result"]
        self._end(about.id, "released" if ending is Ending.REQUEUED else ending.value)

    def _on_lost(self, about: list[Claim], **_: object) -> None:
        for claim in about:
            self._end(claim.id, Ending.LOST.value)

    def _start(self, claim: Claim) -> None:
        carrier = {"traceparent": claim.traceparent or ""}
        span = self._tracer.start_span(
            "pgembed.job",
            # An invalid traceparent counts as none: the span then begins a trace of its own.
            context=TraceContextTextMapPropagator().extract(carrier, Context()),
            kind=SpanKind.CONSUMER,
            attributes=_named(
                spec=claim.spec,
                source_pk=claim.source_pk,
                job_id=claim.id,
                attempts=claim.attempts,
                crashes=claim.crashes,
            ),
        )
        if span.is_recording():
            self._jobs[claim.id] = span

    def _end(self, job_id: int, outcome: str, **values: float) -> None:
        if span := self._jobs.pop(job_id, None):
            span.set_attributes(_named(outcome=outcome, **values))
            span.end()

    def _span(
        self,
        name: str,
        fields: dict[str, Any],
        claims: Iterable[Claim],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        **values: str | int,
    ) -> Span:
        """Return a span that began ``milliseconds`` ago, linked to the spans of its jobs."""
        spans = [self._jobs[claim.id] for claim in claims if claim.id in self._jobs]
        return self._tracer.start_span(
            f"pgembed.{name}",
            context=Context(),
            kind=kind,
            attributes=_named(**values),
            links=[Link(one.get_span_context()) for one in spans],
            start_time=time.time_ns() - int(fields["milliseconds"] * 1e6),
        )


def _named(**values: str | float) -> dict[str, str | float]:
    return {f"pgembed.{name}": value for name, value in values.items()}
