"""Store the trace of a write in its job, through a setting that lasts for the transaction.

The trigger's function reads the setting. Setting it costs another round trip, but only within a
recording span, and for statements that may write a watched row.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from django.db import transaction
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgembed_django import database, specs

SET = "SELECT set_config('pgembed.traceparent', %s, true)"
WRITES = r"\s*(?:/\*.*?\*/\s*)*(?:insert|update|merge|with)\b"


def carry(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Run a statement. If it may enqueue jobs, first set the trace for these.

    A wrapper for Django's ``connection.execute_wrapper``.
    """
    traceparent = _traceparent()
    if traceparent is None or not _may_enqueue(sql):
        return execute(sql, params, many, context)
    connection = context["connection"]
    if not connection.get_autocommit():
        _set(connection, traceparent)
        return execute(sql, params, many, context)
    # Without a transaction the setting would be gone before the statement runs.
    with transaction.atomic(using=connection.alias):
        _set(connection, traceparent)
        return execute(sql, params, many, context)


database.ONE_AT_A_TIME.append(carry)


def _traceparent() -> str | None:
    if not trace.get_current_span().is_recording():
        return None
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def _set(connection: Any, traceparent: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SET, [traceparent])


def _may_enqueue(sql: object) -> bool:
    return isinstance(sql, str) and _pattern().match(sql) is not None


@functools.cache
def _pattern() -> re.Pattern[str]:
    names = {spec.model._meta.db_table.rpartition(".")[2].strip('"') for spec in specs.all()}
    tables = "|".join(re.escape(name) for name in sorted(names)) or "$."
    return re.compile(rf"{WRITES}.*(?<!\w)(?:{tables})(?!\w)", re.IGNORECASE | re.DOTALL)
