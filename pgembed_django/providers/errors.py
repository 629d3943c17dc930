"""Determine from an HTTP answer whose fault an error is, for all kinds of servers. Pure.

The body counts more than the status: servers answer 400, 413 or 500 to a text that is too long,
and 400 also after a runner has died.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from pgembed_django.exceptions import (
    BatchTooLarge,
    InputRefused,
    InputTooLong,
    ModelMissing,
    ProviderError,
    ProviderLost,
    ProviderMisconfigured,
    ProviderTimeout,
    ProviderUnavailable,
)

MAX_WAIT_SECONDS: Final = 600.0
"""The longest wait that a server, or any other provider, may ask for."""


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_BATCH_TOO_LARGE: Final = _any_of(
    r"batch size \d+ >",  # TEI
    r"maximum allowed batch size",
    r"tokens per request",  # OpenAI
    r"too many inputs",
    r"array too long",
    r"\d+ (?:items|inputs) or (?:less|fewer)",
    r"at most \d+ (?:items|requests can be in one batch)",  # pydantic, Gemini
    r"texts must be at most \d+",  # Cohere
    r"split into more batches|tokens in batch",  # Mistral
    r"batch size (?:limit is|is invalid)|per submitted batch",  # Voyage, DashScope
)
_ABOVE_QUOTA: Final = _any_of(r"request too large")  # OpenAI, with 429, but waiting does not help
_TOO_LONG: Final = _any_of(
    r"context[ _]?(?:length|window|size)",  # Ollama, OpenAI, vLLM, LiteLLM, llama.cpp
    r"too large to process",  # llama.cpp
    r"(?:input|prompt|text)s? (?:is|are) (?:too long|too large|larger)",
    r"too many (?:input )?tokens",
    r"maximum (?:allowed )?(?:number of tokens|(?:input |sequence |model |token )?(?:length|size))",
    # Pydantic, Mistral, Jina, but no limit on the tokens of a minute.
    r"(?:exceed\w*|at most|maximum|limit\w*|(?:less|more|longer|larger) than)\b\D{0,40}"
    r"\d[\d,]* (?:[\w-]+ )?(?:characters|chars|tokens|bytes)\b(?! per)",
    r"input token count",  # Gemini
    r"expected maxlength",  # Bedrock
    r"range of input length",  # DashScope
    r"string[ _](?:is )?(?:too long|above_max_length)",
)
# The same text fails again each time: see the Ollama issues 9639 and 14657.
_NOT_A_NUMBER: Final = _any_of(r"unsupported value: [+-]?(?:nan|inf)", r"nan or inf")
_MODEL_MISSING: Final = _any_of(
    r"model\b.{0,200}\b(?:not found|does not exist|not exist)", r"model_not_found", r"try pulling"
)
_BUSY: Final = _any_of(
    r"server busy",
    r"pending requests",
    r"(?:loading|starting)(?: the)? model",
    r"model is (?:currently )?(?:loading|overloaded)",
    r"overloaded",
    r"more system memory",
    r"insufficient system resources",  # LM Studio
    r"timed out waiting",
    r"no healthy upstream",
    # LiteLLM, with 500, when the server behind it accepts no connection.
    r"cannot connect to host|connect call failed|all connection attempts failed",
)
_MISCONFIGURED: Final = _any_of(
    r"must be of type",
    r"cannot unmarshal",
    r"(?:missing|unknown) unit|invalid duration",
    r"invalid model name",
    r"model is required",
    r"not support embedding",
    r"unexpected endpoint",  # LM Studio
    r"no models? (?:is |are )?loaded",
    r"insufficient_quota|billing",
    r"(?:invalid|incorrect|missing|no)[_ ](?:\w+ )?api[_ ]key",
    r"api[_ ]key (?:is )?(?:not|missing|invalid)",
    # LiteLLM, with 500, when it has no key for the server behind it.
    r"authentication ?error",
    r"api[_ ]key client option must be set",
    r"missing credentials",
)
# Ollama, if its runner died during the request, and LiteLLM, if the server behind it did, or was
# down before. A text may have killed it.
_RUNNER_LOST: Final = _any_of(r"process has terminated", r"\bconnection error\b")
# Ollama answers 400 when its runner dies. So does LM Studio, also when the model is unloaded.
_RUNNER_DIED: Final = _any_of(
    r"do embedding request",
    r"connection (?:reset|refused)",
    r"broken pipe",
    r"\beof\b",
    r"model has crashed",
    r"model (?:was |is )?unloaded",
)
# Proxies that answer 503 where others answer 502.
_HUNG_UP: Final = _any_of(
    r"reset reason: (?:connection termination|remote reset)",  # Envoy, Istio
    r"connection to the instance had an error",  # Cloud Run
)


def classify(
    status: int, reason: str, *, wait_seconds: float | None, where: str, remedy: str = ""
) -> ProviderError:
    """Return the error that an answer stands for. ``reason`` must come from ``quoting.quote``.

    ``remedy``: what to look at if the request was at fault, not its texts.
    """
    message = f"{where} answered {status}: {reason}"
    # These are about the sender of the request, whatever the body says.
    if status in (401, 402, 403):
        return ProviderMisconfigured(_with(message, remedy), retry_after_seconds=wait_seconds)
    if _MISCONFIGURED.search(reason) or status in (405, 501) or 300 <= status < 400:
        return ProviderMisconfigured(message, retry_after_seconds=wait_seconds)
    if status in (502, 520) or _HUNG_UP.search(reason):
        # From a proxy whose server closed the connection: busy, restarted, or crashed by a text.
        return ProviderLost(message, retry_after_seconds=wait_seconds)
    if status == 429 and _ABOVE_QUOTA.search(reason):
        return BatchTooLarge(message)
    if status in (429, 503, 529) or 521 <= status <= 523:
        return ProviderUnavailable(message, retry_after_seconds=wait_seconds)
    if status in (408, 504, 524):
        return ProviderTimeout(message, retry_after_seconds=wait_seconds)
    if _BATCH_TOO_LARGE.search(reason):
        return BatchTooLarge(message)
    if _TOO_LONG.search(reason):
        return InputTooLong(message)
    if _NOT_A_NUMBER.search(reason):
        return InputRefused(message)
    if _MODEL_MISSING.search(reason):
        return ModelMissing(message)
    if _RUNNER_LOST.search(reason):
        return ProviderLost(message, retry_after_seconds=wait_seconds)
    if _BUSY.search(reason):
        return ProviderUnavailable(message, retry_after_seconds=wait_seconds)
    if status == 413:
        return BatchTooLarge(message)
    if status == 404:
        return ProviderMisconfigured(_with(message, remedy))
    if status >= 500 or status in (200, 409, 423, 424, 425, 499) or _RUNNER_DIED.search(reason):
        return ProviderError(message)
    return InputRefused(message)


def _with(message: str, remedy: str) -> str:
    return f"{message.removesuffix('.')}. {remedy}" if remedy else message


def wait_seconds(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return how many seconds the server asks to wait, or None.

    ``headers`` must be case-insensitive.

    Source: RFC 9110 section 10.2.3; OpenAI "Rate limits", the headers x-ratelimit-*.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _granted(milliseconds / 1000)
    after = headers.get("retry-after", "")
    seconds = _number(after)
    if seconds is not None:
        return _granted(seconds)
    until = _date(after)
    if until is not None:
        # Relative to the server's clock if it sends the time: ours may be wrong.
        told = _date(headers.get("date", ""))
        return _granted(until - (now if told is None else told))
    waits = [
        _duration(headers.get(f"x-ratelimit-reset-{what}", ""))
        for what in ("requests", "tokens")
        if _number(headers.get(f"x-ratelimit-remaining-{what}")) == 0
    ]
    return _granted(max(waits)) if waits else None


def _granted(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def _number(value: str | None) -> float | None:
    return float(value) if value and re.fullmatch(r"\s*\d+(?:\.\d+)?\s*", value) else None


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _duration(value: str) -> float:
    """Return the seconds in a value such as "6m0s", "20ms" or "1.5". Zero: it is none of these."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", value)
    return sum(float(number) * units[unit] for number, unit in parts) or _number(value) or 0.0
