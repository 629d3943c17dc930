"""The errors that a project may catch or raise, and what the worker does about them."""

from __future__ import annotations

import math

__all__ = [
    "BatchTooLarge",
    "InputRefused",
    "InputTooLong",
    "ModelMissing",
    "PgembedError",
    "ProviderError",
    "ProviderLost",
    "ProviderMisconfigured",
    "ProviderTimeout",
    "ProviderUnavailable",
    "SearchError",
]


class PgembedError(Exception):
    """The base of all errors of this package."""


class SearchError(PgembedError):
    """A search that cannot be answered. The message says what to change."""


class ProviderError(PgembedError):
    """An unusable answer of a provider. Retrying may help: an attempt is spent."""


class InputRefused(ProviderError):
    """The provider will never embed this text. Retrying is useless: the unit fails alone."""


class InputTooLong(InputRefused):
    """The text does not fit the model's context."""


class BatchTooLarge(ProviderError):
    """The server accepts fewer texts or bytes in one request. Smaller batches help."""


class ProviderUnavailable(ProviderError):
    """The server is down, busy or still loading. Not the texts' fault: no attempt is spent.

    ``retry_after_seconds`` is what the server asked for, also as its header has it, or None.
    """

    def __init__(self, message: str, *, retry_after_seconds: float | str | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = _seconds(retry_after_seconds)


class ProviderTimeout(ProviderUnavailable):
    """The server did not answer in time. A smaller batch may succeed."""


class ProviderLost(ProviderUnavailable):
    """The provider went down while it had this text, which may be what crashed it.

    No attempt is spent, but the text is sent by itself from now on.
    """


class ProviderMisconfigured(ProviderUnavailable):
    """A person has to correct the settings or the server: a wrong key, model or width.

    The provider is paused as in an outage, so that a typo does not fail a thousand jobs.
    """


class ModelMissing(ProviderMisconfigured):
    """The server answers, but does not have the model. The message says how to get it."""


class MaintenanceDied(PgembedError):
    """A thread of the maintenance ended with an error: the worker stops with it."""


def _seconds(given: object) -> float | None:
    """Return a wait in seconds, or None if it is no number, like a date, or is negative."""
    try:
        seconds = float(given) if isinstance(given, (int, float, str)) else math.nan
    except ValueError:
        return None
    return seconds if seconds >= 0 else None
