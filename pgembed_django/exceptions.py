"""The exceptions that a project may catch or raise, and how the worker handles them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

__all__ = [
    "BatchTooLarge",
    "Canceled",
    "InputRefused",
    "InputTooLong",
    "LeaseLost",
    "ModelMissing",
    "PgembedError",
    "ProviderError",
    "ProviderLost",
    "ProviderMisconfigured",
    "ProviderTimeout",
    "ProviderUnavailable",
    "SearchError",
]


def did_you_mean(given: object, known: Iterable[object]) -> str:
    """Return which known name is most like the given one, as a part of a message, if any is."""
    like = difflib.get_close_matches(str(given), [str(name) for name in known], n=1)
    return f"Did you mean {like[0]!r}? " if like else ""


class PgembedError(Exception):
    """The base class of all exceptions of this package."""


class SearchError(PgembedError):
    """A search that cannot be answered. The message says what to change."""


class ProviderError(PgembedError):
    """A provider's answer was unusable. Retrying may help: an attempt is spent."""


class InputRefused(ProviderError):
    """The provider can never embed this text. Retrying is useless: its unit fails, and no other."""


class InputTooLong(InputRefused):
    """The text does not fit the model's context."""


class BatchTooLarge(ProviderError):
    """A request had more texts or bytes than the server accepts. Smaller batches help."""


class ProviderUnavailable(ProviderError):
    """The server is down, busy or still loading. Not the texts' fault: no attempt is spent.

    ``retry_after_seconds`` is the wait that the server asked for, or None. The value of a
    Retry-After header may be passed as it is.
    """

    def __init__(self, message: str, *, retry_after_seconds: float | str | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = _seconds(retry_after_seconds)


class ProviderTimeout(ProviderUnavailable):
    """The server did not answer in time. A smaller batch may succeed."""


class ProviderLost(ProviderUnavailable):
    """The provider went down while it had this text, which may have crashed it.

    No attempt is spent, but from now on the text is sent alone.
    """


class ProviderMisconfigured(ProviderUnavailable):
    """A wrong key, model or width: a person has to correct the settings or the server.

    The provider is paused as in an outage, so that a typo does not fail thousands of jobs.
    """


class ModelMissing(ProviderMisconfigured):
    """The server answers, but does not have the model. The message says how to get it."""


class MaintenanceDied(PgembedError):
    """A maintenance thread ended with an error. The worker stops too."""


class LeaseLost(PgembedError):
    """The task is another worker's now, or gone. What this run has made of it must not count."""


class Canceled(BaseException):
    """The run of a task is to end: its time is up, or a person has asked for it.

    No ``Exception``, so that code which handles those does not go on with the task.
    """


def _seconds(given: object) -> float | None:
    """Return a wait in seconds, or None if it is negative or no number, such as a date."""
    try:
        seconds = float(given) if isinstance(given, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return None
    return seconds if seconds >= 0 else None
